"""Plans for programs whose stages compute independent rows, so that one launch can run them all.

A *row axis* is an independent axis that all stages of a program have, such that along it each stage reads only the row
of another stage's buffer that it computes itself. Softmax has one row axis for each axis but the last; attention one
for the batch, the head and the query, in whatever order its buffers have them; an element-wise program, and a product
of matrices with a bias, all their axes.

Where rows are elements, a thread computes a row. Elsewhere a group of threads does: its threads share the elements of
a row, and meet between stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relaxpy.tir.programs.loops import constant
from relaxpy.tir.recognise.stages import Load, Stage, is_output, same_extents, stages_of, uses
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.types import Axis, Buffer, Expr

_SHORT = 32
"""A thread alone reduces this many elements."""


@dataclass(frozen=True)
class Part:
    """Stages that a group runs without meeting: one element after the other."""

    stages: tuple[Stage, ...]
    inner: tuple[Expr, ...]
    """The extents of the axes that are not rows, the same for all of these stages; () for values of a whole row."""


@dataclass(frozen=True)
class RowPlan:
    """The stages of a program as parts of rows."""

    parts: tuple[Part, ...]
    rows: tuple[Expr, ...]
    """The extents of the row axes."""
    names: tuple[str, ...]
    """The names of the row axes."""
    row_of: Mapping[Axis, int]
    """The row axes of each stage → their numbers among `rows`."""
    is_shared: bool
    """Does a group of threads compute a row?"""
    workspaces: tuple[Buffer, ...]
    """Intermediates that are in memory, since one thread reads what another one has computed."""

    def inner_axes(self, stage: Stage) -> tuple[Axis, ...]:
        """The axes of a stage that are not rows."""
        return tuple(axis for axis in stage.axes if axis not in self.row_of)


def row_plan(func: tirx.PrimFunc, given: Sequence[Stage] | None = None) -> RowPlan | None:
    """The plan for a program, or for the `given` stages in the place of its own; None for a program that is not of
    stages, or has no rows in common."""
    found = stages_of(func) if given is None else given
    if found is None:
        return None
    stages = [stage for stage in found if is_output(stage, func) or _readers(stage.buffer, found)]
    row_of = _row_axes(stages)
    if row_of is None:
        return None
    last = stages[-1]
    rows = [e for axis, e in zip(last.axes, last.extents, strict=True) if axis in row_of]
    names = [plain_name(axis) for axis in last.axes if axis in row_of]
    parts = _parts(stages, row_of)
    has_inner = any(part.inner for part in parts)
    if has_inner and (not rows or any(_is_large(stage, row_of) for stage in stages)):
        return None
    is_shared = has_inner or any(_is_long_row(stage) for stage in stages)
    kept = [
        stage.buffer
        for part in parts
        for stage in part.stages
        if part.inner and not is_output(stage, func) and _leaves(stage, part, stages)
    ]
    return RowPlan(tuple(parts), tuple(rows), tuple(names), row_of, is_shared, tuple(kept))


def plain_name(axis: Axis) -> str:
    """The name of the loop of a block's axis."""
    return str(axis.name).removeprefix("v_")


def _readers(buffer: Buffer, stages: Sequence[Stage]) -> list[tuple[Stage, Load]]:
    """The reads of a buffer, each with its stage."""
    return [(stage, load) for stage in stages for load in stage.reads(buffer)]


def _row_axes(stages: Sequence[Stage]) -> dict[Axis, int] | None:
    """The axes of all stages that are rows, with the numbers of the rows."""
    last = stages[-1]
    allowed = set(range(len(last.axes)))
    while True:
        found = _labels(stages, allowed)
        if found is None:
            return None
        labels, wrong = found
        everywhere = [{labels[axis] for axis in stage.axes if axis in labels} for stage in stages]
        kept = allowed.intersection(*everywhere) - wrong
        if kept == allowed:
            order = {label: number for number, label in enumerate(sorted(kept))}
            return {axis: order[label] for axis, label in labels.items()}
        allowed = kept


