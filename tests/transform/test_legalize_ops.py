"""LegalizeOps: operators to tensor programs."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis import check_well_formed
from relaxpy.errors import PassError, RuntimeCheckError
from relaxpy.ir import IRModule
from relaxpy.target import Target
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.tir.lowering.workspace import buffer_count
from relaxpy.transform import LegalizeOps, Normalize
from relaxpy.transform.base import PassContext


def legalize(text: str) -> IRModule:
    return LegalizeOps()(relaxpy.parse(text))


def test_example() -> None:
    check_example(LegalizeOps())


def test_calls_alike_share_a_program() -> None:
    mod = legalize("""
@I.ir_module
class Module:
    @R.function
    def f(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
        y = R.exp(x)
        z = R.exp(y)
        return z

    @R.function
    def g(x: R.Tensor(("batch", 4), dtype="float32")) -> R.Tensor(("batch", 4), dtype="float32"):
        y = R.exp(x)
        return y
""")
    assert list(mod.prim_funcs) == ["exp"]


def test_equal_and_different_symbols_are_different_programs() -> None:
    mod = legalize("""
@R.function
def main(x: R.Tensor(("n", "n"), dtype="float32"), y: R.Tensor(("n", "m"), dtype="float32")) -> R.Tuple(R.Tensor(("n", "n"), dtype="float32"), R.Tensor(("n", "m"), dtype="float32")):
    a = R.exp(x)
    b = R.exp(y)
    return (a, b)
""")
    assert list(mod.prim_funcs) == ["exp", "exp1"]


def test_what_is_undecided_is_checked_before_the_call() -> None:
    text = legalize("""
@R.function
def main(x: R.Tensor(("n", "k"), dtype="float32"), y: R.Tensor(("l", "m"), dtype="float32")) -> R.Tensor(("n", "m"), dtype="float32"):
    z = R.matmul(x, y)
    return z
""").script()
    assert "R.vm.check_dim(" in text
    assert text.index("R.vm.check_dim(") < text.index("R.call_tir(")


def test_what_the_runtime_takes_for_granted_is_checked_before_the_call() -> None:
    """An operator without a tensor program: its vectors must have an element for each axis."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("m",), "float32"), b: R.Tensor(("n",), "int64")):
    y = R.dynamic_strided_slice(x, b, b, b)
    return y
""")
    machine = relaxpy.VirtualMachine(relaxpy.build(mod))
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(machine["main"](x, np.ones(1, np.int64)).numpy(), [])
    for size in (0, 2):
        with pytest.raises(RuntimeCheckError, match="begin must have an element for each axis"):
            machine["main"](x, np.ones(size, np.int64))


def test_symbols_that_stand_alone_nowhere_are_passed() -> None:
    text = legalize("""
@R.function
def main(x: R.Tensor(("n * 2",), dtype="float32"), s: R.Shape(["n"])) -> R.Tensor(("n * 2",), dtype="float32"):
    y = R.nn.relu(x)
    return y
""").script()
    assert "tir_vars=" in text


def test_unknown_rank_is_refused_with_its_place() -> None:
    with pytest.raises(PassError) as error:
        legalize("""
@R.function
def main(x: R.Tensor(dtype="float32")) -> R.Tensor(dtype="float32"):
    y = R.exp(x)
    return y
""")
    assert error.value.code == "unknown-rank"
    assert error.value.span is not None
    assert error.value.span.line == 4


def test_a_tuple_of_one_stays_a_tuple() -> None:
    """`call_tir` of one output gives a tensor; an operator may give a tuple of one."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    lv = R.meshgrid((x,))
    gv = lv[0]
    return gv
"""
    mod = LegalizeOps()(Normalize()(relaxpy.parse(text)))
    check_well_formed(mod)
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(interpret(mod, "main", x), x)


@pytest.mark.parametrize("call", ["R.concat(({}), axis=0)", "R.stack(({}), axis=0)"])
@pytest.mark.parametrize("limit", [4, 8])
def test_many_tensors_are_joined_in_groups_that_a_launch_takes(call: str, limit: int) -> None:
    """Inputs and the result count; groups of groups where there are so many. A processor takes more at once."""
    params = ", ".join(f'x{i}: R.Tensor(("n",), "float32")' for i in range(30))
    value = call.format(", ".join(f"x{i}" for i in range(30)))
    mod = relaxpy.parse(f"@R.function\ndef main({params}):\n    y = {value}\n    return y\n")
    legal = LegalizeOps()(mod, PassContext(Target.parse(f"opencl -max-buffers={limit}")))
    assert max(map(buffer_count, legal.prim_funcs.values())) == limit
    assert len(LegalizeOps()(mod, PassContext(Target.host())).prim_funcs) == 1
    args = [np.full(2, i, np.float32) for i in range(30)]
    np.testing.assert_array_equal(interpret(legal, "main", *args), interpret(mod, "main", *args))


@pytest.mark.parametrize(
    "call",
    [
        "R.reshape(x, (n * (1 << 70),))", "x[1 << 70]", "R.arange(0, 5, 1 << 70)", "R.repeat(x, 1 << 70)",
        "R.tile(x, (1 << 70, 1))", "R.tril(x, 1 << 70)",
    ],
)  # fmt: skip
def test_numbers_beyond_64_bits_are_refused(call: str) -> None:
    """At the call; TVM's literals end there."""
    mod = relaxpy.parse(
        f"@R.function\ndef main(x: R.Tensor(('n', 4), 'float32')):\n    n = T.int64()\n    return {call}\n"
    )
    with pytest.raises(relaxpy.RelaxError, match="does not fit into 64 bits") as caught:
        LegalizeOps()(mod)
    assert caught.value.code == "bad-value"
    assert caught.value.span is not None
