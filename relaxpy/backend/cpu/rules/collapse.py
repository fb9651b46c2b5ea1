"""Collapse axes: merge neighbouring axes that every access of a stage traverses in order.

`x[n, c, h, w] * s[c]` traverses h and w like one axis of h*w elements; a tensor that is read and written in order is
one long array. Vectors are then full whatever the last dimension is, there are fewer loops, and only the axes that make
a stage a transposition or a broadcast remain.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from relaxpy.tir.analyzer import equal
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    Program,
    constant,
    int64,
    is_constant,
    simplify,
)
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Load, Stage, Var
from relaxpy.tir.tvm import tirx, tvm_ffi

Axes = list[tuple[Var, Expr]]
"""Axes with their extents, outermost first."""


def collapse(
    p: Program, stage: Stage, fixed: Collection[Var] = (), shared: Collection[Buffer] = ()
) -> Stage:
    """Merge the axes of the stage, except for those in `fixed`. Elements are reduced in memory order.

    Accesses that used several of the merged axes go through flat views, which are declared here. Buffers in `shared`,
    which other stages access too, get no view: for LLVM a view and its buffer are different memory.
    """
    stage = _in_order_of_memory(stage)
    free = [(a, e) for a, e in zip(stage.axes, stage.extents, strict=True) if a not in fixed]
    reduced = list(zip(stage.reduce_axes, stage.reduce_extents, strict=True))
    accesses = _accesses(stage, shared)
    if len(free) < 2 and len(reduced) < 2 and all(len(access.shape) < 2 for access in accesses):
        return stage
    bare = s.map_loads(stage.value, lambda node: tirx.const(0, node.ty.dtype))
    names = [axis for axis, _ in (*free, *reduced)]
    runs = [run for axes in (free, reduced) for run in _runs(axes, names, accesses, bare)]
    merged = [axis for run in runs if len(run) > 1 for axis, _ in run]

    def is_joined(run: Axes) -> bool:
        (axis, _), *others = run
        if others:
            return True
        if not any(access.hides(axis, names) for access in accesses):
            return False
        # An access that varies along it stays as it is, which one that uses merged axes cannot.
        using = [access for access in accesses if any(map(access.uses, merged))]
        return all(access.stride(axis, names) is not None for access in using)

    joined = [run for run in runs if is_joined(run)]
    return _joined(p, stage, joined, shared) if joined else stage


def _in_order_of_memory(stage: Stage) -> Stage:
    """Return the stage with its reduced axes in the order of the dimensions that they traverse in the first read."""
    if len(stage.reduce_axes) < 2:
        return stage
    for read in stage.loads:
        found = [
            next((d for d, index in enumerate(read.indices) if s.uses(index, axis)), None)
            for axis in stage.reduce_axes
        ]
        places = [place for place in found if place is not None]
        if len(places) == len(found):
            order = sorted(range(len(places)), key=places.__getitem__)
            return replace(
                stage,
                reduce_axes=tuple(stage.reduce_axes[i] for i in order),
                reduce_extents=tuple(stage.reduce_extents[i] for i in order),
            )
    return stage


def stride(
    indices: Sequence[Expr], shape: Sequence[Expr], axis: Var, axes: Sequence[Var]
) -> Expr | None:
    """The stride of an access to a compact buffer along `axis`, in elements; None if it depends on the values of
    `axes`, or on memory."""
    if any(s.loads_var(index, axis) for index in indices):
        return None
    after = [
        tvm_ffi.structural_map(index, (Var, lambda v: v + int64(1) if v.same_as(axis) else v))
        for index in indices
    ]
    moves: Expr = int64(0)
    for index, moved, extent in zip(indices, after, shape, strict=True):
        # Dimension by dimension, so that no products of symbols arise that a difference would not cancel.
        step = int64(0) if moved.same_as(index) else simplify(moved - index)
        if not (is_constant(moves, 0) and is_constant(step, 0)):
            moves = simplify(moves * int64(extent) + step)
    if any(s.uses(moves, other) for other in axes):
        # `x[i // 4, i % 4]` has a constant stride all the same.
        moves = simplify(s.flat_index(after, shape) - s.flat_index(indices, shape))
    return None if s.loads_of(moves) or any(s.uses(moves, other) for other in axes) else moves


@dataclass(frozen=True)
class _Access:
    """One access of a stage."""

    indices: Sequence[Expr]
    shape: Sequence[Expr]
    is_kept: bool
    """Must it stay unchanged?"""

    def stride(self, axis: Var, axes: Sequence[Var]) -> Expr | None:
        """Its stride along the axis; None if that varies, or if the access moves with the axis and must not be
        changed."""
        if self.is_kept:
            return None if self.uses(axis) else int64(0)
        return stride(self.indices, self.shape, axis, axes)

    def uses(self, axis: Var) -> bool:
        return any(s.uses(index, axis) for index in self.indices)

    def hides(self, axis: Var, axes: Sequence[Var]) -> bool:
        """Are neighbours along the axis neighbours in memory, but not along the last dimension? Either the dimensions
        after it have extent 1, or it is split as in `x[i // 4, i % 4]`. Such an access is vectorised only after it is
        flattened."""
        if self.is_kept or not self.indices or not self.uses(axis):
            return False
        last = stride(self.indices[-1:], self.shape[-1:], axis, axes)
        if last is not None and constant(last) != 0:
            return False
        moves = self.stride(axis, axes)
        return is_constant(moves, 1)


def _accesses(stage: Stage, shared: Collection[Buffer]) -> list[_Access]:
    own = _Access(stage.index, stage.buffer.shape, stage.buffer in shared)
    return [own, *(_Access(r.indices, r.source.shape, r.source in shared) for r in stage.loads)]


def _runs(axes: Axes, names: Sequence[Var], accesses: Sequence[_Access], bare: Expr) -> list[Axes]:
    """The maximal runs of axes that can be merged; `names` are those of all."""
    moves = {
        axis: None if s.uses(bare, axis) else [access.stride(axis, names) for access in accesses]
        for axis, _ in axes
    }
    runs: list[Axes] = []
    for axis, extent in axes:
        if runs and _in_order(moves[runs[-1][-1][0]], moves[axis], extent):
            runs[-1].append((axis, extent))
        else:
            runs.append([(axis, extent)])
    return runs


def _in_order(
    outer: list[Expr | None] | None, inner: list[Expr | None] | None, extent: Expr
) -> bool:
    """Is the stride of the outer axis the whole length of the inner one, in every access?"""
    if outer is None or inner is None:
        return False
    return all(
        a is not None and b is not None and equal(a, b * int64(extent))
        for a, b in zip(outer, inner, strict=True)
    )


def _joined(p: Program, stage: Stage, runs: Sequence[Axes], shared: Collection[Buffer]) -> Stage:
    """Return the stage with one axis for each of these runs. An access that must stay, or that has no constant stride,
    uses only axes that are runs of their own."""
    last: dict[Var, Var] = {}  # the fastest axis of a run, and the axis that replaces the whole run
    gone: dict[Var, Expr] = {}
    extents: dict[Var, Expr] = {}
    for run in runs:
        axis = Var(run[-1][0].name, int64(0).ty)
        last[run[-1][0]] = axis
        total: Expr = int64(1)
        for old, extent in run:
            gone[old] = int64(0)
            total = total * int64(extent)
        extents[axis] = simplify(total)
    views: dict[Buffer, Buffer] = {}

    def flat(indices: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
        offset = s.flat_index(indices, shape)
        index = s.substitute(offset, gone)
        for old, new in last.items():
            moves = stride(indices, shape, old, list(gone))
            assert moves is not None, "axes are joined where all accesses move evenly"
            index = index + moves * new
        return simplify(index)

    def stays(buffer: Buffer, indices: Sequence[Expr]) -> bool:
        moves = (stride(indices, buffer.shape, old, list(gone)) for old in last)
        return buffer in shared or any(step is None for step in moves)

    def view(buffer: Buffer) -> Buffer:
        if len(buffer.shape) == 1:
            return buffer
        if buffer not in views:
            views[buffer] = p.flat_view(buffer)
        return views[buffer]

    def read(node: Load) -> Expr:
        if not any(s.uses(index, axis) for index in node.indices for axis in gone):
            return node
        if stays(node.source, node.indices):
            return tirx.BufferLoad(node.source, [s.substitute(i, last) for i in node.indices])
        return tirx.BufferLoad(view(node.source), [flat(node.indices, node.source.shape)])

    def axes(old: Sequence[Var], sizes: Sequence[Expr]) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
        kept = [
            (last.get(a, a), e)
            for a, e in zip(old, sizes, strict=True)
            if a not in gone or a in last
        ]
        return tuple(a for a, _ in kept), tuple(extents.get(a, e) for a, e in kept)

    # An axis whose number is used as a value is a run of its own: only its name changes there.
    value = s.substitute(s.map_loads(stage.value, read), last)
    buffer, index = stage.buffer, stage.index
    if any(s.uses(place, axis) for place in index for axis in gone):
        if stays(buffer, index):
            index = tuple(s.substitute(place, last) for place in index)
        else:
            buffer, index = view(buffer), (flat(index, buffer.shape),)
    free, sizes = axes(stage.axes, stage.extents)
    reduced, lengths = axes(stage.reduce_axes, stage.reduce_extents)
    return replace(
        stage, buffer=buffer, index=index, axes=free, extents=sizes, reduce_axes=reduced, reduce_extents=lengths,
        value=value,
    )  # fmt: skip
