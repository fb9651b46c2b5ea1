"""The arithmetic of a matrix product in registers: elementwise multiply-adds of widened factors, or dot-product
instructions on groups of factors.

A *word* is the content of one lane of a vector during the multiplication. A factor of the accumulator's dtype is a
word. Narrower factors are widened to a word each on targets without special instructions. With these
(`relaxpy.backend.cpu.dot`), a word of 32 bits contains a group of factors, contiguous along the depth, and one
instruction adds the dot product of two groups to the accumulator of the lane. Where an instruction needs unsigned bytes
and both factors are signed, the sign bits of the left one are flipped, which adds 128 to each of its elements; the
excess, 128 times the sum of the column, is subtracted.

Processors with tiles multiply packed factors by these (`relaxpy.backend.cpu.tiles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relaxpy.backend.cpu.dot import Dot, dot_of
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.cpu.tiles import Tiles
from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Index, Stmt, broadcast, first_lanes, load, zero
from relaxpy.tir.programs.vectors import lanes_of, strips
from relaxpy.tir.recognise.matmul import BITS, MatmulForm
from relaxpy.tir.tvm import tirx, tvm

_FLIP = 0x80808080 - (1 << 32)
"""A word of four bytes that are all 128."""


@dataclass(frozen=True)
class Arithmetic:
    """How two factors are multiplied and added to a sum."""

    lhs: str
    rhs: str
    """The types of the factors in memory."""
    total: str
    """The accumulator type: one of `BITS`."""
    lanes: int = 1
    """Words per vector."""
    dot: Dot | None = None
    """The instruction that multiplies groups of factors; None if a factor is a word."""
    tiles: Tiles | None = None
    """The tiles that multiply them, instead of vectors (`relaxpy.backend.cpu.rules.tile_matmul`)."""

    @classmethod
    def of(cls, lhs: str, rhs: str, total: str, target: CpuTarget) -> Arithmetic:
        """The fastest arithmetic of the target for types that `relaxpy.tir.recognise.matmul.is_summable` accepts."""
        return cls(lhs, rhs, total, target.lanes(BITS[total]), dot_of(lhs, rhs, total, target))

    @classmethod
    def of_product(cls, form: MatmulForm, target: CpuTarget) -> Arithmetic:
        """The arithmetic with which the target multiplies the factors of a product in vectors."""
        lhs, rhs = (str(operand.buffer.dtype) for operand in (form.lhs, form.rhs))
        return cls.of(lhs, rhs, form.dtype, target)

    @classmethod
    def of_packed(cls, form: MatmulForm, target: CpuTarget) -> Arithmetic:
        """The arithmetic with which the target multiplies the factors of a product whose right-hand one is in panels:
        by tiles where it has them, if the depth fills them and the left-hand rows are contiguous along it."""
        own = cls.of_product(form, target)
        tiles = Tiles.of(own.lhs, own.rhs, own.total, target)
        depth = loops.constant(form.depth.extent)
        if tiles is None or depth is None or depth % tiles.depth:
            return own
        if loops.constant(form.depth.lhs) != 1:
            return own
        return replace(own, tiles=tiles)

    @property
    def group(self) -> int:
        """Factors per word."""
        held = self.tiles or self.dot
        return 1 if held is None else held.group

    @property
    def factor(self) -> str:
        """The type of a factor in a word, if it is not the one in memory; else empty."""
        return self.dot.factor if self.dot is not None and self.tiles is None else ""

    @property
    def word(self) -> str:
        """The type of a word."""
        return self.total if self.group == 1 else "int32"

    @property
    def flips(self) -> bool:
        """Are the sign bits of left words flipped, so that sums are too large by `flipped` times the column?"""
        signed = self.group == 4 and self.lhs == self.rhs == "int8"
        return signed and (self.dot is None or self.dot.unsigned_first)

    @property
    def converts_left(self) -> bool:
        """Are left words not what is in memory?"""
        if self.group == 1:
            return self.lhs != self.total
        return self.flips or (bool(self.factor) and self.lhs != self.factor)

    def flipped(self) -> Expr:
        """The vector of left words that represent 128 in each factor."""
        return broadcast(tirx.const(_FLIP, "int32"), self.lanes)

    def add_product(self, total: Expr, left: Expr, right: Expr) -> Expr:
        """Add the products of two vectors of words to vectors of sums."""
        if self.dot is None:
            return total + left * right
        if self.dot.unsigned_first and self.lhs == "int8" and self.rhs == "uint8":
            left, right = right, left
        name = self.dot.function(self.lanes)
        return tirx.call_pure_extern(str(total.ty.dtype), name, total, left, right)

    def left_word(self, buffer: Buffer, at: Index) -> Expr:
        """Broadcast one word of the left factor, whose group is contiguous in memory."""
        word = self._words(buffer, at, 1, self.lhs)
        # Flipped before the broadcast: afterwards LLVM does not terminate.
        return broadcast(word ^ tirx.const(_FLIP, "int32") if self.flips else word, self.lanes)

    def left_words(self, buffer: Buffer, at: Index, count: Expr | None = None) -> Expr:
        """A vector of contiguous left words: the first `count` factors, then zeros."""
        words = self._words(buffer, at, self.lanes, self.lhs, count)
        return words ^ self.flipped() if self.flips else words

    def right_words(self, buffer: Buffer, at: Index, count: Expr | None = None) -> Expr:
        """A vector of contiguous right words: the first `count` factors, then zeros."""
        return self._words(buffer, at, self.lanes, self.rhs, count)

    def right_strips(
        self, buffer: Buffer, rows: Sequence[Index], words: int, count: Expr | None = None
    ) -> list[Expr]:
        """The registers of a strip of right words (`relaxpy.tir.programs.vectors.strips`), of which each row has
        so many from its offset on: the first `count` factors, then zeros."""
        width = words * self.group
        mask = None if count is None else first_lanes(count, width)
        kind = f"uint{tvm.DataType(self.rhs).bits}"
        parts = [_bits(load(buffer, at, width, mask), self.rhs) for at in rows]
        if mask is not None:
            parts = [tirx.Select(mask, part, zero(kind, width)) for part in parts]
        registers: list[Expr] = []
        for register in strips(parts, words):
            factors = tirx.reinterpret(_vector(self.rhs, self.lanes * self.group), register)
            registers.append(self._word_of(factors, self.rhs, self.lanes))
        return registers

    def left_joined(self, factors: Sequence[Expr], exist: Sequence[Expr | bool]) -> Expr:
        """Build one left word from factors read one by one; those that do not exist are zeros."""
        word = self._joined(factors, exist, self.lhs)
        return word ^ tirx.const(_FLIP, "int32") if self.flips else word

    def right_joined(self, factors: Sequence[Expr], exist: Sequence[Expr | bool]) -> Expr:
        """Build right words from factors read row by row, as many words as the rows have lanes; rows that do not exist
        are zeros."""
        return self._joined(factors, exist, self.rhs)

    def around(self, body: Stmt) -> Stmt:
        """Return the body with the definitions that it needs."""
        if self.dot is None:
            return body
        return with_definitions(self.dot.definition(self.lanes), body)

    def _words(
        self, buffer: Buffer, at: Index, lanes: int, dtype: str, count: Expr | None = None
    ) -> Expr:
        width = lanes * self.group
        mask = None if count is None else first_lanes(count, width)
        factors = load(buffer, at, width, mask)
        if mask is not None:  # the inactive lanes of a masked load are undefined
            factors = tirx.Select(mask, _bits(factors, dtype), zero(_unsigned(dtype), width))
            factors = tirx.reinterpret(_vector(dtype, width), factors)
        return self._word_of(factors, dtype, lanes)

    def _word_of(self, factors: Expr, dtype: str, lanes: int) -> Expr:
        """A vector of factors, as they are in memory, as words."""
        if self.group == 1:
            return _converted(factors, self.total)
        if self.factor:
            factors, dtype = _converted(factors, self.factor), self.factor
        return tirx.reinterpret(_vector("int32", lanes), _bits(factors, dtype))

    def _joined(self, factors: Sequence[Expr], exist: Sequence[Expr | bool], dtype: str) -> Expr:
        if self.group == 1:
            return _converted(factors[0], self.total)
        lanes, bits = lanes_of(factors[0]), 32 // self.group
        word: Expr | None = None
        for place, (factor, exists) in enumerate(zip(factors, exist, strict=True)):
            if self.factor:
                factor, dtype = _converted(factor, self.factor), self.factor
            part = _bits(factor, dtype).astype(_vector("int32", lanes))
            if place:
                part = part << broadcast(tirx.const(bits * place, "int32"), lanes)
            if not isinstance(exists, bool):
                part = tirx.Select(broadcast(exists, lanes), part, zero("int32", lanes))
            word = part if word is None else word | part
        assert word is not None
        return word


def multiplies_bfloat16(target: CpuTarget) -> bool:
    """Does the target multiply factors of bfloat16 faster than those of float32, by tiles or in vectors?"""
    tiles = Tiles.of("bfloat16", "bfloat16", "float32", target)
    return tiles is not None or dot_of("bfloat16", "bfloat16", "float32", target) is not None


def _converted(factors: Expr, total: str) -> Expr:
    wanted = _vector(total, lanes_of(factors))
    return factors if str(factors.ty.dtype) == wanted else factors.astype(wanted)


def _bits(factors: Expr, dtype: str) -> Expr:
    """Reinterpret narrow factors as unsigned integers of their width."""
    kind = _unsigned(dtype)
    return factors if dtype == kind else tirx.reinterpret(_vector(kind, lanes_of(factors)), factors)


def _unsigned(dtype: str) -> str:
    return f"uint{tvm.DataType(dtype).bits}"


def _vector(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
