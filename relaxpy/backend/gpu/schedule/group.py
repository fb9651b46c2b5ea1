"""Pieces that all schedules for groups of threads have in common: loops bound to the grid, meeting points, shared
memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relaxpy.backend.gpu.device_kernel import MEETS, WHOLE
from relaxpy.tir.programs.loops import Buffer, Expr, Program, int64
from relaxpy.tir.tvm import s_tir, tirx

SHARED_BYTES = 16384
"""Memory that a group of threads has on every device (WebGPU's default limit)."""


def bound(var: Any, extent: Expr, tag: str, body: Any) -> Any:
    """A loop that is bound to an axis of threads or groups."""
    axis = tirx.IterVar(None, tirx.Var(tag, "int64"), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, int64(0), extent, tirx.ForKind.THREAD_BINDING, body, axis, {})


def launched(
    func: tirx.PrimFunc,
    body: Any,
    group: tuple[Any, Expr],
    thread: tuple[Any, int],
    *,
    is_whole: bool = False,
) -> tirx.PrimFunc:
    """The function with a body that runs for every group and thread, each given as a variable and a number. All
    barriers are in the body. `is_whole`: may functions of the device use elements of buffers that the body does not
    index?"""
    inner = bound(thread[0], int64(thread[1]), "threadIdx.x", body)
    grid = bound(group[0], group[1], "blockIdx.x", inner)
    root = func.body.block
    made = s_tir.SBlock(
        [], root.reads, root.writes, root.name_hint, grid, None, [], [], root.annotations
    )
    body = s_tir.SBlockRealize([], func.body.predicate, made)
    func = func.with_body(body).with_attr(MEETS, True)
    return func.with_attr(WHOLE, True) if is_whole else func


def blocks(extent: Expr, size: int) -> Expr:
    """The number of blocks of this size that cover an extent, as a formula for the grid; in kernels divisions are
    `loops.floordiv`."""
    return (
        tirx.floordiv(int64(extent) + int64(size - 1), int64(size)) if size > 1 else int64(extent)
    )


def meet(p: Program) -> None:
    """Wait for the other threads of the group, and see what they have written."""
    p.add(tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared")))


def shared(p: Program, name: str, size: int, dtype: str) -> Buffer:
    """Memory that the threads of a group share."""
    return _allocated(p, name, size, dtype, "shared")


def registers(p: Program, name: str, size: int, dtype: str) -> Buffer:
    """Memory of a thread; registers, if all indices are constants."""
    return _allocated(p, name, size, dtype, "local")


def _allocated(p: Program, name: str, size: int, dtype: str, scope: str) -> Buffer:
    buffer = tirx.decl_buffer([int64(size)], dtype, name, scope=scope)
    p.add(tirx.AllocBuffer(buffer))
    return buffer


@contextmanager
def shares(p: Program, count: int, thread: Expr, threads: int) -> Iterator[Expr]:
    """A loop over a thread's share of this many numbers: every `threads`-th."""
    with p.loop("step", -(-count // threads)) as step:
        number = p.let("number", step * threads + thread)
        with p.when(True if count % threads == 0 else number < count):
            yield number
