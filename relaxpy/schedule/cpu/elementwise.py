"""Element-wise, broadcasting and index-shuffling programs: one pass, vectors inside, parallel outside.

What reads and writes all its tensors in order runs as one long array, whatever its shape. Everything else keeps its
last axis as the vector loop and makes one parallel loop of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relaxpy.schedule.cpu.nests import At, StageWriter, extent_of
from relaxpy.tir import stages as s
from relaxpy.tir._tvm import tirx
from relaxpy.tir.loops import (
    Expr,
    PrimFunc,
    Program,
    at_least_one,
    ceildiv,
    constant,
    int64,
    minimum,
    simplify,
)
from relaxpy.tir.stages import Stage, Var
from relaxpy.tir.target import Target

CHUNK = 4096
"""Elements of the innermost axis that one parallel iteration takes: some microseconds of work."""


def schedule_elementwise(func: PrimFunc, target: Target) -> PrimFunc | None:
    """A program whose intermediates all inline into one element-wise stage; None for others."""
    stages = s.read_stages(func)
    if stages is None:
        return None
    stages = s.inline_stages(stages, func)
    if len(stages) != 1 or stages[0].combiner is not None or not s.is_output(stages[0], func):
        return None
    writer = StageWriter(Program(), target)
    write_elementwise(writer, stages[0])
    return func.with_body(writer.program.body())


def write_elementwise(writer: StageWriter, stage: Stage) -> None:
    """An element-wise stage by itself, its outer loops parallel."""
    p = writer.program
    stage = _flattened(p, stage)
    if not stage.axes:
        writer.write(stage, {})
        return
    *outer, axis = stage.axes
    extent = extent_of(stage, axis)
    known = constant(extent)
    chunks = int64(1) if known is not None and known <= 2 * CHUNK else ceildiv(extent, CHUNK)
    rows = [extent_of(stage, a) for a in outer]
    with p.loop("row", product([*rows, chunks]), parallel=True) as row:
        *places, chunk = split_index(p, row, [*rows, chunks])
        at = dict(zip(outer, places, strict=True))
        if constant(chunks) == 1:
            writer.write(stage, at)
        else:
            start = p.let("start", simplify(chunk * int64(CHUNK)))
            length = p.let("length", minimum(CHUNK, extent - start))
            writer.write(stage, at, (start, length))


def product(extents: Sequence[Expr]) -> Expr:
    """The number of places of a loop nest."""
    total: Expr = int64(1)
    for extent in extents:
        total = total * int64(extent)
    return simplify(total)


def split_index(p: Program, index: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """The place in each of the nested loops that `index` counts through, the last the fastest."""
    places: list[Expr] = []
    for extent in reversed(extents[1:]):
        if constant(extent) == 1:
            places.append(int64(0))
            continue
        # Nothing is negative here; TVM's floored division would pay for the case.
        divisor = at_least_one(int64(extent))
        places.append(p.let("place", tirx.truncmod(index, divisor)))
        index = p.let("index", tirx.truncdiv(index, divisor))
    if extents:
        places.append(int64(0) if constant(extents[0]) == 1 else index)
    return places[::-1]


def _flattened(p: Program, stage: Stage) -> Stage:
    """The stage over one axis, if it goes through every tensor of its shape in order; else the stage."""
    if len(stage.axes) < 2:
        return stage
    aligned: dict[object, s.Load] = {}
    for read in stage.loads():
        if any(s.uses(index, axis) for index in read.indices for axis in stage.axes):
            if not _in_order(read, stage):
                return stage
            aligned[read.source] = read
    if any(s.uses(_without_loads(stage.value), axis) for axis in stage.axes):
        return stage
    axis = Var("i", int64(0).ty)
    change = {source: p.flat_view(source) for source in aligned}
    out = p.flat_view(stage.buffer)

    def flat(node: s.Load) -> Expr:
        view = change.get(node.source)
        return node if view is None else tirx.BufferLoad(view, [axis])

    return replace(
        stage,
        buffer=out,
        index=(axis,),
        axes=(axis,),
        extents=(product(stage.extents),),
        value=s.map_loads(stage.value, flat),
    )


def _in_order(read: s.Load, stage: Stage) -> bool:
    """Whether the read is of the element that is being written, in a tensor of the same shape."""
    if not s.same_extents(read.source.shape, stage.buffer.shape):
        return False
    return all(
        a.same_as(b) if isinstance(b, Var) else constant(a) == constant(b)
        for a, b in zip(read.indices, stage.index, strict=True)
    )


def _without_loads(value: Expr) -> Expr:
    return s.map_loads(value, lambda node: tirx.const(0, node.ty.dtype))


__all__ = ["At", "product", "schedule_elementwise", "split_index", "write_elementwise"]
