"""float16 on devices that may not support it: bits in memory, float32 in registers.

Many devices store float16 but compute with it only through an extension. So float16 arithmetic is rewritten in float32,
with two functions that the device's language defines for the conversion: `WIDEN` converts 16 bits to float32, `NARROW`
rounds a float32 to 16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy.tir.lowering.widen import Widener
from relaxpy.tir.nodes import dtype_of
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.types import Expr
from relaxpy.tir.walk import rewritten

WIDEN = "relaxpy_float_of_half"
NARROW = "relaxpy_half_of_float"
_BITS = "uint16"
_MEMORY = {"float16": _BITS, "bfloat16": _BITS, "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Formats that are only moved by now → the integers of their bits."""


def without_float16(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with all arithmetic, functions and choices in float16 rewritten."""
    rewriter = _Rewriter(func)
    return func.with_body(tvm_ffi.structural_map(func.body, rewriter.callbacks()))


class _Rewriter(Widener):
    dtype = "float16"

    def widened(self, bits: Expr) -> Expr:
        if dtype_of(bits) == "int16":
            bits = bits.astype(
                _BITS
            )  # languages without integers of 16 bits tell signed ones from others
        return tirx.call_pure_extern("float32", WIDEN, bits)

    def narrowed(self, value: Expr) -> Expr:
        if isinstance(value, tvm.ir.Call) and _called(value) == WIDEN:
            return value.args[1]
        return tirx.call_pure_extern(_BITS, NARROW, value)

    def nearest(self, value: float) -> float:
        with np.errstate(over="ignore"):
            return float(np.float16(value))


def _called(call: Any) -> str:
    """The function that a call of a device's language calls; "" for other calls."""
    is_extern = str(getattr(call.op, "name", "")) == "tirx.call_pure_extern"
    return str(call.args[0].value) if is_extern else ""


def with_bits_in_memory(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the device function with its elements of `_MEMORY` as integers of their bits. There are no other numbers
    of these formats any more. (TVM's passes for that take one format each, and refuse stores of another's bits.)"""
    new: dict[Any, Any] = {}

    def variable(var: Any) -> Any:
        if var not in new:
            new[var] = _as_bits(var)
        return new[var]

    def load(node: Any) -> Any:
        return tirx.BufferLoad(variable(node.source), list(node.indices))

    def store(node: Any) -> Any:
        return tirx.BufferStore(variable(node.buffer), node.value, list(node.indices))

    def call(node: Any) -> Any:
        is_reinterpret = str(getattr(node.op, "name", "")) == "tirx.reinterpret"
        if not is_reinterpret or isinstance(node.ty, tvm.ir.PointerType):
            return node
        (value,) = node.args
        bits = _of_bits(node)
        if bits == _of_bits(value):
            return value
        return tirx.reinterpret(bits, value) if bits != dtype_of(node) else node

    body = rewritten(
        func.body,
        (tvm.ir.Var, variable),
        (tvm.ir.TensorLoad, load),
        (tirx.BufferStore, store),
        (tvm.ir.Call, call),
    )
    return tirx.PrimFunc(list(map(variable, func.params)), body, func.ret_type, attrs=func.attrs)


def _of_bits(value: Expr) -> str:
    """The dtype of a value once numbers of `_MEMORY` are integers."""
    return _MEMORY.get(dtype_of(value), dtype_of(value))


def _as_bits(var: Any) -> Any:
    """A pointer to numbers of `_MEMORY`, or a buffer of them, as one of integers; other variables unchanged."""
    kind = var.ty
    if isinstance(kind, tvm.ir.PointerType) and str(kind.element_type.dtype) in _MEMORY:
        bits = _MEMORY[str(kind.element_type.dtype)]
        return tvm.ir.Var(var.name, tvm.ir.PointerType(tvm.ir.PrimType(bits), kind.storage_scope))
    if tirx.buffer.is_buffer_var(var) and str(var.dtype) in _MEMORY:
        bits = _MEMORY[str(var.dtype)]
        return tirx.decl_buffer(
            list(var.shape), bits, var.name, elem_offset=var.elem_offset, scope=var.scope(), layout=var.layout
        )  # fmt: skip
    return var
