"""Integers at their edges: compiled kernels beside Python's own unbounded integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relaxpy.ir.dim import SymVar
from relaxpy.ir.dtype import DType
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.numerics import integer, scalar
from relaxpy.tir.prim_func import PrimFunc
from tests.sweeps import sweep

N = SymVar("n").dim


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def left(a: int, b: int, bits: int) -> int:
    return a << b if 0 <= b < bits else 0


def right(a: int, b: int, bits: int) -> int:
    return a >> b if 0 <= b < bits else -(a < 0)


def power(a: int, b: int, bits: int) -> int:
    if b < 0:
        return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)
    return pow(a, b, 1 << bits)


EXPECTED: dict[str, Callable[[int, int, int], int]] = {
    "divide": lambda a, b, _: truncated(a, b) if b else 0,
    "mod": lambda a, b, _: a - truncated(a, b) * b if b else 0,
    "floor_divide": lambda a, b, _: a // b if b else 0,
    "floor_mod": lambda a, b, _: a % b if b else 0,
    "left_shift": left,
    "right_shift": right,
    "power": power,
    "negative": lambda a, _, __: -a,
    "absolute": lambda a, _, __: abs(a),
}
"""The exact result, of the integers and the width: what the kernels give modulo 2**bits."""


def kernel(name: str, dtype: str) -> PrimFunc:
    a, b = (te.placeholder((N,), dtype, x) for x in "ab")
    if name == "power":
        return PrimFunc.from_te([a, b], [integer.power(a, b, [N], [[N], [N]])])
    count = 1 if name in ("negative", "absolute") else 2
    function = getattr(scalar, name)
    return PrimFunc.from_te(
        [a, b], [te.compute((N,), lambda i: function(*[x(i) for x in (a, b)][:count]))]
    )


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of 8 bits; for the others every pair of what is near 0, the width and the ends."""
    low, high = integer.integer_range(dtype)
    near = [*range(-5, 6), 31, 32, 33, 63, 64, 65, 46341, 3**20, 3**40]
    ends = [end + i for end in (low, high) for i in range(-2, 3)]
    every = range(low, high + 1) if dtype.bits == 8 else sorted({*near, *ends})
    values = np.array([v for v in every if low <= v <= high], dtype.numpy)
    a, b = np.meshgrid(values, values)
    return np.ascontiguousarray(a.ravel()), np.ascontiguousarray(b.ravel())


def wrapped(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


@sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_beside_python(name: str) -> None:
    dtype = DType(name)
    kernels = Kernels({function: kernel(function, name) for function in EXPECTED})
    a, b = pairs(dtype)
    for function, exact in EXPECTED.items():
        out: Any = np.empty_like(a)
        kernels.run(function, [a, b], [out])
        expected = [
            wrapped(exact(x, y, dtype.bits), dtype)
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        wrong = np.flatnonzero(out != np.array(expected, dtype.numpy))
        assert not len(wrong), (function, a[wrong[0]], b[wrong[0]], out[wrong[0]])
