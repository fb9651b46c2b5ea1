"""The transforms around the products of Winograd's convolution with windows of 3 x 3 (`relaxpy.transform.winograd`).

A tile of m x m pixels of the result is `A.T ((G g G.T) * (B.T d B)) A`, with the window g and the patch d of (m + 2) x
(m + 2) pixels: the values of polynomials are multiplied at m + 2 points in each direction (Toom and Cook).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from relaxpy.ir.dim import Dim
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import Buffer, Expr, both, floordiv, floormod, int64
from relaxpy.tir.programs.serial import Serial, serial
from relaxpy.tir.tvm import tirx

WINDOW = 3
"""Pixels of a window in each direction."""
POINTS: dict[int, tuple[float, ...]] = {2: (0, 1, -1), 4: (0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)}
"""The points for each size of tiles; infinity is the last. Those of 4 are not Lavin's and Gray's (0, 1, -1, 2, -2):
their powers are nearer to 1, and errors are a third of those. The matrices A and B are exact in float32."""
DTYPE = "float32"


@dataclass(frozen=True, eq=False)
class Matrices:
    """The matrices for tiles of m x m pixels, in float64."""

    result: np.ndarray
    """A.T, (m, m + 2)."""
    window: np.ndarray
    """G, (m + 2, 3)."""
    patch: np.ndarray
    """B.T, (m + 2, m + 2)."""

    @classmethod
    def of(cls, tile: int) -> Matrices:
        """The matrices for tiles of this size."""
        points = POINTS[tile]
        size = len(points) + 1
        result, window, patch = (np.zeros((rows, size)) for rows in (tile, WINDOW, size))
        for number, point in enumerate(points):
            others = [other for other in points if other != point]
            result[:, number] = np.power(point, np.arange(tile))
            window[:, number] = np.power(point, np.arange(WINDOW)) / np.prod(
                point - np.array(others)
            )
            patch[number, :-1] = np.poly(others)[::-1]
        result[-1, -1] = window[-1, -1] = 1
        patch[-1] = np.poly(points)[::-1]
        return cls(result, window.T, patch)


def window_factors(weight: np.ndarray, tile: int) -> np.ndarray:
    """The factors ((m + 2)**2, 1, 1, inputs, outputs) of a weight (3, 3, inputs, outputs), computed in float64."""
    g = Matrices.of(tile).window
    found = np.einsum("ai,bj,ijco->abco", g, g, weight.astype("float64"), optimize=True)
    return found.reshape(-1, 1, 1, *weight.shape[2:]).astype(weight.dtype)


def result_table(tile: int) -> np.ndarray:
    """For each pixel of a tile the coefficients of the products: (m, m, (m + 2)**2)."""
    a = Matrices.of(tile).result
    return np.einsum("ia,jb->ijab", a, a).reshape(tile, tile, -1).astype(DTYPE)


def patches_program(
    shape: Sequence[Dim], tiles: tuple[Dim, Dim], tile: int, padding: tuple[int, int]
) -> PrimFunc:
    """From images of this shape (n, height, width, channels) to the factors ((m + 2)**2, n, tiles down, tiles across,
    channels) of their patches. `padding` is that before the first row and the first column. There are no tiles in
    images without pixels."""
    count, height, width, channels = shape
    size, matrix = tile + WINDOW - 1, Matrices.of(tile).patch
    h, w, depth = map(te.dim, (height, width, channels))

    def fill(p: Serial, out: Buffer, source: Buffer) -> None:
        def each(buffer: Buffer, *place: Expr | int, value: Callable[[Expr], Expr]) -> None:
            # One store a loop: LLVM vectorises it without asking whether several stores overlap.
            with p.loop("c", depth) as c:
                p.write(buffer, *place, c, value=value(c))

        def products(buffer: Buffer, *place: Expr | int, row: int, read: _Read) -> None:
            each(
                buffer,
                *place,
                value=lambda c: _product(matrix[row], [read(i, c) for i in range(size)]),
            )

        with p.block("tile", [te.dim(d) for d in (count, *tiles)]) as (n, down, across):
            columns, edge = (
                tirx.decl_buffer([*map(int64, lines), depth], DTYPE, name, layout=None)
                for name, lines in (("columns", (size, size)), ("edge", (size,)))
            )
            p.add(tirx.AllocBuffer(columns))
            p.add(tirx.AllocBuffer(edge))
            top = p.let("top", down * tile - padding[0])
            has_all_rows = both(int64(0) <= top, top + size <= h)
            with p.loop("j", size) as j:
                left = p.let("left", across * tile + j - padding[1])
                is_inside = both(int64(0) <= left, left < w)

                def column(read: _Read, j: Expr = j) -> None:
                    for a in range(size):
                        products(columns, a, j, row=a, read=read)

                def pixel(i: Expr | int, c: Expr, left: Expr = left) -> Expr:
                    return p.read(source, n, top + i, left, c)

                with p.when(both(has_all_rows, is_inside)):
                    column(pixel)
                with p.otherwise(both(has_all_rows, is_inside)):
                    with p.loop("i", size) as i:
                        is_pixel = both(both(int64(0) <= top + i, top + i < h), is_inside)
                        with p.when(is_pixel):
                            each(edge, i, value=lambda c, i=i: pixel(i, c))
                        with p.otherwise(is_pixel):
                            each(edge, i, value=lambda _: tirx.const(0, DTYPE))
                    column(lambda i, c: p.read(edge, i, c))
            with p.loop("a", size) as a:
                for b in range(size):
                    products(
                        out, a * size + b, n, down, across,
                        row=b, read=lambda j, c, a=a: p.read(columns, a, j, c),
                    )  # fmt: skip

    images = te.placeholder(shape, DTYPE, "images")
    made = serial(((size * size, count, *tiles, channels), DTYPE), [images], fill, "patches")
    return PrimFunc.from_te([images], [made], [])


def pixels_program(shape: Sequence[Dim], tiles: tuple[Dim, Dim], tile: int) -> PrimFunc:
    """From products ((m + 2)**2, n, tiles down, tiles across, channels) and the table of coefficients to images of this
    shape (n, height, width, channels)."""
    count, _, _, channels = shape
    points = (tile + WINDOW - 1) ** 2
    products = te.placeholder((points, count, *tiles, channels), DTYPE, "products")
    table = te.placeholder((tile, tile, points), DTYPE, "table")
    k = te.reduce_axis(points)

    def pixel(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        factor = table[floormod(y, tile), floormod(x, tile), k]
        return te.sum(factor * products[k, n, floordiv(y, tile), floordiv(x, tile), c], k)

    return PrimFunc.from_te([products, table], [te.compute(shape, pixel, "pixels")], [])


_Read = Callable[[int, Expr], Expr]
"""A value at a place along the transformed direction, in a channel."""


def _product(row: Sequence[float], values: Sequence[Expr]) -> Expr:
    """The sum of values times the numbers of a row. Those at even places come first: rows of opposite points have both
    halves in common, up to a sign."""
    order = [*range(0, len(values), 2), *range(1, len(values), 2)]
    total: Expr | None = None
    for weight, value in ((row[place], values[place]) for place in order):
        if weight == 0:
            continue
        size = abs(weight)
        term = value if size == 1 else value * tirx.const(size, DTYPE)
        if total is None:
            total = term if weight > 0 else term * tirx.const(-1, DTYPE)
        else:
            total = total + term if weight > 0 else total - term
    assert total is not None, "no row is zero"
    return total
