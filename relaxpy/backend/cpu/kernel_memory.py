"""The heap memory that a kernel allocates in a run, beside its arguments."""

from __future__ import annotations

from relaxpy.backend.int_expr import int_expr
from relaxpy.ir.dim import Dim
from relaxpy.ir.module import BufferParam, ScalarParam
from relaxpy.runtime.bytecode import KernelMemory
from relaxpy.tir.lowering.heap import heap_use
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx


def kernel_memory(scheduled: tirx.PrimFunc) -> KernelMemory | None:
    """The heap memory of a scheduled program in terms of its arguments' sizes; None: not known."""
    used = heap_use(scheduled)
    if used is None:
        return None
    wanted = {*used.shared.vars, *used.each.vars}
    sizes: dict[Dim, tuple[int, int]] = {}
    for position, param in enumerate(PrimFunc(scheduled).params):
        shape = param.shape if isinstance(param, BufferParam) else ()
        if isinstance(param, ScalarParam) and param.var in wanted:
            sizes.setdefault(param.var.dim, (position, -1))
        for axis, size in enumerate(shape):
            if any(var.dim == size for var in wanted):
                sizes.setdefault(size, (position, axis))
    if any(var.dim not in sizes for var in wanted):
        return None
    slots = {size: slot for slot, size in enumerate(sizes)}
    shared, each = int_expr(used.shared, slots), int_expr(used.each, slots)
    return KernelMemory(shared, each, tuple(sizes.values()))
