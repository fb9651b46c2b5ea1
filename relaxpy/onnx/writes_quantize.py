"""Quantisation: QuantizeLinear and DequantizeLinear, or arithmetic where ONNX has other zero points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.ir import DType
from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.onnx.writes_elementwise import saturated
from relaxpy.op.quantization import Dequantize, Quantize

_OF_OPSET = {
    "int8": 18,
    "uint8": 18,
    "int32": 18,
    "int16": 21,
    "uint16": 21,
    "int4": 21,
    "uint4": 21,
}
"""Dtype → the first opset that quantises it."""
_ROUND = {"half_to_even": "Round", "floor": "Floor", "ceil": "Ceil"}


@writes(Quantize)
def quantize(at: Place, op: Quantize, x: Tensor, scale: Tensor, zero: Tensor) -> Any:
    own, step = at.cast(x, "float32"), at.cast(scale, "float32")
    zeros = _zeros(at, zero, op.out_dtype)
    is_onnx = op.rounding == "half_to_even" and not op.narrow_range and op.out_dtype != "int32"
    if is_onnx and zeros is not None and _has(at, op.out_dtype):
        return at.node(
            "QuantizeLinear",
            own,
            *_pair(at, op.axis, x, (scale, step), (zero, zeros)),
            axis=op.axis,
        )
    whole = _rounded(at, op, at.node("Div", own, _along(at, op.axis, x, scale, step)))
    moved = at.node("Add", whole, _along(at, op.axis, x, zero, at.cast(zero, "float32")))
    codes = saturated(at, Tensor(moved, DType("float32"), x.ndim, x.dims), op.out_dtype)
    if not op.narrow_range:
        return codes
    return at.node("Max", codes, at.number(op.lowest, str(op.out_dtype)))


def _rounded(at: Place, op: Quantize, value: Any) -> Any:
    match op.rounding:
        case "stochastic":
            raise at.fail("with stochastic rounding")
        case "half_away":
            size = at.node("Abs", value)
            whole = at.node("Floor", size)
            is_half = at.node(
                "GreaterOrEqual", at.node("Sub", size, whole), at.number(0.5, "float32")
            )
            more = at.node("Add", whole, at.number(1, "float32"))
            return at.node("Mul", at.node("Sign", value), at.node("Where", is_half, more, whole))
        case rounding:
            return at.node(_ROUND[rounding], value)


@writes(Dequantize)
def dequantize(at: Place, op: Dequantize, x: Tensor, scale: Tensor, zero: Tensor) -> Any:
    step, zeros = at.cast(scale, "float32"), _zeros(at, zero, x.dtype)
    # The difference of two int32 may be larger than an int32.
    wide = x.dtype == "int32" and (zero.constant is None or bool(np.any(zero.constant)))
    if zeros is not None and not wide and _has(at, x.dtype):
        pair = _pair(at, op.axis, x, (scale, step), (zero, zeros))
        found = at.node("DequantizeLinear", x, *pair, axis=op.axis)
    else:
        if x.dtype == "uint64":
            raise at.fail(f"of {x.dtype}")
        other = _along(at, op.axis, x, zero, at.cast(zero, "int64"))
        apart = at.node("Sub", at.cast(x, "int64"), other)
        found = at.node(
            "Mul", at.cast(apart, "float32", "int64"), _along(at, op.axis, x, scale, step)
        )
    if op.out_dtype == "float16":
        found = at.node("Clip", found, at.number(-65504, "float32"), at.number(65504, "float32"))
    return at.cast(found, op.out_dtype, "float32")


def _has(at: Place, dtype: DType) -> bool:
    return at.opset >= _OF_OPSET.get(str(dtype), 99)


def _zeros(at: Place, zero: Tensor, dtype: DType) -> Any:
    """The zero point in the dtype of what is quantised, which ONNX asks for; None: it does not fit."""
    if zero.dtype == dtype:
        return zero
    if zero.constant is None:
        return None
    converted = zero.constant.astype(dtype.numpy)
    return at.array(converted) if np.array_equal(converted, zero.constant) else None


def _pair(at: Place, axis: int, x: Tensor, *parameters: tuple[Tensor, Any]) -> Sequence[Any]:
    """Scale and zero point of one shape: a number each, or a vector each."""
    if all(own.ndim == 0 or at.dims(own)[0].value == 1 for own, _ in parameters):
        return [at.squeeze(given, [0]) if own.ndim else given for own, given in parameters]
    size = at.dims(x)[axis]
    return [
        given
        if own.ndim and at.dims(own)[0] == size
        else at.node("Expand", given, at.shape([size]))
        for own, given in parameters
    ]


def _along(at: Place, axis: int, x: Tensor, own: Tensor, given: Any) -> Any:
    """A scale or zero point along its axis, to be broadcast with what is quantised."""
    return at.unsqueeze(given, range(1, x.ndim - axis % x.ndim)) if own.ndim else given
