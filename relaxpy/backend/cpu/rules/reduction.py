"""Reductions and the stages around them: sums, means, softmax, layer normalisation.

Stages that share leading dimensions (independent rows) run together under one parallel loop over those rows. Their
intermediates are then a number or a row, in registers or a few cache lines, never a whole tensor. Other stages run one
after the other, each parallel by itself. Long rows are taken in blocks (`long_rows`). Every result is computed in an
order that depends on shapes only, so results are bit-identical for any number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.rules.blocks import (
    has_blocks,
    is_long,
    may_be_long,
    partial_results,
    write_blocks,
)
from relaxpy.backend.cpu.rules.collapse import collapse
from relaxpy.backend.cpu.rules.elementwise import write_elementwise
from relaxpy.backend.cpu.rules.long_rows import LongRows, long_rows, write_long_rows
from relaxpy.backend.cpu.rules.nests import TILE_VECTORS, Lanes, StageWriter, extent_of
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.rules.streaming import Stream, with_streams
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.lowering.workspace import is_small
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    PrimFunc,
    Program,
    ceildiv,
    constant,
    int64,
    minimum,
    simplify,
)
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Stage
from relaxpy.tir.tvm import tirx


def schedule_reduction(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """Schedule a program of element-wise stages and reductions; None for other programs."""
    stages = s.stages_of(func)
    if stages is None:
        return None
    rows = s.common_rows(stages)
    long = long_rows(stages, rows, func)
    if long is not None:
        return Arrangement(lambda: _cut(func, target, long), list(long.partial.values()))
    if len(stages) > 1 and constant(product(stages[-1].buffer.shape[:rows])) != 1:
        return Arrangement(lambda: _together(func, target, stages, rows))
    partial = [_partial_results(StageWriter(Program(), target), stage, stages) for stage in stages]
    handed_on = [stage.buffer for stage in stages if not s.is_output(stage, func)]
    workspaces = [buffer for buffer in (*handed_on, *partial) if buffer is not None]
    return Arrangement(
        lambda: _in_turn(func, target, stages, partial),
        [buffer for buffer in workspaces if not is_small(buffer)],
    )


def _cut(func: PrimFunc, target: CpuTarget, long: LongRows) -> PrimFunc:
    """Schedule stages whose rows are long."""
    writer = _sharing(StageWriter(Program(), target, params=func.params), long.stages)
    write_long_rows(writer, long, func)
    return func.with_body(with_streams(writer.program.body()))


def _together(func: PrimFunc, target: CpuTarget, stages: Sequence[Stage], rows: int) -> PrimFunc:
    """Schedule stages that share leading dimensions."""
    writer = _sharing(StageWriter(Program(), target, params=func.params), stages)
    if _is_columns(writer, stages, rows):
        _write_columns(writer, stages, func)
    else:
        _write_rows(writer, stages, rows, func)
    return func.with_body(with_streams(writer.program.body()))


def _sharing(writer: StageWriter, stages: Sequence[Stage]) -> StageWriter:
    """Return the writer with the buffers that several of these stages access."""
    shared = [
        stage.buffer
        for stage in stages
        if any(other.reads(stage.buffer) for other in stages if other is not stage)
    ]
    return replace(writer, shared=frozenset(shared))


def _in_turn(
    func: PrimFunc, target: CpuTarget, stages: Sequence[Stage], partial: Sequence[Buffer | None]
) -> PrimFunc:
    """Run each stage by itself, with intermediates stored as whole tensors. Stages with long reductions get memory for
    the results of blocks."""
    writer = _sharing(StageWriter(Program(), target, params=func.params), stages)
    for stage in stages:
        if not s.is_output(stage, func):
            writer.program.add(tirx.AllocBuffer(stage.buffer))
    for stage, results in zip(stages, partial, strict=True):
        if stage.combiner is None:
            write_elementwise(writer, stage)
        else:
            _write_reduction(writer, stage, results)
    return func.with_body(with_streams(writer.program.body()))


def _partial_results(writer: StageWriter, stage: Stage, stages: Sequence[Stage]) -> Buffer | None:
    """Memory for the results of blocks, for a stage that may be a long reduction."""
    if stage.combiner is None or not may_be_long(stage):
        return None
    writer = _sharing(writer, stages)
    stage = collapse(writer.program, stage, (), writer.shared)
    columns = _is_in_columns(writer, stage)
    return partial_results(stage, columns=columns) if has_blocks(stage, columns=columns) else None


def _is_in_columns(writer: StageWriter, stage: Stage) -> bool:
    return len(stage.axes) > 0 and writer.vector_axis(stage, {}) is Lanes.KEPT


def _write_reduction(writer: StageWriter, stage: Stage, partial: Buffer | None) -> None:
    """Write a reduction by itself: parallel over its results, or over blocks of the reduced axis if there are few
    results."""
    p = writer.program
    stage = collapse(p, stage, (), writer.shared)
    columns = _is_in_columns(writer, stage)
    if partial is None:
        _write_results(writer, stage, columns=columns)
        return
    with p.when(is_long(stage)):
        blocks = write_blocks(writer, stage, partial, columns=columns)
        _write_results(writer, blocks, columns=columns)
    with p.otherwise(is_long(stage)):
        _write_results(writer, stage, columns=columns)


def _write_results(writer: StageWriter, stage: Stage, *, columns: bool) -> None:
    """Compute each result in one task; neighbouring columns together, as many as registers hold."""
    p = writer.program
    axes, extents = list(stage.axes), list(stage.extents)
    if columns:
        axis, extent = axes.pop(), extents.pop()
        width = TILE_VECTORS * writer.lanes(stage)
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
    """Run all stages under one parallel loop over their common rows."""
    p = writer.program
    extents = list(stages[-1].buffer.shape[:rows])
    streams = {
        stage.buffer: Stream.of(p, writer.target, stage, writer.params)
        for stage in stages
        if s.is_output(stage, func) and stage.buffer not in writer.shared
    }
    with p.loop("row", product(extents), parallel=True) as row:
        places = split_index(p, row, extents)
        local = _localised(p, stages, rows, func)
        writer = _sharing(writer, local)
        parts = [(_without_rows(stage, rows, func), _fixed(stage, places)) for stage in local]
        while parts:
            stage, at = parts.pop(0)
            if parts and writer.write_reduced(stage, parts[0][0], {**at, **parts[0][1]}):
                parts.pop(0)
            else:
                replace(writer, stream=streams.get(stage.buffer)).write(stage, at)


def _fixed(stage: Stage, places: Sequence[Expr]) -> dict[s.Var, Expr]:
    """The values of the leading axes of a stage."""
    leading = zip(stage.index, places, strict=False)
    return {axis: place for axis, place in leading if isinstance(axis, s.Var)}


def _is_columns(writer: StageWriter, stages: Sequence[Stage], rows: int) -> bool:
    """Do all stages have just the common rows as dimensions, and is a reduction best vectorised along the last one?"""
    if any(len(stage.index) != rows or not isinstance(stage.index[-1], s.Var) for stage in stages):
        return False
    for stage in stages:
        outer = dict.fromkeys(stage.axes[:-1], int64(0))
        if stage.combiner is not None and writer.vector_axis(stage, outer) is Lanes.KEPT:
            return True
    return False


def _write_columns(writer: StageWriter, stages: Sequence[Stage], func: PrimFunc) -> None:
    """Run stages with equal dimensions on one tile of neighbouring results at a time: a mean over an outer axis."""
    p = writer.program
    extents = list(stages[-1].buffer.shape)
    width = TILE_VECTORS * min(writer.lanes(stage) for stage in stages)
    groups = ceildiv(extents[-1], width)
    with p.loop("row", product([*extents[:-1], groups]), parallel=True) as row:
        *places, group = split_index(p, row, [*extents[:-1], groups])
        start = p.let("start", simplify(group * int64(width)))
        length = p.let("length", minimum(width, extents[-1] - start))
        tiles: dict[Buffer, Buffer] = {}
        for stage in stages:
            if not s.is_output(stage, func):
                tiles[stage.buffer] = p.allocate(stage.name, width, str(stage.buffer.dtype))
        for stage in stages:
            fixed = {
                axis: place
                for axis, place in zip(stage.index[:-1], places, strict=True)
                if isinstance(axis, s.Var)
            }
            writer.write(_tiled(stage, tiles, start), fixed, (start, length))


def _tiled(stage: Stage, tiles: Mapping[Buffer, Buffer], start: Expr) -> Stage:
    """Return the stage with its intermediates in tiles whose first element is position `start` of the last
    dimension."""

    def change(node: s.Load) -> Expr:
        tile = tiles.get(node.source)
        return node if tile is None else tirx.BufferLoad(tile, [node.indices[-1] - start])

    tiled = replace(stage, value=s.map_loads(stage.value, change))
    if stage.buffer not in tiles:
        return tiled
    return replace(tiled, buffer=tiles[stage.buffer], index=(stage.index[-1] - start,))


def _localised(p: Program, stages: Sequence[Stage], rows: int, func: PrimFunc) -> list[Stage]:
    """Return the stages with their intermediates replaced by buffers of one row, which are allocated here."""
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
    """Return a localised stage with the row axes removed from the index of its buffer."""
    if s.is_output(stage, func):
        return stage
    return replace(stage, index=stage.index[rows:] or (int64(0),))
