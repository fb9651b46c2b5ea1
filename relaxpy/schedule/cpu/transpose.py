"""Square tiles transposed in registers."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.tir._tvm import tirx
from relaxpy.tir.loops import Expr, Program


def transposed(p: Program, rows: Sequence[Expr]) -> list[Expr]:
    """The columns of as many vectors as each has lanes, a power of two: blocks off the diagonal change places, the
    large ones first (Eklundh, 1972). Every step is a permutation of two registers."""
    size = len(rows)
    current = [p.let("row", row) for row in rows]
    step = size // 2
    while step:
        for low in range(size):
            if low & step:
                continue
            a, b = current[low], current[low + step]
            # Lane k of the upper row: k itself where k has not the step's bit, else lane k - step of the lower row.
            upper = [size + k - step if k & step else k for k in range(size)]
            lower = [size + k if k & step else k + step for k in range(size)]
            current[low] = p.let("row", _picked(a, b, upper))
            current[low + step] = p.let("row", _picked(a, b, lower))
        step //= 2
    return current


def _picked(a: Expr, b: Expr, lanes: Sequence[int]) -> Expr:
    """These lanes of two vectors, the second's counted on from the first's."""
    return tirx.Shuffle([a, b], [tirx.IntImm("int32", lane) for lane in lanes])
