"""Quantised operators: scales and zero points around the operators of floats and integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.onnx.arrays import dtype_of
from relaxpy.frontend.onnx.element_types import NAMES, PACKED, STORED
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant, converted
from relaxpy.frontend.onnx.operators_linear import conv
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import DType, Expr

NARROW = ("int8", "uint8", "int16", "uint16", *STORED)


def spread(at: Site, x: Any, like: Expr, axis: int, block: int = 0) -> Any:
    """Scales or zero points as a tensor that is broadcast with another one: one of all, one for each index of an axis,
    or one for each block of it; or as it is, if it has several axes."""
    rank = at.ndim(like)
    if at.ndim(x) == 0 or (at.ndim(x) == 1 and at.shape_of(x)[0] == 1 and not block):
        return at.emit(op.reshape(x, ()))
    if at.ndim(x) > 1 and not block:
        return x
    axis = at.axis(axis, rank)
    if not block:
        return at.emit(op.reshape(x, [at.shape_of(x)[0] if a == axis else 1 for a in range(rank)]))
    wide = at.emit(op.repeat(x, block, axis=axis))
    return at.emit(op.strided_slice(wide, [axis], [0], [at.shape_of(like)[axis]]))


def quantized(
    at: Site,
    x: Expr,
    scale: Expr,
    zero: Any,
    dtype: DType,
    axis: int = 1,
    block: int = 0,
    saturate: bool = True,
    packed: str = "",
    exact: bool = False,
) -> Any:
    """X divided by the scale, rounded, with the zero point added, within the range of the dtype, or of `packed`, which
    has fewer bits. `exact`: the quotient is of the dtype of x."""
    if zero is None:
        zero = constant(0, dtype)
    simple = max(at.ndim(scale), at.ndim(zero)) <= 1 and not (block or packed)
    # Quotients of narrow floats are of float32, as ONNX Runtime's are.
    x = at.cast(x, "float32") if at.dtype_of(x).is_narrow and not exact else x
    simple = simple and at.dtype_of(x) == "float32"
    if dtype in NARROW and simple:
        zero = at.emit(op.reshape(zero, at.shape_of(scale)))
        return op.quantize(
            x, scale, zero, axis=axis % max(at.ndim(x), 1) if at.ndim(x) else -1, out_dtype=dtype
        )
    step = at.cast(spread(at, scale, x, axis, block), at.dtype_of(x))
    found = at.emit(op.divide(x, step))
    if dtype.is_float:
        return converted(at, found, dtype, saturate)
    shift = at.cast(spread(at, zero, x, axis, block), "float32")
    whole = at.emit(op.add(at.cast(at.emit(op.round(found)), "float32"), shift))
    low, high = _limits(packed) if packed else dtype.limits
    found = at.cast(at.emit(op.clip(whole, float(low), float(high))), dtype)
    if packed:
        at.importer.packed[found] = packed
    return found


def _limits(packed: str) -> tuple[int, int]:
    bits = PACKED[packed]
    return (
        (-(1 << bits - 1), (1 << bits - 1) - 1)
        if packed.startswith("int")
        else (0, (1 << bits) - 1)
    )


def dequantized(
    at: Site, x: Expr, scale: Expr, zero: Any, dtype: DType, axis: int = 1, block: int = 0
) -> Any:
    """(x - zero) * scale."""
    given = at.dtype_of(x)
    if zero is not None and at.dtype_of(zero).is_packed:
        zero = at.cast(zero, at.dtype_of(zero).unpacked)
    simple = (
        at.ndim(scale) <= 1 and not block and dtype == "float32" and at.dtype_of(scale) == "float32"
    )
    if simple and given in NARROW:
        if zero is None:
            zero = constant(0, given.unpacked)
        zero = at.emit(op.reshape(zero, at.shape_of(scale)))
        return op.dequantize(
            x, scale, zero, axis=axis % max(at.ndim(x), 1) if at.ndim(x) else -1, out_dtype=dtype
        )
    step = spread(at, scale, x, axis, block)
    if given.is_float:
        wide: Any = at.cast(x, "float32")
    else:
        wide = at.cast(x, "int32")
        if zero is not None:
            wide = at.emit(op.subtract(wide, at.cast(spread(at, zero, x, axis, block), "int32")))
        wide = at.cast(wide, "float32")
    return at.cast(at.emit(op.multiply(wide, at.cast(step, "float32"))), dtype)


@operator("QuantizeLinear")
def quantize_linear(
    at: Site, x: Expr, scale: Expr, zero: Any = None, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
    precision: int = 0, saturate: int = 1, **_: Any,
) -> Any:  # fmt: skip
    dtype, packed = DType("uint8"), ""
    if zero is not None:
        dtype, packed = at.dtype_of(zero), at.importer.packed.get(zero, "")
    elif NAMES.get(output_dtype) in PACKED:
        packed = NAMES[output_dtype]
        dtype = DType("int8" if packed.startswith("int") else "uint8")
    elif output_dtype:
        dtype = dtype_of(output_dtype, at.span)
    if precision:
        x = at.cast(x, dtype_of(precision, at.span))
    if at.dtype_of(x).is_int:
        x = at.cast(x, "float32")
    return quantized(
        at, x, scale, zero, dtype, axis, block_size, bool(saturate), packed, bool(precision)
    )


@operator("DequantizeLinear")
def dequantize_linear(
    at: Site, x: Expr, scale: Expr, zero: Any = None, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
    **_: Any,
) -> Any:  # fmt: skip
    dtype = dtype_of(output_dtype, at.span) if output_dtype else at.dtype_of(scale)
    return dequantized(at, x, scale, zero, dtype, axis, block_size)


def shifted(at: Site, x: Expr, zero: Any, axis: int = -1) -> Any:
    """Integers without their zero point, as int32; a vector of zero points is along `axis`."""
    wide = at.cast(x, "int32")
    if zero is None:
        return wide
    return at.emit(op.subtract(wide, at.cast(spread(at, zero, x, axis), "int32")))


def requantized(at: Site, total: Expr, factor: Any, zero: Any) -> Any:
    """Sums of products of integers, scaled, as integers of the zero point's dtype."""
    found = at.emit(op.multiply(at.cast(total, "float32"), factor))
    return quantized(at, found, constant(1, "float32"), zero, at.dtype_of(zero))


