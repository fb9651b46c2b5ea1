"""Quantised operators: scales and zero points around the operators of floats and integers."""

from __future__ import annotations

from typing import Any

from relaxpy import op
from relaxpy.frontend.onnx.arrays import dtype_of
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant, converted
from relaxpy.frontend.onnx.operators_linear import conv
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import DType, Expr

NARROW = ("int8", "uint8", "int16", "uint16")


def spread(at: Site, x: Any, like: Expr, axis: int, block: int = 0) -> Any:
    """Scales or zero points as a tensor that is broadcast with another one: one of all, one for each index of an axis,
    or one for each block of it."""
    rank = at.ndim(like)
    if at.ndim(x) == 0 or (at.ndim(x) == 1 and at.shape_of(x)[0] == 1 and not block):
        return at.emit(op.reshape(x, ()))
    axis %= rank
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
) -> Any:
    """X / scale, rounded, with the zero point added, within the range of the dtype."""
    if zero is None:
        zero = constant(0, dtype)
    simple = at.ndim(scale) <= 1 and not block and at.dtype_of(x) == "float32"
    if dtype in NARROW and simple:
        zero = at.emit(op.reshape(zero, at.shape_of(scale)))
        return op.quantize(
            x, scale, zero, axis=axis % max(at.ndim(x), 1) if at.ndim(x) else -1, out_dtype=dtype
        )
    kind = at.dtype_of(x)
    step = at.cast(spread(at, scale, x, axis, block), kind)
    found = at.emit(op.divide(x, step))
    if dtype.is_float:
        return converted(at, found, dtype, saturate)
    shift = at.cast(spread(at, zero, x, axis, block), "float32")
    whole = at.emit(op.add(at.cast(at.emit(op.round(found)), "float32"), shift))
    low, high = dtype.limits
    return at.cast(at.emit(op.clip(whole, float(low), float(high))), dtype)


def dequantized(
    at: Site, x: Expr, scale: Expr, zero: Any, dtype: DType, axis: int = 1, block: int = 0
) -> Any:
    """(x - zero) * scale."""
    given = at.dtype_of(x)
    simple = (
        at.ndim(scale) <= 1 and not block and dtype == "float32" and at.dtype_of(scale) == "float32"
    )
    if simple and given in NARROW:
        if zero is None:
            zero = constant(0, given)
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
    dtype = DType("uint8")
    if zero is not None:
        dtype = at.dtype_of(zero)
    elif output_dtype:
        dtype = dtype_of(output_dtype, at.span)
    if precision:
        x = at.cast(x, dtype_of(precision, at.span))
    if at.dtype_of(x).is_int:
        x = at.cast(x, "float32")
    return quantized(at, x, scale, zero, dtype, axis, block_size, bool(saturate))


@operator("DequantizeLinear")
def dequantize_linear(
    at: Site, x: Expr, scale: Expr, zero: Any = None, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
    **_: Any,
) -> Any:  # fmt: skip
    dtype = dtype_of(output_dtype, at.span) if output_dtype else at.dtype_of(scale)
    return dequantized(at, x, scale, zero, dtype, axis, block_size)


def shifted(at: Site, x: Expr, zero: Any, axis: int | None = None) -> Any:
    """Integers without their zero point, as int32; a vector of zero points is along `axis`."""
    wide = at.cast(x, "int32")
    if zero is None:
        return wide
    point = at.cast(zero, "int32")
    if at.ndim(point) == 1 and axis is not None:
        rank = at.ndim(x)
        count = at.shape_of(point)[0]
        shape = () if count == 1 else [count if a == axis % rank else 1 for a in range(rank)]
        point = at.emit(op.reshape(point, shape))
    return at.emit(op.subtract(wide, point))


@operator("MatMulInteger")
def matmul_integer(
    at: Site, a: Expr, b: Expr, a_zero: Any = None, b_zero: Any = None, **_: Any
) -> Any:
    return op.matmul(shifted(at, a, a_zero, -2), shifted(at, b, b_zero, -1))


@operator("ConvInteger")
def conv_integer(
    at: Site, x: Expr, w: Expr, x_zero: Any = None, w_zero: Any = None, **attrs: Any
) -> Any:
    return conv(
        at,
        shifted(at, x, x_zero, None if x_zero is None else 1),
        shifted(at, w, w_zero, 0),
        **attrs,
    )


def scaled(at: Site, x: Any) -> Any:
    return at.cast(x, "float32")


@operator("QLinearMatMul")
def qlinear_matmul(
    at: Site, a: Expr, a_scale: Expr, a_zero: Any, b: Expr, b_scale: Expr, b_zero: Any, y_scale: Expr,
    y_zero: Any, **_: Any,
) -> Any:  # fmt: skip
    def row(scale: Expr, x: Expr, axis: int) -> Any:
        if at.ndim(scale) != 1 or at.shape_of(scale)[0] == 1:
            return (
                at.emit(op.reshape(scaled(at, scale), ()))
                if at.ndim(scale) < 2
                else scaled(at, scale)
            )
        rank = at.ndim(x)
        return at.emit(
            op.reshape(
                scaled(at, scale),
                [at.shape_of(scale)[0] if k == axis % rank else 1 for k in range(rank)],
            )
        )

    total = at.emit(op.matmul(shifted(at, a, a_zero, -2), shifted(at, b, b_zero, -1)))
    factor = at.emit(
        op.divide(op.multiply(row(a_scale, a, -2), row(b_scale, b, -1)), row(y_scale, a, -2))
    )
    dtype = at.dtype_of(y_zero)
    found = at.emit(op.multiply(at.cast(total, "float32"), factor))
    whole = op.round(at.emit(op.add(found, at.cast(y_zero, "float32"))))
    low, high = dtype.limits
    return at.cast(at.emit(op.clip(whole, float(low), float(high))), dtype)


@operator("QLinearConv")
def qlinear_conv(
    at: Site, x: Expr, x_scale: Expr, x_zero: Expr, w: Expr, w_scale: Expr, w_zero: Expr, y_scale: Expr, y_zero: Expr,
    bias: Any = None, **attrs: Any,
) -> Any:  # fmt: skip
    total = at.emit(conv(at, shifted(at, x, x_zero), shifted(at, w, w_zero, 0), bias, **attrs))
    scale = at.emit(op.multiply(scaled(at, x_scale), scaled(at, w_scale)))
    scale = at.emit(op.divide(scale, scaled(at, y_scale)))
    factor = spread(at, scale, total, 1)
    found = op.round(at.emit(op.multiply(at.cast(total, "float32"), factor)))
    dtype = at.dtype_of(y_zero)
    whole = at.emit(op.add(at.emit(found), at.cast(at.emit(op.reshape(y_zero, ())), "float32")))
    low, high = dtype.limits
    return at.cast(at.emit(op.clip(whole, float(low), float(high))), dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(at: Site, x: Expr, **_: Any) -> Any:
    zero = constant(0, "float32")
    low = at.emit(op.minimum(at.emit(op.min(x)), zero))
    high = at.emit(op.maximum(at.emit(op.max(x)), zero))
    scale = at.emit(op.divide(op.subtract(high, low), constant(255, "float32")))
    safe = at.emit(op.where(op.equal(scale, zero), constant(1, "float32"), scale))
    point = op.clip(at.emit(op.round(at.emit(op.divide(op.negative(low), safe)))), 0.0, 255.0)
    point = at.cast(at.emit(point), "uint8")
    return [op.quantize(x, safe, point, out_dtype="uint8"), scale, point]
