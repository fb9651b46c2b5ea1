"""Element-wise, broadcasting and index-shuffling programs: one pass, vectorised inside, parallel outside.

Axes that all tensors traverse in order are merged (`collapse`): a program that reads and writes its tensors in order
runs as one long array, whatever its shape. Stages that only move elements move bits (`as_bits`). For tensors with
different memory orders, squares are transposed in registers (`permute`). All other stages keep their last axis as the
vector loop and merge the other axes into one parallel loop.
"""

from __future__ import annotations

from dataclasses import replace

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.rules.bits import as_bits
from relaxpy.backend.cpu.rules.collapse import collapse
from relaxpy.backend.cpu.rules.nests import StageWriter, extent_of
from relaxpy.backend.cpu.rules.permute import crossed_axis, write_permuted
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.rules.streaming import Stream, with_streams
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.knobs import knob
from relaxpy.tir.programs.loops import (
    PrimFunc,
    Program,
    ceildiv,
    constant,
    int64,
    minimum,
    simplify,
)
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Stage, Var

CHUNK = 4096
"""Elements of the innermost axis per parallel iteration: some microseconds of work."""


def schedule_elementwise(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """Schedule a program whose intermediates all inline into one element-wise stage; None for other programs."""
    stages = s.stages_of(func)
    if stages is None:
        return None
    if len(stages) != 1 or stages[0].combiner is not None or not s.is_output(stages[0], func):
        return None
    (stage,) = stages

    def write() -> PrimFunc:
        writer = StageWriter(Program(), target, params=func.params)
        write_elementwise(writer, stage)
        return func.with_body(with_streams(writer.program.body()))

    return Arrangement(write)


def write_elementwise(writer: StageWriter, stage: Stage) -> None:
    """Write an element-wise stage by itself, with its outer loops parallel. It may store past the caches: the caller
    passes the finished body through `with_streams`."""
    p = writer.program
    shared = writer.shared
    stage = collapse(p, as_bits(p, stage, shared), (), shared)
    crossed = crossed_axis(stage)
    if crossed is not None and write_permuted(writer, stage, crossed):
        return
    if not stage.axes:
        writer.write(stage, {})
        return
    *outer, axis = stage.axes
    extent = extent_of(stage, axis)
    known, size = constant(extent), knob("chunk", CHUNK, (1024, 2048, 8192, 16384))
    if known is None or known > 2 * size:
        outer, inner, count = [*outer, axis], None, size
    else:
        outer, elements = _beyond_a_task(stage, outer, known)
        inner, count = axis, max(1, size // max(elements, 1))
    if not outer:
        writer.write(stage, {})
        return
    if stage.buffer not in shared:
        writer = replace(writer, stream=Stream.of(p, writer.target, stage, writer.params))
    # A task is a run of the innermost axis that it does not run through.
    *outer, axis = outer
    extent = extent_of(stage, axis)
    count = min(count, constant(extent) or count)
    rows = [extent_of(stage, a) for a in outer]
    with p.loop("row", product([*rows, ceildiv(extent, count)]), parallel=True) as row:
        *places, chunk = split_index(p, row, [*rows, ceildiv(extent, count)])
        at = dict(zip(outer, places, strict=True))
        start = p.let("start", simplify(chunk * int64(count)))
        length = p.let("length", minimum(count, extent - start))
        if inner is None:
            writer.write(stage, at, (start, length))
        else:
            with p.loop(axis.name, length) as i:
                writer.write(stage, {**at, axis: p.let("place", simplify(start + i))})


def _beyond_a_task(stage: Stage, outer: list[Var], size: int) -> tuple[list[Var], int]:
    """The outer axes without the last of them that a task runs through, and the number of elements in what it runs
    through: as many axes as are of known extents and make no more than a chunk."""
    kept = list(outer)
    while kept and (known := constant(extent_of(stage, kept[-1]))) and size * known <= CHUNK:
        size *= known
        kept.pop()
    return kept, size
