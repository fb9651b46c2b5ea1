"""Quotients and remainders in indices: elements are those that Python's arithmetic names, whatever TVM's flattening
makes of the index."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from relaxpy.build.build import build
from relaxpy.runtime import VirtualMachine
from relaxpy.script.parser import parse
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from tests.sweeps import sweep


def truncdiv(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def truncmod(a: int, b: int) -> int:
    return a - truncdiv(a, b) * b


PYTHON = {"T": SimpleNamespace(truncdiv=truncdiv, truncmod=truncmod)}

LOOPS = {
    "plain": """
for i in range(11):
    y[i] = {value}
""",
    "a block": """
for k in range(11):
    with T.sblock("y"):
        i = T.axis.spatial(11, k)
        y[i] = {value}
""",
    "two nests": """
for k in range(11):
    with T.sblock("zero"):
        i = T.axis.spatial(11, k)
        y[i] = T.int64(0)
for i in range(11):
    y[i] = y[i] + {value}
""",
    "an offset": """
for k in range(3, 14):
    i: T.let[T.int64] = k - 3
    y[k - 3] = {value}
""",
}
FIRST = 40
"""The place of the element 0: quotients may be negative."""


def program(loops: str, index: str, from_0: bool) -> PrimFunc:
    """A program whose 11 results are elements at indices."""
    size, index = ('"n"', index) if from_0 else (str(2 * FIRST), f"{index} + {FIRST}")
    text = f"""@T.prim_func
def main(x: T.Buffer(({size},), "int64"), z: T.Buffer(("n", "m"), "int64"), y: T.Buffer((11,), "int64")):
    n, m = T.int64(), T.int64()
"""
    body = LOOPS[loops].format(value=f"x[{index}]").strip()
    found = parse(text + "\n".join(f"    {line}" for line in body.splitlines()))["main"]
    assert isinstance(found, PrimFunc)
    return found


def indices() -> Iterator[tuple[str, bool]]:
    """Indices of i, n and m, and whether all of them are from 0 to n - 1."""
    offsets = (-7, 0, 2)
    for c in offsets:
        inner = [f"({c} - i)", f"(i + {c})", f"({c} - 2 * i)", f"({c} + 3 * i)", f"(n - i + {c})"]
        for a in inner:
            yield f"{a} % n", True
            yield f"T.truncmod({a}, n)", False
            yield f"{a} // n", False
            yield f"T.truncdiv({a}, n)", False
    for c in offsets:
        for a in (f"({c} - i)", f"(i - {c})"):
            yield f"{a} // 7 // 5", False
            yield f"{a} // 3 % n", True
            yield f"({a} % m) // n", False
            yield f"({a} // n * n + {a} % n)", False
            yield f"({a} % 4 - i) % n", True
            yield f"{a} % -3", False
            yield f"{a} // -3", False
            yield f"T.truncmod(T.truncdiv({a}, 3), m)", False
            yield f"({a} % n + {a} // m) % n", True


@sweep(4)
@pytest.mark.parametrize("loops", LOOPS)
def test_elements_are_those_of_the_index(loops: str) -> None:
    cases = list(indices())
    programs = {f"k{k}": program(loops, *case) for k, case in enumerate(cases)}
    kernels = Kernels(programs, Target.parse("llvm -opt-level=0"))
    wrong: list[str] = []
    for n, m in ((1, 1), (2, 5), (3, 2), (5, 3), (7, 7), (13, 4)):
        for k, (index, from_0) in enumerate(cases):
            x = np.arange(n) if from_0 else np.arange(2 * FIRST) - FIRST
            y = np.full(11, 99)
            kernels.run(f"k{k}", [x, np.zeros((n, m), np.int64)], [y])
            want = [eval(index, {"i": i, "n": n, "m": m, **PYTHON}) for i in range(11)]
            if y.tolist() != want:
                wrong.append(f"{index} for n = {n}, m = {m}: {y.tolist()}, not {want}")
    assert not wrong, "\n".join(wrong)


NO_ELEMENTS = ("T.max(0, -n)", "T.max(0, T.min(n, T.max(0, m - 3)) * -1)", "T.min(0, n * m)")


@pytest.mark.parametrize("target", ["llvm -opt-level=0", "llvm"])
def test_dimensions_that_are_0_whatever_the_sizes_are(target: str) -> None:
    """`relaxpy fuzz` found it for x[:, k:0]: TVM divides by such a dimension."""
    results = "".join(
        f'        y{k} = R.zeros(R.shape([n, {size}]), "int64")\n'
        for k, size in enumerate(NO_ELEMENTS)
    )
    mod = parse(f"""@I.ir_module
class M:
    @R.function
    def f(x: R.Tensor(("n * n", "n"), "int64"), s: R.Prim(value="k"), z: R.Tensor(("m",), "int64")):
        n, m, k = T.int64(), T.int64(), T.int64()
{results}        cut = R.strided_slice(x, R.shape([1]), R.shape([k]), R.shape([0]), R.shape([1]))
        return (y0, y1, y2, cut, R.concat((cut, x), axis=1))
""")
    vm = VirtualMachine(build(mod, target))
    x = np.arange(27).reshape(9, 3)
    for start in (-4, -1, 0, 2, 5):
        *nothing, cut, whole = vm["f"](x, start, np.zeros(5, np.int64))
        assert [tuple(y.shape) for y in nothing] == [(3, 0)] * len(NO_ELEMENTS)
        assert tuple(cut.shape) == (9, 0)
        np.testing.assert_array_equal(whole, x)


@pytest.mark.parametrize("divisor", [2**31, 2**62, 2**63 - 1, -(2**62)])
def test_divisors_that_no_product_of_divisors_holds(divisor: int) -> None:
    """`relaxpy fuzz` found it: passes make `a % (2 * c) // 2` of `a // 2 % c`."""
    values = [f"(n - i) // {k} {op} T.int64({divisor})" for k in (2, 7) for op in ("%", "//")] + [
        f"T.{f}(T.{f}(i - n, 3), T.int64({divisor}))" for f in ("truncdiv", "truncmod")
    ]
    programs: dict[str, PrimFunc] = {}
    for k, value in enumerate(values):
        found = parse(f"""@T.prim_func
def main(x: T.Buffer(("n",), "int64"), y: T.Buffer(("n",), "int64")):
    n = T.int64()
    for i in range(n):
        y[i] = {value}
""")["main"]
        assert isinstance(found, PrimFunc)
        programs[f"k{k}"] = found
    kernels = Kernels(programs, Target.parse("llvm -opt-level=0"))
    for k, value in enumerate(values):
        y = np.full(7, 99)
        kernels.run(f"k{k}", [np.zeros(7, np.int64)], [y])
        names = {"T": SimpleNamespace(truncdiv=truncdiv, truncmod=truncmod, int64=int), "n": 7}
        assert y.tolist() == [eval(value, names | {"i": i}) for i in range(7)], value
