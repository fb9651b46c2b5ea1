"""Random extents up to 20 000, known and unknown, and random settings of knobs: every kernel computes what numpy does.

Tests of rules have small extents, which are quick, and those around the constants that their authors thought of. Here
extents lie on both sides of whatever constants there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import topi

from relaxpy.backend.registry import backend_of
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import Kernel, compute, f32, i64, over, tensor
from tests.sweeps import part, quick_target, sweep

TARGET = quick_target()
MOST = 1 << 20
"""Elements of a tensor."""


@dataclass
class Program:
    """A program, its arguments, and what numpy gives for them."""

    tensors: Sequence[Any]
    """Inputs, and the output."""
    inputs: Sequence[np.ndarray]
    expected: np.ndarray


class Draw:
    """Draws programs."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def extent(self) -> int:
        """Evenly over orders of magnitude, near a power of two, or small."""
        kind = self.rng.integers(3)
        if kind == 0:
            return int(self.rng.integers(1, 20))
        if kind == 1:
            return int(math.exp(self.rng.uniform(0, math.log(20_000))))
        return max(1, 2 ** int(self.rng.integers(0, 15)) + int(self.rng.integers(-1, 2)))

    def shape(self, rank: int) -> tuple[int, ...]:
        while True:
            shape = tuple(self.extent() for _ in range(rank))
            if math.prod(shape) <= MOST:
                return shape

    def rank(self, low: int = 1) -> int:
        return int(self.rng.integers(low, 5))

    def dims(self, shape: Sequence[int]) -> list[Any]:
        """Some of these extents, and variables for the others."""
        return [
            extent if self.rng.random() < 0.6 else tirx.Var(f"n{axis}", "int64")
            for axis, extent in enumerate(shape)
        ]

    def values(self, *shape: int) -> np.ndarray:
        """Numbers whose sums are exact."""
        return self.rng.integers(-8, 9, shape).astype("float32")

    # Kinds of programs

    def broadcast(self) -> Program:
        shape = self.shape(self.rank())
        dims = self.dims(shape)
        spread = [self.rng.random() < 0.4 for _ in shape]
        other = [1 if one else extent for one, extent in zip(spread, shape, strict=True)]
        x = tensor(*dims)
        y = tensor(*(1 if one else dim for one, dim in zip(spread, dims, strict=True)), name="y")
        out = compute(
            dims,
            lambda *i: x[i] * f32(2.0) + y[tuple(i64(0) if one else j for one, j in zip(spread, i, strict=True))],
        )  # fmt: skip
        a, b = self.values(*shape), self.values(*other)
        return Program([x, y, out], [a, b], a * 2 + b)

    def reduce(self) -> Program:
        shape = self.shape(self.rank())
        x = tensor(*self.dims(shape))
        count = int(self.rng.integers(1, len(shape) + 1))
        axes = tuple(sorted(int(a) for a in self.rng.permutation(len(shape))[:count]))
        a = self.values(*shape)
        ours, theirs = [(topi.sum, np.sum), (topi.max, np.max)][self.rng.integers(2)]
        keeps = bool(self.rng.integers(2))
        return Program([x, ours(x, axes, keeps)], [a], theirs(a, axis=axes, keepdims=keeps))

    def softmax(self) -> Program:
        shape = self.shape(self.rank())
        axis = int(self.rng.integers(len(shape))) if self.rng.random() < 0.4 else len(shape) - 1
        x, a = tensor(*self.dims(shape)), self.values(*shape)
        raised = np.exp(a - a.max(axis, keepdims=True), dtype="float64")
        expected = (raised / raised.sum(axis, keepdims=True)).astype("float32")
        return Program([x, topi.nn.softmax(x, axis)], [a], expected)

    def permute(self) -> Program:
        shape = self.shape(self.rank(2))
        order = [int(axis) for axis in self.rng.permutation(len(shape))]
        x, a = tensor(*self.dims(shape)), self.values(*shape)
        return Program([x, topi.transpose(x, order)], [a], a.transpose(order))

    def concatenate(self) -> Program:
        shape = self.shape(self.rank())
        dims, axis = self.dims(shape), int(self.rng.integers(len(shape)))
        own = shape[axis] if self.rng.random() < 0.5 else int(self.rng.integers(1, 20))
        x = tensor(*dims)
        y = tensor(*dims[:axis], own, *dims[axis + 1 :], name="y")
        a, b = self.values(*shape), self.values(*shape[:axis], own, *shape[axis + 1 :])
        out = topi.concatenate([x, y], axis)
        return Program([x, y, out], [a, b], np.concatenate([a, b], axis))

    def take(self) -> Program:
        rows, width = self.shape(2)
        count = int(self.rng.integers(1, max(2, min(3000, MOST // width))))
        dims = self.dims((rows, width, count))
        x, i = tensor(*dims[:2]), tensor(dims[2], dtype="int64", name="i")
        a, places = self.values(rows, width), self.rng.integers(0, rows, count)
        out = compute((dims[2], dims[1]), lambda r, c: x[i[r], c])
        return Program([x, i, out], [a, places], a[places])

    def product(self) -> Program:
        while True:
            m, k, n = (self.extent() for _ in range(3))
            if m * k * n <= 1 << 26 and max(m * k, k * n, m * n) <= MOST:
                break
        rows, depth, columns = self.dims((m, k, n))
        turned = bool(self.rng.integers(2))
        x = tensor(rows, depth)
        y = tensor(*((columns, depth) if turned else (depth, columns)), name="y")
        a, b = self.values(m, k), self.values(*((n, k) if turned else (k, n)))
        r = over(depth)
        out = compute(
            (rows, columns),
            lambda i, j: te.sum(x[i, r] * (y[j, r] if turned else y[r, j]), axis=r),
        )
        return Program([x, y, out], [a, b], a @ (b.T if turned else b))


KINDS: tuple[Callable[[Draw], Program], ...] = (
    Draw.broadcast, Draw.reduce, Draw.softmax, Draw.permute, Draw.concatenate, Draw.take, Draw.product,
)  # fmt: skip


@sweep(2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("batch", part(range(50), 50))
def test_random_extents(tmp_path: Path, kind: Callable[[Draw], Program], batch: int) -> None:
    for number in part(range(8), 3):
        draw = Draw(8 * batch + number)
        program = kind(draw)
        func = te.create_prim_func([*program.tensors])
        knobs = next(iter(backend_of(TARGET).knobs(func, TARGET).values()))
        choices = {name: values[draw.rng.integers(len(values))] for name, values in knobs.items()}
        kernel = Kernel(tmp_path, program.tensors, TARGET, choices if number % 2 else None)
        found = kernel(*program.inputs, out=program.expected.shape)
        np.testing.assert_allclose(
            found, program.expected, rtol=1e-5, atol=1e-6, err_msg=f"{choices} {func}"
        )
