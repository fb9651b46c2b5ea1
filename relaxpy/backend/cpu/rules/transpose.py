"""Square tiles in registers: transposition, at once or a strip at a time, and sums of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relaxpy.tir.programs.loops import Expr, Program
from relaxpy.tir.programs.vectors import interleaved, lanes_of
from relaxpy.tir.tvm import tirx


def transposed(p: Program, rows: Sequence[Expr]) -> list[Expr]:
    """Transpose a square of vectors, a power of two in size: swap the blocks off the diagonal, largest first (Eklundh,
    1972). Every step is a permutation of two registers."""
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


def strip_of(lanes: int, bits: int) -> int:
    """How many numbers of this width are read of each row of a square of so many: those of 128 bits."""
    return min(lanes, max(1, 128 // bits))


def turned(p: Program, registers: Sequence[Expr]) -> list[Expr]:
    """The columns of a strip of a square (`relaxpy.tir.programs.vectors.strips`): in each part of the registers a small
    square is transposed, by perfect shuffles (Stone, 1971). A loop over strips is a third of the code of a whole
    square, and takes fewer permutations."""
    size, current = len(registers), [p.let("row", register) for register in registers]
    half = size // 2
    for _ in range(size.bit_length() - 1):
        pairs = zip(current[:half], current[half:], strict=True)
        current = [p.let("row", row) for a, b in pairs for row in interleaved(a, b, size)]
    return current


def summed(p: Program, rows: Sequence[Expr], join: Callable[[Expr, Expr], Expr] = tirx.Add) -> Expr:
    """The vector of the sums of as many vectors as each has lanes, a power of two: a transposition that adds up the
    columns on the way; with another function than addition, of what that gives. Of fewer vectors, sums of as many
    neighbouring lanes: those of the first ones, side by side, then those of the next."""
    size = lanes_of(rows[0])
    current = [p.let("row", row) for row in rows]
    while len(current) > 1:
        step = len(current) // 2
        pairs = [
            _exchanged(p, a, b, step, size)
            for a, b in zip(current[:step], current[step:], strict=True)
        ]
        current = [p.let("row", join(upper, lower)) for upper, lower in pairs]
    return current[0]


def _exchanged(p: Program, a: Expr, b: Expr, step: int, size: int) -> tuple[Expr, Expr]:
    """Two rows of `size` lanes with alternating runs of `step` lanes exchanged: the upper right with the lower left."""
    upper = [size + k - step if k & step else k for k in range(size)]
    lower = [size + k if k & step else k + step for k in range(size)]
    return p.let("row", _picked(a, b, upper)), p.let("row", _picked(a, b, lower))


def _picked(a: Expr, b: Expr, lanes: Sequence[int]) -> Expr:
    """Select these lanes of two vectors; the lanes of the second are counted on from those of the first."""
    return tirx.Shuffle([a, b], [tirx.IntImm("int32", lane) for lane in lanes])
