"""Types and constants with the lanes of a vector, or of a scalar."""

from __future__ import annotations

from relaxpy.tir.tvm import tirx, tvm

Expr = tvm.ir.Expr


def like(value: Expr, dtype: str) -> str:
    """The type with as many lanes as the value has."""
    lanes = int(tvm.DataType(str(value.ty.dtype)).lanes)
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def splat(number: float, value: Expr, dtype: str) -> Expr:
    """The number in as many lanes as the value has."""
    lanes = int(tvm.DataType(str(value.ty.dtype)).lanes)
    scalar = tirx.const(number, dtype)
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def memory_like(buffer: Expr, dtype: str) -> Expr:
    """A buffer like this one, with another dtype."""
    return tirx.decl_buffer(
        buffer.shape, dtype, buffer.name, strides=buffer.strides, elem_offset=buffer.elem_offset,
        scope=buffer.scope(), layout=buffer.layout,
    )  # fmt: skip
