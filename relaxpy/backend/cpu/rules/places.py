"""Flat indices of nested loops, used to merge several loops into one parallel loop."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.tir.programs.loops import (
    Expr,
    Program,
    at_least_one,
    constant,
    int64,
    select,
    simplify,
)
from relaxpy.tir.tvm import tirx


def product(extents: Sequence[Expr]) -> Expr:
    """The number of iterations of a loop nest."""
    total: Expr = int64(1)
    for extent in extents:
        total = total * int64(extent)
    return simplify(total)


def shared_pieces(tasks: Expr, most: int, fewest: int) -> Expr:
    """The pieces of work that one task takes, where so many tasks have one each: the largest power of two up to `most`
    with which at least `fewest` tasks remain, or 1."""
    pieces: Expr = int64(1)
    for power in range(1, most.bit_length()):
        pieces = select(tasks >= (1 << power) * fewest, 1 << power, pieces)
    return simplify(pieces)


def split_index(p: Program, index: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """Split `index` into the index of each of the nested loops, the last one fastest."""
    places: list[Expr] = []
    for extent in reversed(extents[1:]):
        if constant(extent) == 1:
            places.append(int64(0))
            continue
        # Nothing is negative here; TVM's floored division would handle that case at a cost.
        divisor = at_least_one(int64(extent))
        places.append(p.let("place", tirx.truncmod(index, divisor)))
        index = p.let("index", tirx.truncdiv(index, divisor))
    if extents:
        places.append(int64(0) if constant(extents[0]) == 1 else index)
    return places[::-1]
