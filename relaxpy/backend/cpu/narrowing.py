"""Vectors of float32 rounded to bfloat16 by the instruction of AVX512_BF16, an LLVM IR function that is inlined."""

from __future__ import annotations

from relaxpy.tir.programs.loops import Expr
from relaxpy.tir.tvm import tirx

_NAME, _INSTRUCTION = "relaxpy_narrowed", "llvm.x86.avx512bf16.cvtne2ps2bf16.512"

DEFINITION = (
    f"declare <32 x bfloat> @{_INSTRUCTION}(<16 x float>, <16 x float>)\n"
    f"define linkonce_odr <32 x i16> @{_NAME}(<16 x float> %low, <16 x float> %high)"
    " alwaysinline nounwind readnone {\n"
    f"  %x = call <32 x bfloat> @{_INSTRUCTION}(<16 x float> %high, <16 x float> %low)\n"
    "  %y = bitcast <32 x bfloat> %x to <32 x i16>\n  ret <32 x i16> %y\n}"
)
"""The function that `narrowed` calls, for the kernel (`relaxpy.tir.lowering.definitions`)."""


def narrowed(low: Expr, high: Expr) -> Expr:
    """Twice 16 float32, rounded to bfloat16, as uint16x32. Subnormal numbers become 0."""
    return tirx.call_pure_extern("uint16x32", _NAME, low, high)