def _labels(stages: Sequence[Stage], allowed: set[int]) -> tuple[dict[Axis, int], set[int]] | None:
    """For axes of stages the axis of the last stage that they go with, by number, and the numbers for which stages
    disagree. None if a stage goes with no other one."""
    last = stages[-1]
    labels = {axis: number for number, axis in enumerate(last.axes) if number in allowed}
    extents = list(last.extents)
    wrong: set[int] = set()
    for stage in reversed(stages[:-1]):
        readers = [(r, load) for r, load in _readers(stage.buffer, stages) if r is not stage]
        if not readers and stage.buffer.same_as(last.buffer):
            readers = [(last, tirx.BufferLoad(last.buffer, list(last.index)))]
        if not readers:
            if not same_extents(stage.extents, last.extents):
                return None
            labels |= {axis: n for n, axis in enumerate(stage.axes) if n in allowed}
            continue
        taken: set[int] = set()
        for place, axis in enumerate(stage.index):
            if not isinstance(axis, tvm.ir.Var):
                continue
            said = {_label(load.indices[place], labels) for _, load in readers}
            named = {label for label in said if label is not None}
            (only,) = said if len(said) == 1 else (None,)
            extent = dict(zip(stage.axes, stage.extents, strict=True))[axis]
            if only is None or only in taken or not same_extents([extent], [extents[only]]):
                wrong |= named
            else:
                labels[axis] = only
                taken.add(only)
    return labels, wrong


def _label(index: Expr, labels: Mapping[Axis, int]) -> int | None:
    return labels.get(index) if isinstance(index, tvm.ir.Var) else None


def _parts(stages: Sequence[Stage], row_of: Mapping[Axis, int]) -> list[Part]:
    """The stages in runs in which each reads of the others only the element that it computes itself."""
    parts: list[Part] = []
    for stage in stages:
        inner = [a for a in stage.axes if a not in row_of]
        extents = tuple(
            e for a, e in zip(stage.axes, stage.extents, strict=True) if a not in row_of
        )
        if parts and inner and _joins(stage, inner, extents, parts[-1], row_of):
            parts[-1] = Part((*parts[-1].stages, stage), extents)
        else:
            parts.append(Part((stage,), extents))
    return parts


def _joins(
    stage: Stage,
    inner: Sequence[Axis],
    extents: Sequence[Expr],
    part: Part,
    row_of: Mapping[Axis, int],
) -> bool:
    """Can the stage run for each element of a part just behind its other stages?"""
    if not same_extents(extents, part.inner):
        return False
    for other in part.stages:
        places = [
            i for i, a in enumerate(other.index) if isinstance(a, tvm.ir.Var) and a not in row_of
        ]
        for load in stage.reads(other.buffer):
            at = [load.indices[place] for place in places]
            if len(at) != len(inner) or not all(
                x.same_as(y) for x, y in zip(at, inner, strict=True)
            ):
                return False
        if other.buffer.same_as(stage.buffer):
            return False
    return True


def _leaves(stage: Stage, part: Part, stages: Sequence[Stage]) -> bool:
    """Does a stage outside of its part read a buffer?"""
    return any(not any(r is own for own in part.stages) for r, _ in _readers(stage.buffer, stages))


def _is_large(stage: Stage, row_of: Mapping[Axis, int]) -> bool:
    """Is it a sum for each element of several axes, which needs more threads than a group has?"""
    return bool(stage.reduce_axes) and sum(axis not in row_of for axis in stage.axes) > 1


def _is_long_row(stage: Stage) -> bool:
    """Is it a reduction of what lies next to each other in memory, and is used for this row alone? A thread alone
    would read far from its neighbours. Products of matrices use each element for several rows."""
    if not stage.reduce_axes or not stage.loads:
        return False
    sizes = [constant(extent) for extent in stage.reduce_extents]
    if all(size is not None for size in sizes):
        count = 1
        for size in sizes:
            count *= size or 0
        if count <= _SHORT:
            return False
    innermost = stage.reduce_axes[-1]
    for load in stage.loads:
        if not any(uses(index, axis) for index in load.indices for axis in stage.reduce_axes):
            continue
        if not len(load.indices) or not uses(load.indices[-1], innermost):
            return False
        if not all(any(uses(index, axis) for index in load.indices) for axis in stage.axes):
            return False
    return True
