"""Workspaces: memory that a tensor program allocates beside its parameters (paper §4.4), as parameters of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relaxpy.ir.module import BufferParam
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.schedule import is_scheduled
from relaxpy.tir.tvm import s_tir, tirx, tvm

SMALL = 1024
"""Bytes below which memory of constant size lives on the kernel's stack."""


@dataclass(frozen=True)
class Lifted:
    """A program that is given its workspaces."""

    program: PrimFunc
    workspaces: tuple[BufferParam, ...]
    position: int
    """Where they are among the buffers: before the first that is written."""


def lift_workspaces(program: PrimFunc) -> Lifted | None:
    """The program with what its root block allocates in global memory as parameters; None where there is nothing to
    lift.

    Only programs whose author arranged the loops (`relaxpy.tir.schedule`): in others the schedule rules decide which
    intermediates are memory at all.
    """
    func: Any = program.func
    realize = func.body
    if not is_scheduled(func) or not isinstance(realize, s_tir.SBlockRealize):
        return None
    block = realize.block
    lifted = [b for b in block.alloc_buffers if str(b.scope()) == "global" and not _is_small(b)]
    if not lifted or len(realize.iter_values) != 0:
        return None
    written = min(program.written, default=len(func.params))
    kept = [b for b in block.alloc_buffers if not any(b.same_as(other) for other in lifted)]
    root = s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, block.body,
        block.init, kept, block.match_buffers, block.annotations,
    )  # fmt: skip
    body = s_tir.SBlockRealize(realize.iter_values, realize.predicate, root)
    params = [*func.params[:written], *lifted, *func.params[written:]]
    new = PrimFunc(tirx.PrimFunc(params, body, func.ret_type, attrs=func.attrs), program.span)
    workspaces = new.params[written : written + len(lifted)]
    position = sum(isinstance(param, BufferParam) for param in program.params[:written])
    return Lifted(new, tuple(p for p in workspaces if isinstance(p, BufferParam)), position)


def _is_small(buffer: Any) -> bool:
    size = tvm.DataType(str(buffer.dtype)).bits // 8
    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm):
            return False
        size *= int(extent.value)
    return size < SMALL
