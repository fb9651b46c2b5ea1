"""The transforms of Winograd's convolution with windows of 3 x 3: `relaxpy.transform.winograd` says how they are used.

An output tile of m x m pixels is computed of m + 2 points in each direction, which are those of polynomials (Toom and
Cook): `A.T ((G g G.T) * (B.T d B)) A`, with the window g and the patch d of (m + 2) x (m + 2) pixels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from relaxpy.ir.dim import Dim
from relaxpy.tir import te
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import Buffer, Expr, int64, maximum, minimum
from relaxpy.tir.writer.serial import Serial, serial

WINDOW = 3
"""Pixels of a window in each direction."""
POINTS = {2: (0, 1, -1), 4: (0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)}
"""The points for each size of tiles; infinity comes last. Those of 4 are not the paper's (0, 1, -1, 2, -2): errors are a
quarter of theirs, since all powers are near 1. All coefficients are exact in float32."""


@dataclass(frozen=True, eq=False)
class Matrices:
    """The matrices of a size of tiles, m: `output` is A.T (m, m + 2), `window` G (m + 2, 3), `patch` B.T (m + 2, m +
    2)."""

    output: np.ndarray
    window: np.ndarray
    patch: np.ndarray

    @classmethod
    def of(cls, tile: int) -> Matrices:
        """The matrices, in float64."""
        points = POINTS[tile]
        size = len(points) + 1
        output, window, patch = (np.zeros((rows, size)) for rows in (tile, WINDOW, size))
        for number, point in enumerate(points):
            others = [other for other in points if other != point]
            output[:, number] = point ** np.arange(tile)
            window[:, number] = point ** np.arange(WINDOW) / np.prod(np.subtract(point, others))
            patch[number, :-1] = np.poly(others)[::-1]
        output[-1, -1] = window[-1, -1] = 1
        patch[-1] = np.poly(points)[::-1]
        return cls(output, window.T, patch)


def transformed_weight(weight: np.ndarray, tile: int) -> np.ndarray:
    """A weight (3, 3, inputs, outputs) as float32 factors ((m + 2)**2, inputs, outputs)."""
    g = Matrices.of(tile).window
    found = np.einsum("ai,bj,ijco->abco", g, g, weight.astype("float64"), optimize=True)
    return found.reshape(-1, *weight.shape[2:]).astype(weight.dtype)


def transformed_patches(
    x: te.Tensor, tile: int, padding: tuple[int, int], tiles: tuple[Dim, Dim]
) -> te.Tensor:
    """The patches of images (n, height, width, channels) as ((m + 2)**2, n, tiles down, tiles across, channels). The
    padding is that before the first row and the first column."""
    count, height, width, channels = map(Dim.of, _dims(x))
    size, matrix = tile + WINDOW - 1, Matrices.of(tile).patch

    def fill(p: Serial, out: Buffer, source: Buffer) -> None:
        def each(write: Callable[[Expr], None]) -> None:
            with p.loop("c", te.dim(channels)) as c:
                write(c)

        with p.block("tile", [te.dim(d) for d in (count, *tiles)]) as (n, down, across):
            columns, edge = (
                tirx.decl_buffer([te.dim(d) for d in shape], str(x.dtype), name, layout=None)
                for name, shape in (("columns", (size, size, channels)), ("edge", (size, channels)))
            )
            p.add(tirx.AllocBuffer(columns))
            p.add(tirx.AllocBuffer(edge))
            top = p.let("top", down * tile - padding[0])
            h, w = te.dim(height), te.dim(width)

            def column(j: Expr, read: Callable[[int, Expr], Expr]) -> None:
                for a in range(size):
                    each(lambda c: p.write(columns, a, j, c, value=_products(matrix, [read(i, c) for i in range(size)])[a]))

            with p.loop("j", size) as j:
                left = p.let("left", across * tile + j - padding[1])
                inside = tirx.And(int64(0) <= left, left < w)
                whole = tirx.And(tirx.And(int64(0) <= top, top + size <= h), inside)
                with p.when(whole):
                    column(j, lambda i, c: p.read(source, n, top + i, left, c))
                with p.otherwise(whole):
                    with p.loop("i", size) as i:
                        is_there = tirx.And(tirx.And(int64(0) <= top + i, top + i < h), inside)
                        with p.when(is_there):
                            each(lambda c: p.write(edge, i, c, value=p.read(source, n, top + i, left, c)))
                        with p.otherwise(is_there):
                            each(lambda c: p.write(edge, i, c, value=tirx.const(0, str(x.dtype))))
                    column(j, lambda i, c: p.read(edge, i, c))
            with p.loop("a", size) as a:
                for b in range(size):
                    each(lambda c: p.write(out, a * size + b, n, down, across, c, value=_products(matrix, [p.read(columns, a, j, c) for j in range(size)])[b]))

    shape = (size * size, count, *tiles, channels)
    return serial((shape, str(x.dtype)), [x], fill, "patches")


def result_of_products(products: te.Tensor, table: te.Tensor, tile: int, shape: Sequence[Dim]) -> te.Tensor:
    """The images (n, height, width, channels) of products ((m + 2)**2, n, tiles down, tiles across, channels). The
    table (m, m, (m + 2)**2) has the coefficients of each pixel of a tile."""

    size = tile + WINDOW - 1

    def pixel(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        down, i = tirx.floordiv(y, int64(tile)), tirx.floormod(y, int64(tile))
        across, j = tirx.floordiv(x, int64(tile)), tirx.floormod(x, int64(tile))

        def along(a: int) -> Expr:
            return _sum(products[a * size + b, n, down, across, c] * table[j, b] for b in range(size))

        return _sum(along(a) * table[i, a] for a in range(size))

    return te.compute(shape, pixel, "pixels")


def _sum(terms: Iterable[Expr]) -> Expr:
    return reduce(operator.add, terms)


def _dims(x: te.Tensor) -> tuple[Dim, ...]:
    from relaxpy.op.te import dims

    return dims(x)


def _place(p: Serial, place: Expr, extent: Dim) -> tuple[Expr, Expr]:
    """The place or the nearest one inside of an extent, and whether it is inside."""
    size = te.dim(extent)
    place = p.let("place", place)
    inside = tirx.And(int64(0) <= place, place < size)
    return p.let("near", maximum(0, minimum(place, size - 1))), p.let("inside", inside)


def _products(matrix: np.ndarray, values: Sequence[Expr]) -> list[Expr]:
    """The product of a matrix with a vector of expressions. Each sum is that of the even places and that of the odd
    ones, up to its sign: rows of opposite points share both."""
    found: list[Expr] = []
    for row in matrix:
        parts: list[tuple[float, Expr]] = []
        for first in (0, 1):
            terms = [(w, v) for w, v in zip(row[first::2], values[first::2], strict=True) if w]
            if not terms:
                continue
            sign = np.sign(terms[0][0])
            total = None
            for weight, value in terms:
                weight = weight * sign
                term = value if weight == 1 else value * tirx.const(weight, "float32")
                total = term if total is None else total + term
            assert total is not None
            parts.append((sign, total))
        (sign, total), *rest = sorted(parts, key=lambda part: -part[0])
        total = total if sign > 0 else -total
        for sign, other in rest:
            total = total + other if sign > 0 else total - other
        found.append(total)
    return found
