"""Divisions by 0 give 0, the smallest integer by -1 is itself, and the process lives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relaxpy import VirtualMachine, build
from relaxpy.script.parser import parse
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.lowering.traps import without_traps
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import te, tvm_ffi
from tests.backend.support import Kernel, compute, n, over, tensor
from tests.sweeps import part, sweep


@pytest.mark.parametrize("divisor", [0, 1, 3])
def test_divisions_by_a_size(divisor: int) -> None:
    """In a program that divides by it though no loop runs, and one whose buffer has that size."""
    mod = parse("""
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def main(x: T.Buffer(("n",), "float32"), y: T.Buffer((7,), "int64"), k: T.int64):
        n = T.int64()
        parts = T.sblock_alloc_buffer((7 // k,), "float32")
        for i in range(7 // k):
            with T.sblock("parts"):
                v = T.axis.spatial(7 // k, i)
                parts[v] = T.Cast("float32", v)
        for i in range(7):
            with T.sblock("y"):
                v = T.axis.spatial(7, i)
                y[v] = v // n + v % n
""")
    program = mod["main"]
    assert isinstance(program, PrimFunc)
    out = np.full(7, -1)
    for schedule in (True, False):
        Kernels({"main": program}, schedule=schedule).run(
            "main", [np.ones(divisor, "float32")], [out], [divisor]
        )
        expected = [v // divisor + v % divisor if divisor else 0 for v in range(7)]
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("size", [0, 1, 5, 363])
def test_a_buffer_of_a_condition_whose_size_divides(tmp_path: Path, size: int) -> None:
    """A long reduction, in blocks: TVM allocates their results outside of the condition that it is long."""
    x, y = tensor(2, n, n), tensor(n, n, name="y")
    i, j, k = over(2, "i"), over(n, "j"), over(n, "k")
    total = compute((), lambda: te.sum(x[i, j, k] * y[j, k], axis=[i, j, k]))
    kernel = Kernel(tmp_path, [x, y, total], Target.parse("llvm -opt-level=0"))
    a, b = np.ones((2, size, size), "float32"), np.ones((size, size), "float32")
    np.testing.assert_array_equal(kernel(a, b, out=()), np.float32(2 * size * size))


DIVISIONS: dict[str, Callable[[int, int], int]] = {
    "{a} // {b}": lambda a, b: a // b,
    "{a} % {b}": lambda a, b: a % b,
    "T.truncdiv({a}, {b})": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "T.truncmod({a}, {b})": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}
SIGNED = ("int8", "int16", "int32", "int64")


def wrapped(value: int, dtype: str) -> int:
    """The integer of a type with the same low bits."""
    least, count = int(np.iinfo(dtype).min), 1 << np.iinfo(dtype).bits
    return (value - least) % count + least


@sweep(2)
@pytest.mark.parametrize("schedule", [True, False])
@pytest.mark.parametrize("dtype", SIGNED)
def test_the_smallest_integer_by_minus_1(dtype: str, schedule: bool) -> None:
    """All divisions of elements by elements, and by a literal; 0 by 0."""
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    some = (least, least + 1, -7, -1, 0, 1, 2, 7, most)
    pairs = [(a, b) for a in some for b in some]
    programs: dict[str, PrimFunc] = {}
    for k, text in enumerate(DIVISIONS):
        for kind, divisor in (("elements", "y[v]"), ("literal", f"T.{dtype}(-1)")):
            buffers = ", ".join(f'{name}: T.Buffer(("n",), "{dtype}")' for name in "xyz")
            found = parse(f"""@T.prim_func
def main({buffers}):
    n = T.int64()
    for i in range(n):
        with T.sblock("z"):
            v = T.axis.spatial(n, i)
            z[v] = {text.format(a="x[v]", b=divisor)}
""")["main"]
            assert isinstance(found, PrimFunc)
            programs[f"{kind}{k}"] = found
    kernels = Kernels(programs, Target.parse("llvm -opt-level=0"), schedule=schedule)
    x, y = np.array(pairs, dtype).T.copy()
    for k, (text, python) in enumerate(DIVISIONS.items()):
        z = np.full(len(pairs), 99, dtype)
        kernels.run(f"elements{k}", [x, y], [z])
        want = [wrapped(python(a, b), dtype) if b else 0 for a, b in pairs]
        assert z.tolist() == want, text
        kernels.run(f"literal{k}", [x, y], [z])
        assert z.tolist() == [wrapped(python(a, -1), dtype) for a, _ in pairs], text


@pytest.mark.parametrize("dtype", SIGNED)
def test_indices_of_the_smallest_integer_by_minus_1(dtype: str) -> None:
    """The index is checked or computed; the process lives."""
    programs: dict[str, PrimFunc] = {}
    for k, text in enumerate(DIVISIONS):
        index = text.format(a="x[v]", b="y[v]")
        inside = f'T.max(T.min(T.Cast("int64", {index}), n - 1), 0)'
        found = parse(f"""@T.prim_func
def main(x: T.Buffer(("n",), "{dtype}"), y: T.Buffer(("n",), "{dtype}"), z: T.Buffer(("n",), "{dtype}")):
    n = T.int64()
    for v in range(n):
        z[v] = x[{inside}]
""")["main"]
        assert isinstance(found, PrimFunc)
        programs[f"k{k}"] = found
    kernels = Kernels(programs, Target.parse("llvm -opt-level=0"))
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    x, y = np.array([(least, -1), (least, 0), (7, 3), (most, -1), (2, 1)], dtype).T.copy()
    for k, python in enumerate(DIVISIONS.values()):
        z = np.full(5, 99, dtype)
        kernels.run(f"k{k}", [x, y], [z])
        places = [
            wrapped(python(a, b), dtype) if b else 0
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
        assert z.tolist() == [int(x[max(min(p, 4), 0)]) for p in places]


@pytest.mark.parametrize("division", DIVISIONS)
def test_chains_of_divisions(division: str) -> None:
    """A guard names its operands: the kernel does not double with each division."""
    value = "x[v]"
    for _ in range(24):
        value = f"({division.format(a=value, b='y[v]')} + x[v])"
    found = parse(f"""@T.prim_func
def main(x: T.Buffer((3,), "int32"), y: T.Buffer((3,), "int32"), z: T.Buffer((3,), "int32")):
    for v in range(3):
        z[v] = {value}
""")["main"]
    assert isinstance(found, PrimFunc)
    x, y, z = np.array([[100, -7, 5], [3, 2, 0], [0, 0, 0]], "int32")
    Kernels({"main": found}, Target.parse("llvm -opt-level=0")).run("main", [x, y], [z])
    python = DIVISIONS[division]
    for a, b, got in zip(x.tolist(), y.tolist(), z.tolist(), strict=True):
        want = a
        for _ in range(24):
            want = (python(want, b) if b else 0) + a
        assert got == want


@sweep
@pytest.mark.parametrize("dtype", part(["int64", "int8"], 2))
def test_chains_of_operators(dtype: str) -> None:
    """Operators have guards of their own, and the rest of a row is read by masks: nothing doubles with each."""
    steps = "    x = (x + y) % y\n" * 24
    mod = parse(f"""@R.function
def main(x: R.Tensor(("n",), "{dtype}"), y: R.Tensor(("n",), "{dtype}")):
{steps}    return x
""")
    info = np.iinfo(dtype)
    x = np.array([info.min, 100, -7, 0, 5] * 4, dtype)
    y = np.array([-1, 3, 2, 9, 0] * 4, dtype)
    machine = VirtualMachine(build(mod, "llvm -opt-level=0", cache=False))
    np.testing.assert_array_equal(machine["main"](x, y).numpy(), interpret(mod, "main", x, y))


@pytest.mark.parametrize("value", ["x[v]", "(n - v * 3)", "T.Cast('int64', w[v])"])
def test_guards_are_put_once(value: str) -> None:
    """Programs of devices come here twice: a size that a guard has made at least 1 is still a size, and no -1."""
    found = parse(f"""@T.prim_func
def main(x: T.Buffer(("n",), "int64"), w: T.Buffer(("n",), "uint16"), z: T.Buffer(("n",), "int64")):
    for v in range(n):
        z[v] = {value} % n // (n + 2) % 7
""")["main"]
    assert isinstance(found, PrimFunc)
    once = without_traps(found.func)
    assert tvm_ffi.structural_equal(without_traps(once), once)
