"""Dot-product instructions of processors: a table.

A word has 32 bits: a *group* of factors, neighbours along the depth. Both operands of an instruction are vectors of
words, and its result is a vector of as many sums: lane l gets the dot product of the groups in lane l. So the layout is
that of all of them, and instructions differ in what a group has.

TVM has no operations for these, and its passes would convert bfloat16 operands to float32. Therefore they are LLVM IR
functions on words of integers, which are inlined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from relaxpy.backend.cpu.target import CpuTarget


@dataclass(frozen=True)
class Dot:
    """An instruction: `sums[lane] += sum(left[lane, k] * right[lane, k] for k in range(group))`."""

    name: str
    takes: tuple[tuple[str, str], ...]
    """The dtypes of left and right factors in memory that it is used for."""
    factor: str
    """The dtype of a factor in a word, to which others are converted; empty: the one that it has in memory."""
    group: int
    total: str
    """The dtype of a sum."""
    versions: Mapping[int, tuple[str, str]]
    """By the lanes of a vector: the feature of the processor that has it (empty: all have it), and LLVM's name."""
    arch: str = "x86_64"
    unsigned_first: bool = False
    """Is its first operand unsigned and its second signed?"""
    adds: bool = True
    """Does it add to a sum itself?"""
    slow: tuple[str, ...] = ()
    """Processors that multiply and add words faster."""

    WORD: ClassVar[str] = "int32"

    def is_for(self, lhs: str, rhs: str, total: str, target: CpuTarget) -> bool:
        """Does the target have it, for these factors and sums, and is it fast there?"""
        if total != self.total or (lhs, rhs) not in self.takes or target.arch != self.arch:
            return False
        feature, _ = self.versions.get(target.lanes(), (None, ""))
        if feature is None or target.mcpu in self.slow:
            return False
        return not feature or target.has(feature)

    def function(self, lanes: int) -> str:
        """The name of its wrapper."""
        return f"relaxpy_{self.name}{self.group}_x{lanes}"

    def definition(self, lanes: int) -> str:
        """Its wrapper in LLVM IR: the words of both operands are integers."""
        total, words = f"<{lanes} x {_LLVM[self.total]}>", f"<{lanes} x i32>"
        factors = f"<{lanes * self.group} x {_LLVM[self.factor or self.takes[0][0]]}>"
        instruction = f"llvm.{self.versions[lanes][1]}"
        taken, given = (f"{total}, ", f"{total} %sum, ") if self.adds else ("", "")
        if self.adds:
            called, added = "%result", ""
        else:
            called, added = "%both", f"  %result = add {total} %sum, %both\n"
        return (
            f"declare {total} @{instruction}({taken}{factors}, {factors})\n"
            f"define {total} @{self.function(lanes)}({total} %sum, {words} %a, {words} %b)"
            " alwaysinline nounwind readnone {\n"
            f"  %left = bitcast {words} %a to {factors}\n"
            f"  %right = bitcast {words} %b to {factors}\n"
            f"  {called} = call {total} @{instruction}({given}{factors} %left, {factors} %right)\n"
            f"{added}"
            f"  ret {total} %result\n}}\n"
        )

    def meaning(self, sums: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """What it computes, of sums (lanes,) and factors (lanes, group). Of floats up to the order of the sum;
        subnormal ones may count as zero."""
        products = left.astype(self.total) * right.astype(self.total)
        return sums + products.sum(axis=1, dtype=self.total)


_LLVM = {
    "float32": "float",
    "int32": "i32",
    "bfloat16": "bfloat",
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
}
_SHORT = ("int8", "uint8", "int16")
"""Dtypes whose values int16 has."""

DOTS = (
    # Twice the rate of fp32 on AMD's processors. Intel's start one every two cycles, and two multiply-adds of fp32
    # every cycle: measured on Emerald Rapids, 89 GFLOP/s against 182 on one core; the others have its vector units.
    Dot(
        "dot", (("bfloat16", "bfloat16"),), "", 2, "float32",
        {16: ("avx512bf16", "x86.avx512bf16.dpbf16ps.512")},
        slow=("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d"),
    ),
    # Four times the rate, exact.
    Dot(
        "dot", (("int8", "int8"), ("uint8", "int8"), ("int8", "uint8")), "", 4, "int32",
        {8: ("avxvnni", "x86.avx512.vpdpbusd.256"), 16: ("avx512vnni", "x86.avx512.vpdpbusd.512")},
        unsigned_first=True,
    ),
    # vpmaddwd: twice the rate, exact. vpmaddubsw, which multiplies bytes, would saturate in silence.
    Dot(
        "pairs", tuple(product(_SHORT, _SHORT)), "int16", 2, "int32",
        {
            4: ("", "x86.sse2.pmadd.wd"),
            8: ("avx2", "x86.avx2.pmadd.wd"),
            16: ("avx512bw", "x86.avx512.pmaddw.d.512"),
        },
        adds=False,
    ),
)  # fmt: skip
"""All of them, the fastest first. A processor's is a line here."""


def dot_of(lhs: str, rhs: str, total: str, target: CpuTarget) -> Dot | None:
    """The fastest one of the target for factors and sums of these dtypes; None if it has none."""
    return next((dot for dot in DOTS if dot.is_for(lhs, rhs, total, target)), None)
