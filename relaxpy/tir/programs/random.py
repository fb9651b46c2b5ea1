"""Counter-based random numbers as a tensor program: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", 2011). A number is a function of a key and a counter: no state, and no order of the elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.tir.programs.loops import Buffer, Expr
from relaxpy.tir.programs.rows import known, rows
from relaxpy.tir.programs.serial import Serial, serial
from relaxpy.tir.tvm import tirx

FACTORS = 0xD2511F53, 0xCD9E8D57
"""The multipliers of a round."""
STEPS = 0x9E3779B9, 0xBB67AE85
"""The increments of the key after each round: the golden ratio, and the square root of 3 minus 1."""
ROUNDS = 10
WORD = 0xFFFFFFFF


def random_uniform(
    seeds: Any, streams: Any, positions: Any, shape: Sequence[Dim], dtype: DType
) -> Any:
    """The tensor of the numbers, in [0, 1). The key is the seed, the counter the position and the stream."""

    def fill(p: Serial, out: Buffer, *given: Buffer) -> None:
        with rows(p, shape) as at:
            seed, stream, position = (_words(p, p.read(each, *at)) for each in given)
            words = _philox(p, [*position, *stream], seed)
            p.write(out, *at, value=_fraction(words, dtype))

    return serial((shape, str(dtype)), [seeds, streams, positions], fill, "random_uniform")


def _number(value: int) -> Expr:
    return tirx.const(value, "uint64")


def _words(p: Serial, value: Expr) -> list[Expr]:
    """The low and the high half of an integer of 64 bits. All words are uint64, so that products are exact."""
    whole = known(p, "whole", value.astype("int64").astype("uint64"))
    return [known(p, "low", whole & _number(WORD)), known(p, "high", whole >> _number(32))]


def _philox(p: Serial, counter: Sequence[Expr], key: Sequence[Expr]) -> list[Expr]:
    """Four random words."""
    words = list(counter)
    for turn in range(ROUNDS):
        own = [
            (k + _number(s * turn & WORD)) & _number(WORD) for k, s in zip(key, STEPS, strict=True)
        ]
        first, second = (
            known(p, "product", word * _number(factor))
            for word, factor in zip(words[::2], FACTORS, strict=True)
        )
        words = [
            known(p, "word", (second >> _number(32)) ^ words[1] ^ own[0]),
            known(p, "word", second & _number(WORD)),
            known(p, "word", (first >> _number(32)) ^ words[3] ^ own[1]),
            known(p, "word", first & _number(WORD)),
        ]
    return words


def _fraction(words: Sequence[Expr], dtype: DType) -> Expr:
    """The first 24 bits of the words as float32, or 53 as float64, in [0, 1), or as an integer."""
    if dtype != "float32":
        bits = (words[0] >> _number(5)) * _number(1 << 26) + (words[1] >> _number(6))
        if dtype.is_int:
            return bits.astype("int64")
        return bits.astype("float64") * tirx.FloatImm("float64", 2.0**-53)
    return (words[0] >> _number(8)).astype("float32") * tirx.FloatImm("float32", 2.0**-24)
