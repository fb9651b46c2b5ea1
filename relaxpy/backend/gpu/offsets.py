"""Tensors at an offset in their memory: kernels that take the offset as a parameter.

A device may require that a buffer begins at a multiple of hundreds of bytes, while the memory plan places tensors at
multiples of 64. So kernels take whole buffers, and for each of them the number of the first element, as integers after
all other parameters.
"""

from __future__ import annotations

from typing import Any

from relaxpy.tir.programs.loops import int64
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.types import Expr
from relaxpy.tir.walk import rewritten, walk


def with_offsets(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the device function with an offset parameter for each of its buffers, in the order of the buffers."""
    pointers = [param for param in func.params if isinstance(param.ty, tvm.ir.PointerType)]
    first = {pointer: tirx.Var(f"{pointer.name}_first", "int64") for pointer in pointers}
    offsets: dict[Any, Any] = {}

    def declared(node: Any) -> None:
        if node.data in first:
            offsets[node.buffer] = first[node.data]

    walk(func.body, (tirx.DeclBuffer, declared))

    def load(node: Any) -> Any:
        if node.source not in offsets:
            return node
        return tirx.BufferLoad(node.source, [_moved(node.indices[0], offsets[node.source])])

    def store(node: Any) -> Any:
        if node.buffer not in offsets:
            return node
        return tirx.BufferStore(
            node.buffer, node.value, [_moved(node.indices[0], offsets[node.buffer])]
        )

    body = rewritten(func.body, (tvm.ir.TensorLoad, load), (tirx.BufferStore, store))
    params = [*func.params, *first.values()]
    return tirx.PrimFunc(params, body, func.ret_type, attrs=func.attrs)


def _moved(index: Expr, offset: Any) -> Expr:
    """A flat index, counted from the start of the memory."""
    if isinstance(index, tirx.Ramp):
        return tirx.Ramp(_moved(index.base, offset), int64(index.stride), index.lanes)
    kind = tvm.DataType(str(index.ty.dtype))
    if kind.lanes > 1:
        return index.astype(f"int64x{kind.lanes}") + tirx.Broadcast(offset, kind.lanes)
    return offset + int64(index)
