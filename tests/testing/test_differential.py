"""Mistakes of every stage are found, told, and made small."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.module import IRModule
from relaxpy.op import te
from relaxpy.op.unary import Tanh
from relaxpy.runtime.tensor import Shape
from relaxpy.testing import differential
from relaxpy.testing.differential import Call, Ways, check
from relaxpy.testing.kept import call_of, text_of
from relaxpy.testing.shrink import shrink

PROGRAM = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function(private=True)
    def helper(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = R.exp(x)
        return y

    @R.function
    def main(x: R.Tensor(("n",), "float32"), z: R.Tensor(("n", "m"), "float32"), c: R.Tensor((), "bool")):
        n, m = T.int64(), T.int64()
        cls = Module
        with R.dataflow():
            a = R.negative(x)
            b = R.tanh(a)
            s = R.sum(z)
            R.output(b, s)
        if c:
            d = cls.helper(b)
        else:
            d = R.abs(b)
        return (d, (s, b))
""")


def example() -> Call:
    rng = np.random.default_rng(0)
    x, z = rng.random(3, np.float32), rng.random((3, 2), np.float32)
    return Call(PROGRAM, "main", [x, z, np.array(True)])


def test_agreement() -> None:
    """A right program has no failure, in a fresh process either."""
    assert check([example()]) == []


@pytest.mark.slow
def test_a_wrong_program_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass and the numbers are told; what is left is the operator."""

    def legalize(_: Tanh, out: TensorType, x: Any) -> Any:
        return te.compute(out.dims or (), lambda *i: x(*i) * x(*i))

    monkeypatch.setattr(Tanh, "legalize", legalize)
    (failure, *_) = check([example()], Ways(fresh_process=False))
    assert (failure.stage, failure.kind) == ("pass", "legalize-ops")
    assert "3 of 3 elements differ" in str(failure)
    call, small = shrink(example(), failure)
    bindings = list(call.mod["main"].body.bindings)  # type: ignore[union-attr]
    assert [b.value.op.name for b in bindings if hasattr(b.value, "op")] == ["tanh"]  # type: ignore[union-attr]
    assert list(call.mod.functions) == ["main"]
    assert (small.stage, small.kind) == (failure.stage, failure.kind)


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled kernel beside the tensor program that it comes from."""
    run = differential.Kernels.run

    def off_by_one(self: object, name: str, inputs: object, outputs: list, scalars: object) -> None:
        run(self, name, inputs, outputs, scalars)  # type: ignore[arg-type]
        if name == "fused_negative_tanh":
            outputs[-1][...] += 1

    monkeypatch.setattr(differential.Kernels, "run", off_by_one)
    (failure, *_) = check([example()], Ways(fresh_process=False))
    assert failure.stage == "kernel"
    assert "the kernel fused_negative_tanh" in str(failure)


def test_a_wrong_machine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of the virtual machine that is not the interpreter's."""
    outcome_of = differential.outcome_of
    monkeypatch.setattr(differential, "outcome_of", lambda m, c: (outcome_of(m, c)[0], 1))
    (failure, *_) = check([example()], Ways(fresh_process=False))
    assert failure.stage == "vm"


def test_a_wrong_file_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process gives the same bits, or it is told."""
    run = differential._run_machine

    def moved(machine: object, calls: object, found: object) -> list[object]:
        ((first, rest),) = run(machine, calls, found)  # type: ignore[arg-type]
        return [(np.nextafter(first, np.float32(9)), rest)]

    monkeypatch.setattr(differential, "_run_machine", moved)
    (failure,) = check([example()])
    assert (failure.stage, failure.kind) == ("file", "value")


def test_what_a_pass_makes_is_printed_and_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module after a pass that does not come back from its text."""

    def forgetful(text: str) -> IRModule:
        mod = relaxpy.parse(text)
        return mod.with_functions({}) if "call_tir" in text else mod

    monkeypatch.setattr(differential, "parse", forgetful)
    (failure, *_) = check([example()], Ways(fresh_process=False))
    assert (failure.stage, failure.kind) == ("print", "AssertionError")
    assert str(failure).startswith("print: after legalize-ops: ")


