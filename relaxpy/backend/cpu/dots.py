"""Dot products of unsigned codes of 4 bits with signed bytes, four to a word of 32 bits, summed in a vector.

* `vpdpbusd` (AVX512_VNNI, AVX_VNNI) adds four products to a sum of 32 bits.
* `vpmaddubsw` (AVX2, AVX512BW) adds pairs of products in 16 bits, with saturation. A pair is at most 2 * 15 * 128 in
  magnitude, so that `MOST` of them are added before `vpmaddwd` joins neighbours into 32 bits.

Both are exact. Like those of `relaxpy.backend.cpu.arithmetic`, they are LLVM IR functions on words of integers. The
second is written in assembly whose order is kept: LLVM would reassociate the sums and compute row by row, with all
codes of a tile on the stack.
"""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, Stmt
from relaxpy.tir.tvm import tirx

MOST = (2**15 - 1) // (2 * 15 * 128)
"""The most words that are added to a sum before it is joined."""


def total_of(pairs: Expr) -> Expr:
    """The sum (int32) of the two lanes of a vector of int16."""
    first, second = (tirx.Shuffle([pairs], [tirx.const(n, "int32")]) for n in range(2))
    return first.astype("int32") + second.astype("int32")


@dataclass(frozen=True)
class Dots:
    """The instructions of one target."""

    lanes: int
    """Sums of a vector."""
    arithmetic: Arithmetic | None
    """That of `vpdpbusd`; None for `vpmaddubsw`."""

    @classmethod
    def of(cls, target: CpuTarget) -> Dots | None:
        """The fastest instructions of the target; None if it has none of these."""
        arithmetic = Arithmetic.of("int8", "uint8", "int32", target)
        if arithmetic.group == 4:
            return cls(arithmetic.lanes, arithmetic)
        needed = {256: "avx2", 512: "avx512bw"}.get(target.vector_bits)
        if needed is None or not target.has(needed):
            return None
        return cls(target.vector_bits // 32, None)

    def add(self, total: Expr, codes: Expr, signed: Expr) -> Expr:
        """Add the products of two vectors of words to a sum in progress, which begins with zeros."""
        if self.arithmetic is not None:
            return self.arithmetic.add_product(total, signed, codes)
        return self._call("pairs", total, codes, signed)

    def start(self, pairs: Expr, added: int) -> Expr:
        """The word that a sum in progress begins with, in every lane, so that each code counts `added` more: an integer
        from -15 to 0. `pairs` (int16x2) are the sums of the signed bytes at places 0 and 1 of their words, and at
        places 2 and 3. The sum of at most `MOST` additions still fits into 16 bits."""
        if self.arithmetic is None:
            by = loops.broadcast(tirx.const(added, "int16"), 2)
            return tirx.reinterpret("int32", pairs * by)
        return total_of(pairs) * tirx.const(added, "int32")

    def joined(self, total: Expr) -> Expr:
        """The sums in 32 bits, after at most `MOST` additions."""
        return total if self.arithmetic is not None else self._call("joined", total)

    def around(self, body: Stmt) -> Stmt:
        """Return the body with the definitions that it needs."""
        if self.arithmetic is not None:
            return self.arithmetic.around(body)
        return with_definitions(self._definitions(), body)

    def _call(self, name: str, *args: Expr) -> Expr:
        return tirx.call_pure_extern(f"int32x{self.lanes}", self._name(name), *args)

    def _name(self, name: str) -> str:
        return f"relaxpy_{name}_x{self.lanes}"

    def _definitions(self) -> str:
        lanes = self.lanes
        words, pairs = f"<{lanes} x i32>", f"<{lanes * 2} x i16>"
        joins = {8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[lanes]
        ones = ", ".join(["i16 1"] * (lanes * 2))
        return (
            f"declare {words} @llvm.x86.{joins}({pairs}, {pairs})\n"
            f"define {words} @{self._name('pairs')}({words} %sum, {words} %a, {words} %b)"
            " alwaysinline nounwind {\n"
            f"  %both = call {{{words}, {words}}} asm sideeffect"
            ' "vpmaddubsw $4, $3, $1\\0A\\09vpaddw $1, $0, $0", "=v,=&v,0,v,v"'
            f"({words} %sum, {words} %a, {words} %b)\n"
            f"  %result = extractvalue {{{words}, {words}}} %both, 0\n"
            f"  ret {words} %result\n}}\n"
            f"define {words} @{self._name('joined')}({words} %sum)"
            " alwaysinline nounwind readnone {\n"
            f"  %pairs = bitcast {words} %sum to {pairs}\n"
            f"  %result = call {words} @llvm.x86.{joins}({pairs} %pairs, {pairs} <{ones}>)\n"
            f"  ret {words} %result\n}}\n"
        )
