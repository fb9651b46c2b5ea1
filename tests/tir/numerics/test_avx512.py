"""The instructions of AVX-512, on processors that have them, for vectors of any width."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy.backend.cpu.compile import compile_source
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.numerics import avx512
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, Program
from relaxpy.tir.programs.vectors import vectorise
from relaxpy.tir.tvm import tirx
from tests.sweeps import FULL, optimised, sweep

pytestmark = pytest.mark.skipif(
    not CpuTarget.host().has_avx512, reason="needs a processor with AVX-512"
)
WIDTHS = [1, 2, 8, 16, 24, 32, 64]


def applied(
    function: Callable[[Expr], Expr], x: np.ndarray, dtype: str, lanes: int = 16
) -> np.ndarray:
    """A function of all numbers, so many at a time."""
    found = np.zeros(x.size, dtype)
    func = PrimFunc(program(function, x.size, dtype, lanes))
    Kernels({"k": func}, schedule=False).run("k", [x], [found])
    return found


def program(function: Callable[[Expr], Expr], size: int, dtype: str, lanes: int) -> Any:
    """Its tensor program."""
    shape = [loops.int64(size)]
    source = tirx.decl_buffer(shape, "float32", "x", layout=None)
    target = tirx.decl_buffer(shape, dtype, "y", layout=None)
    p = Program()
    read, out = p.flat_view(source), p.flat_view(target)
    with p.loop("n", size // lanes) as n:
        at = p.let("at", n * lanes)
        stmt = vectorise(
            lambda lane: tirx.BufferStore(
                out, function(tirx.BufferLoad(read, [at + lane])), [at + lane]
            ),
            lanes,
        )
        assert stmt is not None
        p.add(stmt)
    return loops.finished(tirx.PrimFunc([source, target], tirx.Evaluate(loops.int64(0))), p.body())


def floats(step: int) -> np.ndarray:
    """Every `step`-th float32, and special ones: NaN of all kinds, infinities, zeros, ties."""
    bits = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32)
    odd = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x80000000, 1, 0])
    ties = np.arange(0x3F800000, 0x3F880000, 0x8000)
    every = np.concatenate([bits, odd.astype(np.uint32), ties.astype(np.uint32)])
    return np.resize(every, -(-every.size // 192) * 192).view(np.float32)


def short(x: np.ndarray) -> np.ndarray:
    """The numbers, with the lower half of each NaN cleared, or 1 where nothing else is left."""
    cleared = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.where(np.isnan(cleared), cleared, 1), x).astype(np.float32)


@sweep
@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize("of_short", [False, True])
def test_nearest_bfloat16(lanes: int, of_short: bool) -> None:
    """As ml_dtypes rounds; NaN stays NaN, whatever its bits, or if its lower half is 0."""
    x = floats(1009 if FULL else 100_003)
    x = short(x) if of_short else x
    nearest = avx512.nearest_of_short if of_short else avx512.nearest_bfloat16
    bits = applied(nearest, x, "uint32", lanes)
    found = (bits >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
    known = ~np.isnan(x)
    assert (np.signbit(found) == np.signbit(expected))[known].all()


@pytest.mark.parametrize("lanes", WIDTHS)
def test_fraction_and_scaled(lanes: int) -> None:
    x = np.resize(
        np.array([0.0, 0.25, -0.25, 3.75, -3.75, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32),
        192,
    )
    finite = np.where(np.isfinite(x), x, 0)
    expected = np.where(np.isnan(x), np.nan, finite - np.floor(finite))
    np.testing.assert_array_equal(applied(avx512.fraction, x, "float32", lanes), expected)
    three = tirx.FloatImm("float32", 3.0)
    with np.errstate(over="ignore"):
        expected = np.float32(3) * np.exp2(np.floor(x))
    found = applied(lambda value: avx512.scaled(three, value), x, "float32", lanes)
    np.testing.assert_array_equal(found, expected)


@optimised
@pytest.mark.parametrize("function", [avx512.exp_float32, avx512.sigmoid_float32])
def test_loops_over_numbers_become_vectors(function: Callable[[Expr], Expr]) -> None:
    """LLVM makes them of arithmetic, but not of the instructions, which would compute each number in 16 lanes. For
    Intel's processors it makes shorter ones."""
    target = CpuTarget.read("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4")
    text = compile_source({"k": program(function, 192, "float32", 1)}, target)
    assert "vscalef" not in text
    assert re.search(r"vfmadd\S+ps.*%zmm", text)


@sweep(3)
@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize(
    ("function", "reference"), [(avx512.larger, np.maximum), (avx512.smaller, np.minimum)]
)
def test_extrema(function: Any, reference: Any, lanes: int) -> None:
    """NaN if either is NaN, whatever its bits."""
    special = [0.0, 1.5, -2.0, np.inf, -np.inf, np.nan]
    odd = np.array([0x7F800001, 0xFFFFFFFF, 1], np.uint32).view(np.float32)
    numbers = np.concatenate([np.array(special, np.float32), odd])
    x = np.resize(numbers, 192)
    for other in numbers:
        bits = tirx.const(int(other.view(np.uint32)) | 1, "uint32")  # of a NaN
        constant = tirx.FloatImm("float32", float(other))
        constant = tirx.reinterpret("float32", bits) if np.isnan(other) else constant
        with np.errstate(invalid="ignore"):
            expected = reference(x, other)
        for a_first in (True, False):

            def joined(value: Expr, a_first: bool = a_first, other: Expr = constant) -> Expr:
                return function(value, other) if a_first else function(other, value)

            np.testing.assert_array_equal(applied(joined, x, "float32", lanes), expected)


NARROW = {
    "exp": (avx512.exp_narrow, np.exp),
    "sigmoid": (avx512.sigmoid_narrow, lambda x: 1 / (1 + np.exp(-x))),
}


@pytest.mark.parametrize("name", sorted(NARROW))
def test_functions_whose_results_are_narrow(name: str) -> None:
    """17 bits of all results that are normal numbers; small ones to the least."""
    function, reference = NARROW[name]
    x = floats(3001 if FULL else 10_007)
    found = applied(function, x, "float32")
    with np.errstate(over="ignore", invalid="ignore"):
        expected = reference(x.astype(np.float64))
        rounded = expected.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
    known = ~np.isnan(x)
    # The largest number and infinity may be exchanged.
    largest = np.finfo(np.float32).max
    known &= rounded < largest * (1 - 2.0**-17)
    error = np.abs(found[known].astype(np.float64) - expected[known])
    assert (error <= expected[known] * 2.0**-17 + 1.5e-45).all()
    assert (found[rounded == np.inf] >= largest * (1 - 2.0**-17)).all()
    assert (found[x == 0] == reference(0.0)).all()
