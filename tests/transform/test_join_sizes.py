"""JoinSizes: kernels take sums of many sizes as one."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir.module import IRModule, ScalarParam
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform import FuseOps, FuseTensorIR, JoinSizes, LegalizeOps, Sequential

COUNT = 17
"""One more than sums of sizes that stay."""
NAMES = [f"n{i}" for i in range(COUNT)]
WHOLE = " + ".join(NAMES)


def module(*lines: str, params: str = f"s: R.Shape({NAMES})") -> IRModule:
    body = "\n".join(f"        {line}" for line in lines)
    return relaxpy.parse(
        f"@I.ir_module\nclass Module:\n    @R.function\n    def main({params}):\n"
        f"        {', '.join(NAMES)} = {', '.join(['T.int64()'] * COUNT)}\n"
        f"{body}\n"
    )


def scalars(mod: IRModule) -> list[int]:
    """The number of scalar parameters of each kernel, with this pass."""
    lowered = Sequential((LegalizeOps(), FuseOps(), FuseTensorIR(), JoinSizes()))(
        relaxpy.transform.Normalize()(mod)
    )
    programs = [f for f in lowered.functions.values() if isinstance(f, PrimFunc)]
    return [sum(isinstance(p, ScalarParam) for p in each.params) for each in programs]


PROGRAMS = {
    "a size": (f'y = R.zeros(R.shape([{WHOLE}]), "float32")', [0]),
    "two axes": (f'y = R.ones(R.shape([{WHOLE}, {WHOLE}]), "float32")', [0]),
    "a multiple": (f'y = R.ones(R.shape([3 * ({WHOLE}) + 1]), "float32")', [1]),
    "several factors": (f'y = R.ones(R.shape([2 * n0 - n1 + {" + ".join(NAMES[2:])}]), "float32")', [COUNT]),
    "a part of a product": (f'y = R.ones(R.shape([({WHOLE}) // 2 + 1]), "float32")', [1]),
    "one is known alone": (f'y = R.ones(R.shape([{WHOLE}, n0]), "float32")', [1]),
    "numbers": (f'y = R.arange({WHOLE})', [0]),
    "a start": (f'y = R.arange({WHOLE}, 2 * ({WHOLE}) + 2, 3, dtype="int64")', [None]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_take_the_sum(name: str) -> None:
    line, count = PROGRAMS[name]
    mod = module(line, "return y")
    if count != [None]:
        assert scalars(mod) == count
    machine = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -mcpu=x86-64", cache=False))
    for sizes in ((0,) * COUNT, (1,) * COUNT, tuple(range(COUNT)), (5, 0, 7) * 5 + (1, 2)):
        want = interpret(mod, "main", sizes)
        np.testing.assert_array_equal(machine["main"](sizes), want)


def test_fused_kernels_take_it_once() -> None:
    mod = module(
        f'x = R.full(R.shape([{WHOLE}]), R.const(2.0), "float32")',
        "y = R.exp(R.add(x, R.const(1.0)))",
        f"z = R.reshape(y, R.shape([1, {WHOLE}]))",
        "w = R.concat((z, z), axis=0)",
        "return w",
    )
    machine = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -mcpu=x86-64", cache=False))
    sizes = tuple(range(1, COUNT + 1))
    got = machine["main"](sizes)
    np.testing.assert_allclose(got, np.full((2, sum(sizes)), np.exp(3.0)), rtol=1e-6)


def test_prefixes_that_share_sizes_stay() -> None:
    """n0 + … + n15 and n0 + … + n16 are two numbers: the kernel needs their difference."""
    prefix = " + ".join(NAMES[:-1])
    mod = module(
        f'x = R.zeros(R.shape([{prefix}]), "float32")',
        f'y = R.full(R.shape([{WHOLE}]), R.const(1.0), "float32")',
        f"z = R.strided_slice(y, axes=[0], begin=[0], end=[{prefix}])",
        "w = R.add(x, z)",
        "return w",
    )
    machine = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -mcpu=x86-64", cache=False))
    sizes = tuple(range(COUNT))
    np.testing.assert_array_equal(machine["main"](sizes), np.ones(sum(sizes[:-1]), "float32"))


def test_a_sum_that_is_negative_is_an_error() -> None:
    less = " - ".join(NAMES)
    mod = module(f'y = R.zeros(R.shape([{less}]), "float32")', "return y")
    machine = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -mcpu=x86-64", cache=False))
    assert machine["main"]((COUNT, *(1,) * (COUNT - 1))).shape == (1,)
    with pytest.raises(RelaxError, match="negative"):
        machine["main"]((0, *(1,) * (COUNT - 1)))
    with pytest.raises(RelaxError):
        machine["main"]((1 << 62,) * COUNT)


def test_a_program_that_is_called_in_another_way_stays() -> None:
    mod = relaxpy.parse(_OTHERWISE.replace("SUM", " + ".join("abc")).replace("SIZES", "a, b, c"))
    assert JoinSizes(many=3)(mod) is mod


_OTHERWISE = """
@I.ir_module
class Module:
    @T.prim_func
    def ones(y: T.Buffer(("SUM",), "float32"), a: T.int64, b: T.int64, c: T.int64):
        for i in range(SUM):
            with T.sblock("ones"):
                vi = T.axis.spatial(SUM, i)
                y[vi] = T.float32(1)

    @R.function(pure=False)
    def main(s: R.Shape(["a", "b", "c"])) -> R.Tensor(("SUM",), "float32"):
        SIZES = T.int64(), T.int64(), T.int64()
        cls = Module
        y = R.memory.alloc_tensor(R.shape([SUM]), dtype="float32")
        _ = R.vm.call_dps(cls.ones, y, R.prim_value(a), R.prim_value(b), R.prim_value(c))
        return y
"""


def test_example() -> None:
    check_example(JoinSizes(many=3))


def test_growth_is_linear() -> None:
    """LLVM's part of the time: the code has no more instructions for more sizes."""

    def size(count: int) -> int:
        names = [f"n{i}" for i in range(count)]
        text = (
            "@I.ir_module\nclass Module:\n    @R.function\n"
            f"    def main(s: R.Shape({names})):\n"
            f"        {', '.join(names)} = {', '.join(['T.int64()'] * count)}\n"
            f"        y = R.zeros(R.shape([{' + '.join(names)}]), 'float32')\n        return y\n"
        )
        exe = relaxpy.build(relaxpy.parse(text), "llvm -mcpu=x86-64", cache=False)
        line = next(line for line in exe.as_text().splitlines() if "bytes of object code" in line)
        return int(line.split(" bytes")[0].split()[-1])

    assert size(20) == size(80)
