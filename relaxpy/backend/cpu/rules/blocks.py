"""Long reductions with few results: reduce blocks of a fixed size, then the results of the blocks.

A sum of all elements, or of each column, has no rows to distribute over threads, but it has blocks. Their size depends
only on the shape, and so does the order of additions, whatever the number of threads. Columns gain even on one thread:
the few rows of a block are read along their whole length, instead of one narrow strip of all rows after the other. Long
rows are read a few side by side, and added to the results of the block, which stay in a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relaxpy.backend.cpu.rules.nests import StageWriter
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    ceildiv,
    constant,
    int64,
    maximum,
    minimum,
    select,
    simplify,
)
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Stage, Var
from relaxpy.tir.tvm import tirx

BLOCK = 1 << 14
"""Elements of a block that is reduced to one result: 64 KiB of float32."""
ROWS = 32
"""Rows of a block of columns."""
RUN = 8
"""Long rows of a block that are read side by side: as many streams as any processor prefetches, and enough for what is
loaded and stored between them, the results so far, to be little."""
_STREAM = 2048
"""Columns from which on rows are read as streams."""
_SPAN = 4096
"""Columns whose results stay in the first-level cache."""
_LONG = 1 << 18
"""The smallest number of elements for which a second pass over the results of blocks is cheap."""
_FEW = 16
"""So few results leave threads without work."""


def may_be_long(stage: Stage) -> bool:
    """May a reduction have enough elements for blocks, as far as is known?"""
    elements = constant(_elements(stage))
    return elements is None or elements >= _LONG


def has_blocks(stage: Stage, *, columns: bool) -> bool:
    """Does a reduction that may be long have few results, or only columns?"""
    results = constant(product(stage.extents))
    return len(stage.axes) == 1 if columns else results is not None and 0 < results <= _FEW


def is_long(stage: Stage) -> Expr:
    """The run-time condition that a reduction has enough elements for blocks."""
    return _elements(stage) >= int64(_LONG)


def partial_results(stage: Stage, *, columns: bool) -> Buffer:
    """The memory for the results of all blocks."""
    extent, *inner = stage.reduce_extents
    size: Expr = int64(ROWS)
    if not columns:
        size = tirx.max(_blocks(int64(BLOCK), _at_least_one(inner)), int64(1))
    count = simplify(product(stage.extents) * _blocks(int64(extent), simplify(size)))
    return tirx.decl_buffer([count], stage.buffer.dtype, "partial", scope="global", layout=None)


def _blocks(extent: Expr, size: Expr) -> Expr:
    """The number of blocks in an extent, written like an extent of a buffer."""
    return tirx.floordiv(extent + size - int64(1), size)


def write_blocks(writer: StageWriter, stage: Stage, partial: Buffer, *, columns: bool) -> Stage:
    """Reduce blocks of the outermost reduced axis, in parallel, into `partial` (`partial_results`), which is allocated
    here. Returns the reduction of the block results."""
    p, combiner = writer.program, stage.combiner
    assert combiner is not None, "only reductions come here"
    (axis, *_), (extent, *inner) = stage.reduce_axes, stage.reduce_extents
    size = p.let(
        "size", int64(ROWS) if columns else maximum(ceildiv(BLOCK, _at_least_one(inner)), 1)
    )
    count = p.let("blocks", ceildiv(extent, size))
    results = product(stage.extents)
    p.add(tirx.AllocBuffer(partial))

    def place(block: Expr) -> Expr:
        """For columns, the results of one block are contiguous; otherwise, the blocks of one result."""
        result = s.flat_index(stage.axes, stage.extents)
        return simplify(block * results + result if columns else result * count + block)

    # A task takes a block of all columns, or of one other result.
    axes, extents = ((), ()) if columns else (stage.axes, stage.extents)
    with p.loop("block", product([*extents, count]), parallel=True) as index:
        *places, block = split_index(p, index, [*extents, count])
        begin = p.let("start", simplify(block * size))
        end = p.let("end", minimum(begin + size, extent))

        def write(
            start: Expr,
            length: Expr,
            span: tuple[Expr, Expr] | None = None,
            goes_on: Expr | None = None,
        ) -> None:
            part = replace(
                stage,
                buffer=partial,
                index=(place(block),),
                value=s.substitute(stage.value, {axis: start + axis}),
                reduce_extents=(length, *inner),
                combiner=replace(combiner, init=combiner.neutral()),
            )
            writer.write(part, dict(zip(axes, places, strict=True)), span, goes_on)

        if columns:
            run = p.let("run", select(results >= int64(_STREAM), RUN, ROWS))
            with (
                p.loop("span", ceildiv(results, _SPAN)) as number,
                p.loop("run", ceildiv(end - begin, run)) as above,
            ):
                left = p.let("left", simplify(number * int64(_SPAN)))
                start = p.let("start", simplify(begin + above * run))
                length = p.let("length", minimum(run, end - start))
                span = left, p.let("width", minimum(int64(_SPAN), results - left))
                write(start, length, span, above > int64(0))
        else:
            write(begin, simplify(end - begin))
    block = Var("block", int64(0).ty)
    value = tirx.BufferLoad(partial, [place(block)])
    return replace(stage, value=value, reduce_axes=(block,), reduce_extents=(count,))


def _elements(stage: Stage) -> Expr:
    return product([*stage.extents, *stage.reduce_extents])


def _at_least_one(extents: Sequence[Expr]) -> Expr:
    return maximum(product(extents), 1)
