"""Searches: reductions to the first position that has a property, as in argmax. Blocks without a hit are skipped.

The property is tested on whole vectors, one bit each. Only the first block with a hit is reduced as any other: to the
least of its positions that have the property.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from relaxpy.tir.programs.loops import (
    Expr,
    Program,
    both,
    broadcast,
    floordiv,
    int64,
    load,
    select,
    zero,
)
from relaxpy.tir.programs.vectors import fold
from relaxpy.tir.recognise.stages import Combiner, Stage, loads_of, substitute
from relaxpy.tir.tvm import tirx

_VECTORS = 8
"""Vectors of a block: their tests are combined before the one branch of the block."""


def property_of(stage: Stage) -> Expr | None:
    """The condition of which a reduction finds the first position, where the others have its initial value; None for
    other reductions."""
    combiner, value = stage.combiner, stage.value
    if combiner is None or combiner.kind != "min" or len(stage.reduce_axes) != 1:
        return None
    if not isinstance(value, tirx.Select) or not isinstance(combiner.init, tirx.IntImm):
        return None
    elsewhere = value.false_value
    if not isinstance(elsewhere, tirx.IntImm) or elsewhere.value != combiner.init.value:
        return None
    if not loads_of(value.condition):
        return None
    return value.condition if value.true_value.same_as(stage.reduce_axes[0]) else None


def first_block(
    p: Program, test: Callable[[Expr], Expr], extent: Expr, lanes: int
) -> tuple[Expr, int]:
    """The start of the first block with a hit, or of the rest after all blocks, and the size of a block. `test(start)`
    is the vector of bools of so many positions."""
    size = _VECTORS * lanes
    block, hit = p.allocate("block", 1, "int64"), p.allocate("hit", 1, "int32")
    p.store(block, 0, int64(0))
    p.store(hit, 0, zero("int32"))
    missed = tirx.EQ(load(hit, 0), zero("int32"))
    with p.repeat(both(load(block, 0) < floordiv(extent, size), missed)):
        start = p.let("start", load(block, 0) * int64(size))
        first = tirx.Var("first", "int64")
        holds = test(first)  # vectorised once
        tests = [substitute(holds, {first: start + int64(u * lanes)}) for u in range(_VECTORS)]
        hits = tirx.Select(
            reduce(tirx.Or, tests), broadcast(tirx.const(1, "int32"), lanes), zero("int32", lanes)
        )
        p.store(hit, 0, fold(p, hits, lanes, Combiner("max", zero("int32"))))
        p.store(block, 0, load(block, 0) + select(missed, 1, 0))
    return p.let("start", load(block, 0) * int64(size)), size
