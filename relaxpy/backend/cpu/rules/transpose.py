"""Square tiles in registers: transposed, and their rows summed."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import Expr, Program


def transposed(p: Program, rows: Sequence[Expr]) -> list[Expr]:
    """The columns of as many vectors as each has lanes, a power of two: blocks off the diagonal change places, the
    large ones first (Eklundh, 1972). Every step is a permutation of two registers."""
    size = len(rows)
    current = [p.let("row", row) for row in rows]
    step = size // 2
    while step:
        for low in range(size):
            if not low & step:
                current[low], current[low + step] = _exchanged(
                    p, current[low], current[low + step], step, size
                )
        step //= 2
    return current


def summed(p: Program, rows: Sequence[Expr]) -> Expr:
    """The vector of the sums of as many vectors as each has lanes, a power of two: a transposition whose columns are
    added up on the way."""
    size = len(rows)
    current = [p.let("row", row) for row in rows]
    while len(current) > 1:
        step = len(current) // 2
        pairs = [
            _exchanged(p, a, b, step, size)
            for a, b in zip(current[:step], current[step:], strict=True)
        ]
        current = [p.let("row", upper + lower) for upper, lower in pairs]
    return current[0]


def _exchanged(p: Program, a: Expr, b: Expr, step: int, size: int) -> tuple[Expr, Expr]:
    """Two rows of `size` lanes, of which every other `step` lanes changed places: right above with left below."""
    upper = [size + k - step if k & step else k for k in range(size)]
    lower = [size + k if k & step else k + step for k in range(size)]
    return p.let("row", _picked(a, b, upper)), p.let("row", _picked(a, b, lower))


def _picked(a: Expr, b: Expr, lanes: Sequence[int]) -> Expr:
    """These lanes of two vectors, the second's counted on from the first's."""
    return tirx.Shuffle([a, b], [tirx.IntImm("int32", lane) for lane in lanes])
