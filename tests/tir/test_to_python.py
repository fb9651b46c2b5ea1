"""Tensor programs as Python: what the generated operator tests do not reach."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import PassError, RuntimeCheckError
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.to_python import python_source, to_python

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n@I.ir_module\nclass Module:\n"


def program(text: str) -> PrimFunc:
    body = "\n".join("    " + line for line in text.strip().splitlines())
    found = relaxpy.parse(HEADER + body + "\n")["f"]
    assert isinstance(found, PrimFunc)
    return found


DIVIDE = """
@T.prim_func
def f(x: T.Buffer(("n",), "int32"), y: T.Buffer(("n",), "int32"), o: T.Buffer(("n",), "int32")):
    n = T.int64()
    for i in range(n):
        with T.sblock("b"):
            vi = T.axis.spatial(n, i)
            o[vi] = x[vi] // y[vi] * 100 + x[vi] % y[vi]
"""


def test_division_by_zero_is_zero() -> None:
    """In Python as in machine code, where it would end the process."""
    x, y = np.array([7, -7, 5, 3], np.int32), np.array([0, 2, 0, -2], np.int32)
    slow, fast = np.zeros(4, np.int32), np.zeros(4, np.int32)
    to_python(program(DIVIDE).func)(x, y, slow)
    Kernels({"f": program(DIVIDE)}).run("f", [x, y], [fast])
    np.testing.assert_array_equal(slow, [0, -399, 0, -201])
    np.testing.assert_array_equal(fast, slow)


def test_remainders_of_floats() -> None:
    """`T.truncmod` is C's fmod: the sign of the first, NaN for a remainder by 0."""
    text = """
@T.prim_func
def f(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32"), o: T.Buffer((8,), "float32")):
    for i in range(8):
        o[i] = T.truncmod(x[i], y[i])
"""
    x = np.array([1.25, -1.25, 7.5, -7.5, 5, 0, np.inf, 3], np.float32)
    y = np.array([2, 2, -2, 0.7, 0, 3, 2, np.inf], np.float32)
    slow, fast = np.zeros(8, np.float32), np.zeros(8, np.float32)
    Kernels({"f": program(text)}).run("f", [x, y], [fast])
    with np.errstate(invalid="ignore"):
        to_python(program(text).func)(x, y, slow)
        np.testing.assert_array_equal(slow, np.fmod(x, y))
    np.testing.assert_array_equal(fast, slow)


NESTED = """
@T.prim_func
def f(x: T.Buffer((2, 3, "n"), "float32"), o: T.Buffer((2,), "float32"), p: T.Buffer((2, 3), "float32")):
    n = T.int64()
    t = T.sblock_alloc_buffer((2, 3), "float32")
    for i in range(2):
        for j in range(3):
            for k in range(n):
                with T.sblock("inner"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        t[vi, vj] = T.float32(0)
                    t[vi, vj] = t[vi, vj] + x[vi, vj, vk]
    for i, j in T.grid(2, 3):
        with T.sblock("copy"):
            vi, vj = T.axis.remap("SS", [i, j])
            p[vi, vj] = T.if_then_else(t[vi, vj] > T.float32(0), T.exp(t[vi, vj]), T.float32(0))
    for j, i in T.grid(3, 2):
        with T.sblock("outer"):
            vj, vi = T.axis.remap("RS", [j, i])
            with T.init():
                o[vi] = T.float32(-10)
            o[vi] = T.max(o[vi], t[vi, vj])
"""


@pytest.mark.parametrize("n", [0, 1, 4])
def test_reductions_in_any_order(n: int) -> None:
    """The initial value is written before the outermost loop that reduces, over nothing too."""
    x = np.random.default_rng(n).normal(size=(2, 3, n)).astype(np.float32)
    o, p = np.zeros(2, np.float32), np.zeros((2, 3), np.float32)
    to_python(program(NESTED).func)(x, o, p)
    t = x.sum(2)
    np.testing.assert_allclose(o, t.max(1), rtol=1e-5)
    np.testing.assert_allclose(p, np.where(t > 0, np.exp(t), 0), rtol=1e-5)


def test_wrong_arguments() -> None:
    with pytest.raises(RuntimeCheckError, match="x is a buffer"):
        to_python(program(NESTED).func)(
            np.zeros((2, 4, 1), np.float32), np.zeros(2, np.float32), np.zeros((2, 3), np.float32)
        )


OUTSIDE = """
@T.prim_func
def f(x: T.Buffer((4,), "float32"), o: T.Buffer((4,), "float32")):
    for i in range(4):
        o[i] = x[i - 1]
"""


def test_reading_outside() -> None:
    """Python would take the last element."""
    with pytest.raises(
        RuntimeCheckError, match="index -1 is out of bounds for dimension 0 of x, of extent 4"
    ):
        to_python(program(OUTSIDE).func)(np.zeros(4, np.float32), np.zeros(4, np.float32))


def test_what_has_no_translation() -> None:
    text = OUTSIDE.replace("x[i - 1]", 'T.call_pure_extern("float32", "lgammaf", x[i])')
    with pytest.raises(PassError, match="cannot be interpreted"):
        to_python(program(text).func)


def test_source_is_readable() -> None:
    assert "for v" in python_source(program(OUTSIDE).func)


CONDITIONAL = """
@T.prim_func
def f(x: T.Buffer(("n", 4), "float32"), o: T.Buffer((4,), "float32")):
    n = T.int64()
    for k, i in T.grid(n, 4):
        with T.sblock("inner"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                o[vi] = T.float32(1)
            if x[vk, vi] > T.float32(0):
                o[vi] = o[vi] * x[vk, vi] + T.float32(1)
"""


@pytest.mark.parametrize("n", [0, 1, 4])
def test_initial_values_in_machine_code(n: int) -> None:
    """A reduction that no schedule rule knows, over nothing too."""
    x = np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)
    slow, fast = np.zeros(4, np.float32), np.zeros(4, np.float32)
    to_python(program(CONDITIONAL).func)(x, slow)
    Kernels({"f": program(CONDITIONAL)}).run("f", [x], [fast])
    np.testing.assert_allclose(fast, slow, rtol=1e-6)
    assert (n > 0) or (slow == 1).all()