def test_kernels_of_fused_programs_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of the executable runs beside the tensor program that it is made from."""
    seen: list[str] = []
    run = differential.Kernels.run

    def record(self: object, name: str, *args: Any) -> None:
        seen.append(name)
        run(self, name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(differential.Kernels, "run", record)
    assert check([example()], Ways(fresh_process=False)) == []
    assert "fused_negative_tanh" in seen


def test_a_program_may_write_to_its_arguments() -> None:
    """Every run gets arguments of its own."""
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def double(x: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                vi = T.axis.spatial(n, i)
                x[vi] = x[vi] * T.float32(2)

    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir_inplace(cls.double, (x,), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))
        return y
""")
    x = np.ones(3, np.float32)
    assert check([Call(mod, "main", [x])]) == []
    assert x.tolist() == [1, 1, 1]


CONTRADICTION = """
@R.function
def main(x: R.Tensor(("m", 1), "float32"), y: R.Tensor(("m", 3), "float32")):
    m, u = T.int64(), T.int64()
    z = R.match_cast(y, R.Tensor((m, u), "float32"))
    return R.nn.cross_entropy_with_logits(x, z)
"""


def test_a_program_that_can_only_fail_is_built() -> None:
    """`u` is 3, as passes could find out: the program fails when it is called, as it did before."""
    mod = relaxpy.parse(CONTRADICTION)
    call = Call(mod, "main", [np.zeros((2, 1), np.float32), np.zeros((2, 3), np.float32)])
    assert isinstance(call.expected, RelaxError)
    assert check([call]) == []


def test_malformed_programs_are_found() -> None:
    """Verification comes first."""
    main = PROGRAM["main"]
    broken = PROGRAM.with_function("main", dataclasses.replace(main, params=main.params[:1]))  # type: ignore[type-var,union-attr]
    (failure, *_) = check([Call(broken, "main", [])])
    assert failure.stage == "verify"


def test_kept_text() -> None:
    """A call becomes a file and comes back: NaN, half floats, tuples, shapes, scalars."""
    mod: IRModule = relaxpy.parse("""
@R.function
def main(
    x: R.Tensor(("n",), "bfloat16"), y: R.Tuple(R.Tensor((), "int8"), R.Shape(["n"])), k: R.Prim("int64")
) -> R.Object:
    return (x, y, k)
""")
    x = np.array([1.5, np.nan, -np.inf]).astype(DType("bfloat16").numpy)
    args = [x, (np.array(3, np.int8), Shape((3,))), 4]
    text = text_of(Call(mod, "main", args), "because")
    assert text.startswith("# because\n# call: main [")
    back = call_of(text, "file")
    assert back.disagreement(Call(mod, "main", args).expected) == ""
    with pytest.raises(UsageError, match="has no line with its call"):
        call_of("no call", "file")


def test_either_of_two_errors_may_come_first() -> None:
    """A pass may move bindings that do not depend on one another; an error that the program does not have is wrong."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")):
    n = T.int64()
    m = T.int64()
    a = FIRST
    b = R.add(y, a)
    c = SECOND
    return (b, c)
"""
    grown, summed = (
        "R.zeros(R.shape([n - m]), 'float32')",
        "R.add(x, R.const([1.0, 2.0], 'float32'))",
    )
    first = relaxpy.parse(text.replace("FIRST", grown).replace("SECOND", summed))
    second = relaxpy.parse(text.replace("FIRST", summed).replace("SECOND", grown))
    call = Call(first, "main", [np.ones(3, "float32"), np.ones(5, "float32")])
    other = call.run(second)
    assert "negative" in call.expected.message
    assert "broadcast" in other.message
    assert call.disagreement(other) == ""
    assert "was expected" in call.disagreement(
        relaxpy.errors.RuntimeCheckError("check", "main: another")
    )
