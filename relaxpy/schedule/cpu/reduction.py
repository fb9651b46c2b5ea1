"""Reductions and what hangs on them: sums, means, softmax, layer normalisation.

Stages that agree on leading dimensions (rows that do not look at each other) run together under one parallel loop over
those rows, where an intermediate is a number or a row, in registers or a few cache lines, never a whole tensor. Stages
that do not agree run one after the other, each parallel by itself. Every result is computed by one thread in a fixed
order: the number of threads does not change a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relaxpy.schedule.cpu.elementwise import product, split_index, write_elementwise
from relaxpy.schedule.cpu.nests import Lanes, StageWriter, extent_of
from relaxpy.tir import stages as s
from relaxpy.tir._tvm import tirx
from relaxpy.tir.loops import Buffer, PrimFunc, Program, ceildiv, constant, int64, minimum, simplify
from relaxpy.tir.stages import Stage
from relaxpy.tir.target import Target


def schedule_reduction(func: PrimFunc, target: Target) -> PrimFunc | None:
    """A program of element-wise stages and reductions; None for what is not one."""
    stages = s.read_stages(func)
    if stages is None:
        return None
    stages = s.inline_stages(stages, func)
    writer = StageWriter(Program(), target)
    rows = s.common_rows(stages)
    if len(stages) > 1 and constant(product(stages[-1].buffer.shape[:rows])) != 1:
        _write_rows(writer, stages, rows, func)
    else:
        _write_in_turn(writer, stages, func)
    return func.with_body(writer.program.body())


def _write_in_turn(writer: StageWriter, stages: Sequence[Stage], func: PrimFunc) -> None:
    """Each stage by itself, intermediates as whole tensors."""
    for stage in stages:
        if not s.is_output(stage, func):
            writer.program.add(tirx.AllocBuffer(stage.buffer))
    for stage in stages:
        if stage.combiner is None:
            write_elementwise(writer, stage)
        else:
            _write_reduction(writer, stage)


def _write_reduction(writer: StageWriter, stage: Stage) -> None:
    """A reduction by itself: parallel over its results, in groups of a tile where they are lanes."""
    p = writer.program
    axes, extents = list(stage.axes), list(stage.extents)
    if axes and writer.vector_axis(stage, {}) is Lanes.KEPT:
        axis, extent = axes.pop(), extents.pop()
        width = 4 * writer.lanes(stage)
        groups = ceildiv(extent, width)
        with p.loop("row", product([*extents, groups]), parallel=True) as row:
            *places, group = split_index(p, row, [*extents, groups])
            start = p.let("start", simplify(group * int64(width)))
            length = p.let("length", minimum(width, extent_of(stage, axis) - start))
            writer.write(stage, dict(zip(axes, places, strict=True)), (start, length))
        return
    with p.loop("row", product(extents), parallel=True) as row:
        places = split_index(p, row, extents)
        writer.write(stage, dict(zip(axes, places, strict=True)))


def _write_rows(writer: StageWriter, stages: Sequence[Stage], rows: int, func: PrimFunc) -> None:
    """All stages under one parallel loop over their common rows."""
    p = writer.program
    extents = list(stages[-1].buffer.shape[:rows])
    with p.loop("row", product(extents), parallel=True) as row:
        places = split_index(p, row, extents)
        for stage in _localised(p, stages, rows, func):
            fixed = {
                axis: place
                for axis, place in zip(stage.index[:rows], places, strict=False)
                if isinstance(axis, s.Var)
            }
            writer.write(_without_rows(stage, rows, func), fixed)


def _localised(p: Program, stages: Sequence[Stage], rows: int, func: PrimFunc) -> list[Stage]:
    """The stages with their intermediates replaced by buffers of one row, which are allocated here."""
    change: dict[Buffer, tuple[Buffer, int]] = {}
    for stage in stages:
        if s.is_output(stage, func):
            continue
        shape = list(stage.buffer.shape[rows:]) or [int64(1)]
        local = tirx.decl_buffer(
            shape, stage.buffer.dtype, stage.buffer.name, scope="global", layout=None
        )
        p.add(tirx.AllocBuffer(local))
        change[stage.buffer] = (local, rows)
    local_stages: list[Stage] = []
    for stage in stages:
        buffer = change[stage.buffer][0] if stage.buffer in change else stage.buffer
        local_stages.append(replace(stage, buffer=buffer, value=s.rebuffer(stage.value, change)))
    return local_stages


def _without_rows(stage: Stage, rows: int, func: PrimFunc) -> Stage:
    """A localised stage with the index of its row buffer."""
    if s.is_output(stage, func):
        return stage
    return replace(stage, index=stage.index[rows:] or (int64(0),))
