"""Quantisation."""

from __future__ import annotations

from typing import Any

from relaxpy.frontend.onnx.arrays import NUMBERS
from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.op.quantization import Dequantize, Quantize


@writes(Quantize)
def quantize(at: Place, op: Quantize, x: Tensor, scale: Tensor, zero: Tensor) -> Any:
    if op.out_dtype not in ("int8", "uint8"):
        at.need(21, f"to {op.out_dtype}")
    steps, zeros = _parameters(at, op.axis, x, scale, zero, op.out_dtype)
    return at.node("QuantizeLinear", x, at.cast(steps, x.dtype, scale.dtype), zeros, axis=op.axis)


@writes(Dequantize)
def dequantize(at: Place, op: Dequantize, x: Tensor, scale: Tensor, zero: Tensor) -> Any:
    if x.dtype not in ("int8", "uint8", "int32"):
        at.need(21, f"of {x.dtype}")
        if x.dtype not in ("int16", "uint16"):
            raise at.fail(f"of {x.dtype}")
    steps, zeros = _parameters(at, op.axis, x, scale, zero, x.dtype)
    found = at.node(
        "DequantizeLinear", x, at.cast(steps, "float32", scale.dtype), zeros, axis=op.axis
    )
    return found if op.out_dtype == "float32" else at.node("Cast", found, to=NUMBERS[op.out_dtype])


def _parameters(
    at: Place, axis: int, x: Tensor, scale: Tensor, zero: Tensor, dtype: str
) -> tuple[Any, Any]:
    """Scale and zero point of one shape: a number each, or a vector each."""
    if zero.dtype != dtype:
        at_most = zero.constant
        if at_most is None:
            raise at.fail(f"with a zero point of {zero.dtype}, not {dtype}: cast it")
    zeros = at.cast(zero, dtype)
    single = [each.ndim == 0 or at.dims(each)[0].value == 1 for each in (scale, zero)]
    if all(single):
        return tuple(_number(at, name, each) for name, each in ((scale, scale), (zeros, zero)))  # type: ignore[return-value]
    size = at.shape([at.dims(x)[axis]])
    wide = [
        at.node("Expand", name, size) if alone else name
        for name, alone in zip((scale, zeros), single, strict=True)
    ]
    return wide[0], wide[1]


def _number(at: Place, name: Any, x: Tensor) -> Any:
    return at.squeeze(name, [0]) if x.ndim else name
