"""Intervals hold every value that the program computes, and what may wrap is told from what may not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.script.parser import parse
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.numerics.defined import with_defined_results
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.ranges import Ranges, limits
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import walk

TARGET = Target.parse("llvm -opt-level=0")
TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")


def expression(rng: random.Random, dtype: str, depth: int) -> str:
    """Integer arithmetic on the loop i, the size n and literals."""
    kind = rng.randrange(2 if depth == 0 else 9)
    if kind == 0:
        wide = "int16" if dtype == "int64" else dtype  # 64 bits are taken not to wrap
        least, most = limits(wide) or (0, 0)
        return f"T.{dtype}({rng.choice((0, 1, 2, 3, 7, 100, least, most, least + 1, max(-1, least), max(-2, least)))})"
    if kind == 1:
        return f"T.Cast('{dtype}', {rng.choice(('i', 'i', 'n'))})"
    if kind == 2:
        return f"T.Cast('{dtype}', {expression(rng, rng.choice(TYPES), depth - 1)})"
    a, b = (expression(rng, dtype, depth - 1) for _ in range(2))
    forms = (
        "({a} + {b})", "({a} - {b})", "({a} * {b})", "T.min({a}, {b})", "T.max({a}, {b})", "({a} // {b})", "({a} % {b})",
        "T.truncdiv({a}, {b})", "T.truncmod({a}, {b})", "T.bitwise_and({a}, {b})", "T.Select({a} < {b}, {a}, {b})",
    )  # fmt: skip
    return rng.choice(forms).format(a=a, b=b)


def program(value: str, dtype: str) -> PrimFunc:
    found = parse(f"""@T.prim_func
def main(x: T.Buffer(("n",), "int8"), y: T.Buffer((300,), "{dtype}")):
    n = T.int64()
    for i in range(300):
        y[i] = {value}
""")["main"]
    assert isinstance(found, PrimFunc)
    return found


def stored(func: Any) -> Any:
    found: list[Any] = []
    walk(func.body, (tirx.BufferStore, lambda store: found.append(store.value)))
    return found[0]


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_within(dtype: str) -> None:
    rng = random.Random(dtype)
    made: dict[str, PrimFunc] = {}
    texts: list[str] = []
    while len(made) < 20:
        text = expression(rng, dtype, 2)
        try:
            made[f"k{len(made)}"] = program(text, dtype)
        except RelaxError:
            continue  # a division by the literal 0
        texts.append(text)
    defined = {name: PrimFunc(with_defined_results(found.func)) for name, found in made.items()}
    kernels = Kernels(defined, TARGET, schedule=False)
    for (name, found), text in zip(made.items(), texts, strict=True):
        low, high = Ranges(found.func).of(stored(found.func))
        for n in (0, 1, 131, 300):
            y = np.zeros(300, dtype)
            kernels.run(name, [np.zeros(n, np.int8)], [y])
            assert low <= int(y.min()), (text, n)
            assert int(y.max()) <= high, (text, n)


WRAPS = {
    'T.Cast("int8", i)': True,
    'T.Cast("int16", i)': False,
    'T.Cast("uint8", i)': True,
    'T.Cast("uint16", i)': False,
    'T.Cast("uint16", i - 1)': True,
    'T.Cast("int8", i % 128)': False,
    'T.Cast("int8", i % 129)': True,
    'T.Cast("int8", T.min(i, 127))': False,
    'T.Cast("int8", T.bitwise_and(i, 127))': False,
    'T.Cast("int32", i) * 1000': False,
    'T.Cast("int32", i) * 10000000': True,
    'T.Cast("int16", i) * T.int16(109)': False,
    'T.Cast("int16", i) * T.int16(110)': True,
    'T.Cast("int16", i // 2) + T.int16(32618)': False,
    'T.Cast("int16", i // 2) + T.int16(32619)': True,
    'T.Cast("int8", i % 128) * T.int8(-1) + T.int8(-1)': False,
    'T.Cast("int8", i % 128) * T.int8(-1) + T.int8(-2)': True,
    "n * n * i": False,
    "i * i * i": True,
    "n * n * n * n * i": False,
    "n * n * n * n * n": True,
}


@pytest.mark.parametrize("text", WRAPS)
def test_what_wraps(text: str) -> None:
    """Loops of 300, to the last number that fits. Of 64 bits, high powers do not."""
    func = program(f'T.Cast("int64", {text})', "int64").func
    assert Ranges(func).wraps(inner(stored(func))) is WRAPS[text]


def test_literals_of_one_hash() -> None:
    """A literal hashes as its number does: -1 as -2, and what is a multiple of 2**61 - 1 as 0."""
    ranges = Ranges(program("T.int8(0)", "int8").func)
    for number, dtype in ((0, "int64"), (-1, "int16"), (-2, "int8"), (2**64 - 8, "uint64")):
        assert ranges.of(tirx.const(number, dtype)) == (number, number)


def inner(value: Any) -> Any:
    """What is cast to 64 bits, if TVM did not drop the cast."""
    return value.value if isinstance(value, tirx.Cast) and str(value.ty.dtype) == "int64" else value


def test_coefficients_beyond_64_bits() -> None:
    """TVM's analyser multiplies out, and cannot: such an index is checked when it runs, and only elements are read."""
    index = "v"
    for _ in range(45):
        index = f"({index} * 3 + n)"
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                y[v] = x[{index} % n]
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "float32"))
""")
    exe = relaxpy.build(mod, "llvm -opt-level=0", cache=False)
    got = relaxpy.VirtualMachine(exe)["main"](np.arange(7, dtype="float32") + 3).numpy()
    assert set(got.tolist()) <= {3, 4, 5, 6, 7, 8, 9}
