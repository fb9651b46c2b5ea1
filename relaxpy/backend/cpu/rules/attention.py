"""Attention on CPUs in one pass over the keys, for any lengths: the matrix of scores is never written.

Applies to what `relaxpy.tir.recognise.attention` recognises: float32 scores of float32, float16 or bfloat16 factors,
head sizes that are known, a mask that leaves each query neighbouring keys.

A query and a head make a *lane*. Heads that share a key head (Ainslie et al., GQA, 2023) are lanes of one kind: they
read the same keys and values. Programs, chosen when the kernel runs by how many lanes share a key head:

* *lanes* (`attention_lanes`), for many: vectors go across lanes, and each number of a key or value is read once for all
  lanes of a task, which come in two vector registers or one.
* *rows* (`attention_rows`), for up to four lanes, or half a register of them, which is how text is generated where few
  heads share keys: a task a query and key head, vectors along the heads' widths.
* *row words* (`attention_row_words`), instead of these for bfloat16 on processors that have fast dot products of it; in
  *lanes*, too, words of two bfloat16 are multiplied there.
* *tiles in place* (`attention_in_place`), for bfloat16 on processors that multiply tiles, one query, and three to
  sixteen heads that share keys (five, if these are wide): a task a query and key head.
* *tiles* (`attention_tiles`), there for all other lanes but those of *rows*: keys and values are packed.

They process the keys in blocks (32 keys, or 24 with 16 vector registers, in *lanes*, 64 of them by words; 8 vectors of
keys in *rows*; 128 keys in *row words* and *tiles in place*, 256 in *tiles*), with the online softmax (Milakov and
Gimelshein, 2018). For each lane:

    scores = f(query @ keys of the block)
    new = max(top, max(scores)); decay = exp(top - new); top = new
    powers = exp(scores - top)
    totals = totals * decay + sum(powers)
    sums = sums * decay + powers @ values of the block
    after the last block: out = sums / totals

Every result is computed by one task in one order, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.rules.attention_access import Access, Task
from relaxpy.backend.cpu.rules.attention_in_place import InPlaceProgram, has_in_place_program
from relaxpy.backend.cpu.rules.attention_lanes import REGISTERS, LanesProgram
from relaxpy.backend.cpu.rules.attention_row_words import RowWordsProgram, has_row_words_program
from relaxpy.backend.cpu.rules.attention_rows import RowProgram, has_row_program
from relaxpy.backend.cpu.rules.attention_tile_writer import tiles_of
from relaxpy.backend.cpu.rules.attention_tiles import TilesProgram, lanes_of_task
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.cpu.tiles import Tiles
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.elementary import value_written_out
from relaxpy.tir.programs.loops import Index, PrimFunc, Stmt
from relaxpy.tir.recognise.attention import AttentionForm, attention_of

LARGEST_HEAD = 1024
"""The largest head size. With a larger one, the memory of a task would exceed its share of the L2 cache."""

FEW_LANES = 4
"""The number of lanes sharing a key head up to which vectors go along the head width, and up to half a register of
lanes, across which vectors would be half empty. Tiles multiply more lanes than this faster."""


def attention_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is attention, or None."""
    form = attention_of(func) if target.kind == "llvm" else None
    if form is None or max(form.depth, form.columns) > LARGEST_HEAD:
        return None
    score, result = (
        value_written_out(value, by_avx512=target.has_avx512) for value in (form.score, form.result)
    )
    form = replace(form, score=score, result=result)
    return Arrangement(lambda: loops.finished(func, _body(form, target)))


def _body(form: AttentionForm, target: CpuTarget) -> Stmt:
    """All programs that some number of lanes needs, each under its condition."""
    access = Access(form, target)
    p, above = access.program, 0
    register = target.lanes(32)
    tiles = tiles_of(access, target)
    few = FEW_LANES if tiles is not None else max(FEW_LANES, register // 2)
    if tiles is not None and has_in_place_program(access):
        above = access.sharing
        with p.when(access.lanes <= above):
            for task in _tasks(access, access.sharing):
                InPlaceProgram(access, task, tiles).write()
    elif has_row_program(access, register) and access.sharing <= few:
        row_program = RowWordsProgram if has_row_words_program(access, target) else RowProgram
        with p.when(access.lanes <= few):
            for task in _tasks(access, access.sharing):
                row_program(access, task, target).write()
        above = few
    lanes = loops.constant(access.lanes)
    if lanes is None or lanes > above:
        with p.when(access.lanes > above):
            _write_many(access, tiles, target)
    body = access.around(p.body())
    return body if tiles is None else tiles.around(body)


def _write_many(access: Access, tiles: Tiles | None, target: CpuTarget) -> None:
    """The program for any number of lanes."""
    if tiles is None:
        for task in _tasks(access, REGISTERS * target.lanes(32)):
            LanesProgram(access, task, target).write()
        return
    width = access.program.let("width", lanes_of_task(access))
    for task in _tasks(access, width):
        TilesProgram(access, task, tiles, width).write()


def _tasks(access: Access, width: Index) -> Iterator[Task]:
    """The parallel loop over all tasks, each of `width` lanes."""
    p, extents = access.program, access.form.axes.extents
    pieces = p.let("pieces", loops.ceildiv(access.lanes, width))
    groups = p.let("groups", loops.floordiv(extents["head"], access.sharing))
    total = p.let("tasks", loops.simplify(extents["batch"] * groups * pieces))
    with p.loop("task", total, parallel=True) as task:
        piece = p.let("piece", loops.floormod(task, pieces))
        if access.form.seen is not None:
            # Later queries see more keys. Taking tasks from both ends in turn balances the work of the threads.
            half = p.let("half", loops.floordiv(piece, 2))
            is_even = loops.equals(loops.floormod(piece, 2), 0)
            piece = p.let("folded", loops.select(is_even, half, pieces - 1 - half))
        group = p.let("group", loops.floordiv(task, pieces))
        head = p.let("head", loops.simplify(loops.floormod(group, groups) * access.sharing))
        batch = p.let("batch", loops.floordiv(group, groups))
        first = p.let("first_lane", loops.simplify(piece * width))
        yield Task(batch, head, first)
