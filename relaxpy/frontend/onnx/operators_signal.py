"""Fourier transforms, and what goes with them. Complex numbers are pairs in the last axis."""

from __future__ import annotations

import math
from typing import Any
from typing import cast as typed

import numpy as np

from relaxpy import op
from relaxpy.frontend.onnx.arrays import dtype_of
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_shape import padded, turned
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Constant, Dim, Expr
from relaxpy.ir.dim import dim_op


@operator("DFT")
def dft_v17(
    at: Site,
    x: Expr,
    length: Any = None,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
    **_: Any,
) -> Any:
    return transformed(at, x, _length(at, length), axis, bool(inverse), bool(onesided))


@operator("DFT", since=20)
def dft(
    at: Site,
    x: Expr,
    length: Any = None,
    axis: Any = None,
    inverse: int = 0,
    onesided: int = 0,
    **_: Any,
) -> Any:
    place = -2 if axis is None else int(at.number_of(axis, "the axis"))
    return transformed(at, x, _length(at, length), place, bool(inverse), bool(onesided))


def _length(at: Site, x: Any) -> Dim | None:
    return None if x is None else at.ints(x, "the length")[0]


def transformed(
    at: Site, x: Expr, length: Dim | None, axis: int, inverse: bool, onesided: bool
) -> Any:
    """A discrete Fourier transform, as products with the matrices of cosines and sines."""
    rank, dtype = at.ndim(x), at.dtype_of(x)
    axis = at.axis(axis, rank)
    parts_count = at.shape_of(x)[rank - 1].value
    if parts_count not in (1, 2):
        raise at.fail(
            "onnx-operator",
            "the last axis of a Fourier transform is 1 (real) or 2 (complex), and is not known",
        )
    given = at.shape_of(x)[axis]
    whole = length if length is not None else 2 * (given - 1) if inverse and onesided else given
    taken = whole // 2 + 1 if inverse and onesided else whole
    order = [*(a for a in range(rank - 1) if a != axis), axis, rank - 1]
    moved = _fitted(at, at.emit(turned(x, order)), rank - 2, taken)
    parts = [
        at.emit(op.squeeze(op.strided_slice(moved, [rank - 1], [i], [i + 1]), [rank - 1]))
        for i in range(parts_count)
    ]
    made = whole // 2 + 1 if onesided and not inverse else whole
    cosine, sine = _waves(at, taken, made, whole, dtype)
    if inverse and onesided:
        factor = _shares(at, taken, whole, dtype)
        parts = [at.emit(op.multiply(part, factor)) for part in parts]
    first = at.emit(op.matmul(parts[0], cosine))
    second = at.emit(op.matmul(parts[0], sine))
    sign = 1 if inverse else -1
    real, imaginary = first, at.emit(op.multiply(second, constant(sign, dtype)))
    if len(parts) > 1:
        across = at.emit(op.matmul(parts[1], sine))
        real = at.emit(op.subtract(real, op.multiply(across, constant(sign, dtype))))
        imaginary = at.emit(op.add(imaginary, op.matmul(parts[1], cosine)))
    found = [real] if inverse and onesided else [real, imaginary]
    if inverse:
        size = at.number(whole, dtype)
        found = [at.emit(op.divide(each, size)) for each in found]
    joined = at.emit(op.stack(found, axis=rank - 1))
    back = sorted(range(rank), key=lambda i: order[i])
    return turned(joined, back)


def _fitted(at: Site, x: Expr, axis: int, size: Dim) -> Any:
    """An axis of this size: cut off, or followed by zeros."""
    given = at.shape_of(x)[axis]
    if given == size:
        return x
    kept = dim_op("min", given, size)
    x = at.emit(op.strided_slice(x, [axis], [0], [kept]))
    widths = [Dim.of(0)] * (2 * at.ndim(x))
    widths[at.ndim(x) + axis] = size - kept
    return padded(at, x, widths, "constant", constant(0, at.dtype_of(x)))


def _waves(at: Site, rows: Dim, columns: Dim, period: Dim, dtype: Any) -> tuple[Any, Any]:
    """The cosines and sines of the products of row and column."""
    row, column = (at.emit(op.arange(0, n, 1, dtype="int64")) for n in (rows, columns))
    turns = at.emit(op.multiply(at.emit(op.expand_dims(row, [1])), column))
    turns = at.emit(op.floor_mod(turns, at.number(period, "int64")))
    step = at.emit(op.divide(constant(2 * math.pi, "float64"), at.number(period, "float64")))
    angle = at.emit(op.multiply(at.cast(turns, "float64"), step))
    return at.cast(at.emit(op.cos(angle)), dtype), at.cast(at.emit(op.sin(angle)), dtype)


def _shares(at: Site, count: Dim, whole: Dim, dtype: Any) -> Any:
    """How often each frequency of a half spectrum is in the whole one: the first and the middle one once."""
    place = at.emit(op.arange(0, count, 1, dtype="int64"))
    double = at.emit(op.multiply(place, constant(2, "int64")))
    once = op.logical_or(
        op.equal(double, constant(0, "int64")), op.equal(double, at.number(whole, "int64"))
    )
    return at.emit(op.where(at.emit(once), constant(1, dtype), constant(2, dtype)))


@operator("STFT")
def stft(
    at: Site,
    x: Expr,
    step: Any,
    window: Any = None,
    length: Any = None,
    onesided: int = 1,
    **_: Any,
) -> Any:
    hop = at.ints(step, "the step")[0]
    if length is not None:
        size = at.ints(length, "the length")[0]
    else:
        size = at.shape_of(window)[0]
    total = at.shape_of(x)[1]
    frames = (total - size) // hop + 1
    first = at.emit(op.multiply(op.arange(0, frames, 1, dtype="int64"), at.number(hop, "int64")))
    places = at.emit(
        op.add(at.emit(op.expand_dims(first, [1])), op.arange(0, size, 1, dtype="int64"))
    )
    rows = at.emit(op.take(x, places, axis=1))
    if window is not None:
        factor = at.emit(op.reshape(window, [at.shape_of(window)[0], 1]))
        rows = at.emit(op.multiply(rows, factor))
    return transformed(at, rows, size, 2, False, bool(onesided))


@operator("MelWeightMatrix")
def mel_weight_matrix(
    at: Site,
    bins: Expr,
    length: Expr,
    rate: Expr,
    low: Expr,
    high: Expr,
    output_datatype: int = 1,
    **_: Any,
) -> Any:
    """Triangles over the spectrum's bins, evenly spaced on the mel scale."""
    given = (bins, length, rate, low, high)
    count, size, sampling, lower, upper = (at.number_of(each, "its numbers") for each in given)
    at.check_count(float(count) * float(size))
    ends = [2595 * np.log1p(each / 700) / np.log(10) for each in (lower, upper)]
    points = typed("Any", np.arange(count + 2)) * (ends[1] - ends[0]) / (count + 2) + ends[0]
    hertz: Any = 700 * np.expm1(points / 2595 * np.log(10))
    edges = ((size + 1) * hertz // sampling).astype(int)
    found = np.zeros((size // 2 + 1, count))
    for i, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        rise = typed("Any", np.arange(left, centre + 1))
        found[rise, i] = (rise - left) / (centre - left) if centre > left else 1
        fall = typed("Any", np.arange(centre, right))
        if right > centre:
            found[fall, i] = (right - fall) / (right - centre)
    return Constant(found.astype(dtype_of(output_datatype, at.span).numpy))
