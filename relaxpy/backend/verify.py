"""Check every scheduled kernel for performance errors, whichever rule produced it.

Rules are long, and their typical errors are simple: a loop that launches on the thread pool again and again, a
workspace allocated in every iteration, contiguous elements visited one by one. Such a kernel gives correct numbers
slowly, so no other test finds the error. The check runs on every kernel that `relaxpy.testing` compiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from relaxpy.backend.schedule import ScheduledKernel
from relaxpy.errors import BuildError
from relaxpy.tir.programs.loops import ABOUT, AGAIN, Expr, Stmt, constant
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.schedule import has_parallel_loop
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi

STACK_BYTES = 1024
"""Smaller allocations are on the stack and cost nothing."""
_FEW_LAUNCHES = 4
"""A loop that runs so often may launch each time."""
_LIBRARY = frozenset(f"tirx.{name}" for name in ("erf", "tan", "sinh", "cosh", "tanh", "pow"))
_OWN = ("author", "rows", "fallback")
"""Rules that keep loops as somebody else wrote them."""


def check_scheduled(kernel: ScheduledKernel) -> None:
    """Raise `BuildError` (code `kernel-schedule`) for a kernel that violates a rule: its serial twin has no parallel
    loops; parallel loops are outermost, or in a loop that is said to run a few times, or said to be launched again and
    again (`AGAIN`); and, if a rule of ours wrote the loops, workspaces are outside of serial loops, and every loop over
    contiguous elements is vectorised."""
    found = [*_findings(kernel)]
    if found:
        raise BuildError(
            "kernel-schedule",
            f'the rule "{kernel.rule}" wrote a slow schedule: {found[0]}',
            notes=(*found[1:], f"the tensor program:\n{kernel.parallel.script()}"),
        )


def _findings(kernel: ScheduledKernel) -> Iterator[str]:
    if has_parallel_loop(kernel.serial):
        yield "its serial twin has a parallel loop"
    place = _Place(kernel.rule not in _OWN, _allocated(kernel.parallel))
    yield from dict.fromkeys(_walk(kernel.parallel.body, place))


@dataclass(frozen=True)
class _Place:
    """The statements around a statement."""

    is_ours: bool
    allocated: tuple[Expr, ...]
    """Buffers that the kernel allocates: tables of positions and the like."""
    loops: tuple[tirx.For, ...] = ()

    @property
    def is_serial(self) -> bool:
        """Does it run repeatedly in one thread?"""
        return any(loop.kind != tirx.ForKind.PARALLEL for loop in self.loops)


def _walk(stmt: Stmt, place: _Place) -> Iterator[str]:
    match stmt:
        case tirx.For():
            is_inner = AGAIN not in stmt.annotations and not all(map(_is_short, place.loops))
            if stmt.kind == tirx.ForKind.PARALLEL and is_inner:
                yield f'the parallel loop "{stmt.loop_var.name}" is inside another loop'
            yield from _walk(stmt.body, replace(place, loops=(*place.loops, stmt)))
        case tirx.AllocBuffer():
            if place.is_ours and place.is_serial and not _is_small(stmt.buffer):
                yield f'the workspace "{stmt.buffer.name}" is allocated in a serial loop'
        case tirx.BufferStore():
            if place.is_ours and _walks_neighbours(stmt, place):
                yield f'"{stmt.buffer.name}" is written to contiguous memory without vectors'
        case _:
            for part in _parts(stmt):
                yield from _walk(part, place)


def _parts(stmt: Stmt) -> Sequence[Stmt]:
    match stmt:
        case tirx.SeqStmt():
            return list(stmt.seq)
        case tirx.IfThenElse():
            return [part for part in (stmt.then_case, stmt.else_case) if part is not None]
        case s_tir.SBlockRealize():
            return [stmt.block.body]
        case _:
            body = getattr(stmt, "body", None)
            return [] if body is None else [body]


def _is_short(loop: tirx.For) -> bool:
    """Is a loop said to run a few times?"""
    about = constant(loop.annotations.get(ABOUT, _MANY))
    return about is not None and about <= _FEW_LAUNCHES


def _is_small(buffer: Expr) -> bool:
    size = max(1, int(tvm.DataType(str(buffer.dtype)).bits) // 8)
    for extent in buffer.shape:
        known = constant(extent)
        if known is None:
            return False
        size *= known
    return size < STACK_BYTES


def _walks_neighbours(store: tirx.BufferStore, place: _Place) -> bool:
    """Does the innermost loop, if serial and of several iterations, visit only contiguous elements one by one, all of
    types that can be vectorised?"""
    if not place.loops or place.loops[-1].kind != tirx.ForKind.SERIAL or _lanes(store.value) != 1:
        return False
    loop = place.loops[-1]
    inside: list[tirx.For] = []
    tvm_ffi.structural_walk(loop.body, (tirx.For, inside.append))
    if inside or (constant(loop.extent) or _MANY) < _MANY:
        return False
    loads = s.loads_of(store.value)
    if any(store.buffer.same_as(own) for own in place.allocated) or _calls_library(store.value):
        return False
    if any(str(b.dtype) == "bool" for b in (store.buffer, *(load.source for load in loads))):
        return False
    if s.step(store.indices, store.buffer.shape, loop.loop_var) != 1:
        return False
    # A workspace that several stages use is never recognised as flat: its trailing dimensions of extent 1 stay.
    for load in loads:
        last = s.step(load.indices[-1:], load.source.shape[-1:], loop.loop_var)
        moves = s.step(load.indices, load.source.shape, loop.loop_var)
        if moves != last and any(load.source.same_as(own) for own in place.allocated):
            return False
    return all(s.step(load.indices, load.source.shape, loop.loop_var) in (0, 1) for load in loads)


_MANY = 8
"""The number of iterations from which on vectors pay off."""


def _allocated(func: tirx.PrimFunc) -> tuple[Expr, ...]:
    found: list[Expr] = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, lambda stmt: found.append(stmt.buffer)))
    return tuple(found)


def _calls_library(value: Expr) -> bool:
    """Does it call a function of the C library, by name or for a float64? Those take only scalars."""
    found: list[Expr] = []

    def call(node: tvm.ir.Call) -> None:
        name = str(getattr(node.op, "name", ""))
        if name == "tirx.call_pure_extern" or (
            name in _LIBRARY and "float64" in str(node.ty.dtype)
        ):
            found.append(node)

    tvm_ffi.structural_walk(value, (tvm.ir.Call, call))
    return bool(found)


def _lanes(value: Expr) -> int:
    return int(tvm.DataType(str(value.ty.dtype)).lanes)
