"""Integers packed into words, as AWQ, GPTQ and compressed-tensors have them: the rows of a weight (out, in), read from
tensors in which out is an axis of the words, or in.

Each format says which word has a number and at which bit; rows are unpacked some at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.runtime.tensor import Array

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in its word of each of eight neighbouring columns."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """A matrix of small integers."""

    words: Array
    """uint32, with the numbers packed along the last axis."""
    bits: int
    order: tuple[int, ...] = ()
    """The place in its word of each neighbour; (): in order, the first in the lowest bits."""
    stream: bool = False
    """Whether numbers of 3 bits go from one word to the next. Otherwise the last bits of a word are empty."""

    def columns(self, which: Array) -> Array:
        """The columns with these numbers: (rows, which), uint8."""
        mask = np.uint32(2**self.bits - 1)
        if self.stream:
            at = which * self.bits
            word, shift = at // 32, (at % 32).astype(np.uint32)
            low = self.words[:, word] >> shift
            after = self.words[:, np.minimum(word + 1, self.words.shape[1] - 1)]
            # A shift by 32 bits is none in C: by 31, then by 1.
            crosses = shift + np.uint32(self.bits) > 32
            high = np.where(crosses, after << (np.uint32(31) - shift) << np.uint32(1), np.uint32(0))
            return ((low | high) & mask).astype(np.uint8)
        each = 32 // self.bits
        place = which % each
        place = np.array(self.order)[place] if self.order else place
        shift = (place * self.bits).astype(np.uint32)
        return (self.words[:, which // each] >> shift & mask).astype(np.uint8)

    def part(self, rows: Any) -> Numbers:
        """Some of the rows."""
        return Numbers(self.words[rows], self.bits, self.order, self.stream)


@dataclass(frozen=True, eq=False)
class StackedNumbers:
    """Matrices of as many columns, one after the other."""

    parts: tuple[Numbers, ...]
    width: int
    """Columns of each."""

    def columns(self, which: Array) -> Array:
        """The columns with these numbers, counted over all matrices: (rows, which), uint8."""
        found = np.empty((len(self.parts[0].words), len(which)), np.uint8)
        own = np.floor_divide(which, self.width)
        for number in map(int, np.unique(own)):
            here = own == number
            found[:, here] = self.parts[number].columns(which[here] - number * self.width)
        return found


def each_plus_one(words: Array, bits: int) -> Array:
    """Words of numbers of so many bits, packed along the last axis, with 1 added to each number. They are added as
    words: a number that overflows carries into the next one, as it borrowed from it when 1 was subtracted."""
    which = np.arange(3 * 32)
    ones = (which % bits == 0).reshape(3, 32) << np.arange(32, dtype=np.uint64)
    pattern = ones.sum(axis=1, dtype=np.uint64).astype(np.uint32)
    return words + pattern[np.arange(words.shape[-1]) % 3]


def packed_words(numbers: Array, bits: int) -> Array:
    """Numbers (rows, count), uint8, of so many bits each: one after the other in words of 32 bits (rows, words), the
    first in the lowest bits."""
    rows, count = numbers.shape
    flat = np.unpackbits(
        np.ascontiguousarray(numbers)[..., None], axis=-1, count=bits, bitorder="little"
    )
    flat = np.pad(flat.reshape(rows, count * bits), ((0, 0), (0, -count * bits % 32)))
    return np.packbits(flat, axis=-1, bitorder="little").view("<u4")


@dataclass(frozen=True, eq=False)
class PackedRows:
    """The rows of a weight (out, in) of packed integers."""

    weight: Numbers
    by_out: bool
    """Is the weight (in, out) and packed along out? Otherwise it is packed along in."""
    depth: int
    scales: Array
    """(out, groups), or its transpose mapped."""
    zeros: Numbers | StackedNumbers | None = None
    """Packed along out, with a row for each group."""

    def codes(self, rows: Any) -> Array:
        which = np.arange(len(self.scales))[rows]
        if self.by_out:
            return np.ascontiguousarray(self.weight.columns(which).T)
        return self.weight.part(rows).columns(np.arange(self.depth))

    def scale(self, rows: Any) -> Array:
        found: Array = self.scales[rows]
        return found if found.dtype.name in ("float16", "float32") else found.astype(np.float32)

    def offset(self, rows: Any) -> Array:
        which = np.arange(len(self.scales))[rows]
        assert self.zeros is not None, "asked for codes that have them"
        return self.zeros.columns(which).T


@dataclass(frozen=True, eq=False)
class ByteRows:
    """The rows of a weight of int8, or of codes that a table means."""

    weight: Array
    """(rows, in), a byte each."""
    scales: Array
    """(rows, groups)."""

    def codes(self, rows: Any) -> Array:
        return self.weight[rows].view(np.uint8) ^ np.uint8(128)

    def scale(self, rows: Any) -> Array:
        found: Array = self.scales[rows]
        return found if found.dtype.name in ("float16", "float32") else found.astype(np.float32)

    def offset(self, rows: Any) -> Array:
        raise NotImplementedError