@operator("MatMulInteger")
def matmul_integer(
    at: Site, a: Expr, b: Expr, a_zero: Any = None, b_zero: Any = None, **_: Any
) -> Any:
    return integer_product(at, a, b, a_zero, b_zero)


def integer_product(at: Site, a: Expr, b: Expr, a_zero: Any, b_zero: Any) -> Any:
    """The product of integers less their zero points. Those of matrices are subtracted from the sums of the codes,
    modulo 2**32 as all sums: a product of bytes is faster than one of wide integers."""
    if min(at.ndim(a), at.ndim(b)) < 2:
        return op.matmul(shifted(at, a, a_zero, -2), shifted(at, b, b_zero, -1))
    total: Any = op.matmul(a, b, out_dtype="int32")

    def sums(of: Expr, axis: int) -> Any:
        return at.emit(op.sum(at.cast(of, "int32"), axis=[axis], keepdims=True))

    def less(of: Any, zero: Any, axis: int) -> Any:
        step = at.cast(spread(at, zero, at.emit(total), axis), "int32")
        return op.subtract(at.emit(total), at.emit(op.multiply(of, step)))

    if a_zero is not None and not _is_zero(at, a_zero):
        columns = sums(b, -2)
        if b_zero is not None and not _is_zero(at, b_zero):
            depth = at.shape_of(b)[-2].value
            if depth is None:
                return op.matmul(shifted(at, a, a_zero, -2), shifted(at, b, b_zero, -1))
            zeros = at.cast(spread(at, b_zero, b, -1), "int32")
            zeros = at.emit(op.multiply(zeros, constant(depth, "int32")))
            columns = at.emit(op.subtract(columns, zeros))
        total = less(columns, a_zero, -2)
    if b_zero is not None and not _is_zero(at, b_zero):
        total = less(sums(a, -1), b_zero, -1)
    return total


def _is_zero(at: Site, zero: Any) -> bool:
    """Is a zero point known to be 0?"""
    known = at.importer.contents.of(zero)
    return known is not None and known.dtype != object and not np.any(known)


@operator("ConvInteger")
def conv_integer(
    at: Site, x: Expr, w: Expr, x_zero: Any = None, w_zero: Any = None, **attrs: Any
) -> Any:
    return conv(at, shifted(at, x, x_zero), shifted(at, w, w_zero, 0), **attrs)


@operator("QLinearMatMul")
def qlinear_matmul(
    at: Site, a: Expr, a_scale: Expr, a_zero: Any, b: Expr, b_scale: Expr, b_zero: Any, y_scale: Expr,
    y_zero: Any, **_: Any,
) -> Any:  # fmt: skip
    """Scales and zero points of the first matrix and of the result are of rows, those of the second of columns."""
    total = at.emit(integer_product(at, a, b, a_zero, b_zero))
    first, second, last = (
        at.cast(spread(at, scale, total, axis), "float32")
        for scale, axis in ((a_scale, -2), (b_scale, -1), (y_scale, -2))
    )
    factor = at.emit(op.divide(op.multiply(first, second), last))
    return requantized(at, total, factor, spread(at, y_zero, total, -2))


@operator("QLinearConv")
def qlinear_conv(
    at: Site, x: Expr, x_scale: Expr, x_zero: Expr, w: Expr, w_scale: Expr, w_zero: Expr, y_scale: Expr, y_zero: Expr,
    bias: Any = None, **attrs: Any,
) -> Any:  # fmt: skip
    total = at.emit(conv(at, shifted(at, x, x_zero), shifted(at, w, w_zero, 0), bias, **attrs))
    first, last = (at.emit(op.reshape(each, ())) for each in (x_scale, y_scale))
    factor = at.emit(op.divide(op.multiply(first, spread(at, w_scale, total, 1)), last))
    return requantized(at, total, factor, y_zero)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(at: Site, x: Expr, **_: Any) -> list[Any]:
    """As uint8, by the range of all elements and 0; the scale of zeros is 1, as ONNX Runtime's is."""
    zero = constant(0, "float32")
    low = at.emit(op.minimum(at.emit(op.min(x)), zero))
    high = at.emit(op.maximum(at.emit(op.max(x)), zero))
    scale = at.emit(op.divide(op.subtract(high, low), constant(255, "float32")))
    scale = at.emit(op.where(op.equal(scale, zero), constant(1, "float32"), scale))
    point = op.clip(at.emit(op.round(at.emit(op.divide(op.negative(low), scale)))), 0.0, 255.0)
    point = at.cast(at.emit(point), "uint8")
    return [op.quantize(x, scale, point, out_dtype="uint8"), scale, point]
