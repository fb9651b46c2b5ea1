"""Device functions in Metal's shading language. TVM writes the text (`relaxpy.backend.gpu.c_like`).

A kernel's numbers are one structure behind its buffers, with 8 bytes for each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from relaxpy.backend.gpu.c_like import CPLUSPLUS, CLike
from relaxpy.backend.gpu.half import NARROW, WIDEN
from relaxpy.tir.numerics.elementary import applied
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import rewritten

_PRECISE = (
    "exp exp2 exp10 log log2 log10 pow sqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh fmod "
    "copysign ldexp"
).split()
"""TVM's functions that the language has under the same name. Those of `precise` have an error bound and are right for
infinities and NaN, however the source is compiled."""
_FORMULAS = ("erf", "log1p")
"""Functions that the language lacks, which become relaxpy's own formulas."""
_WORDS = (
    "access array bfloat buffer constant device fragment half intersector kernel mesh metal object patch quadgroup_t "
    "ray_data sampler simdgroup_t size_t thread threadgroup threadgroup_imageblock uchar uint ulong ushort vertex "
    "visible"
).split()
"""The language's words that C++ does not have."""
_USED = (
    "abs arg as_type blockIdx ceil clz fabs floor isinf isnan max mem_flags min popcount precise rint round select "
    "sqrt threadIdx threadgroup_barrier trunc INFINITY NAN NULL"
).split()
"""Functions, parameters and macros that kernels refer to, unless a variable hides them."""
_FENCE = "threadgroup_barrier(mem_flags::mem_threadgroup)"
_WHOLE_FENCE = "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)"
"""Threads of a group that meet see what the others have written, in all memory."""
_LONG_LONG = re.compile(r"(?<=\d)LL\b|(?<=\dU)LL\b")
"""The suffix of a type that the language lacks; its long has 64 bits."""
_UNION = "__TVMArgUnion"
_INCOMPLETE = f"union {_UNION} {{\n int v_int[2];\n}};\n"
"""TVM writes it into each text, for numbers of less than 32 bits. It lacks what the text then reads, and texts are
compiled together, where it would be there twice."""
_PREAMBLE = """#include <metal_stdlib>
using namespace metal;
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#else
#pragma STDC FP_CONTRACT OFF
#endif
"""
"""Products and sums are rounded separately (no contraction) and in their order, so that sums that are exact by design
stay exact; NaN is a value. Compilers before Metal 3.2 know an option for the order only, which the runtime sets."""
_HELPERS = {
    _UNION: f"""union {_UNION} {{
  bool v_bool; char v_char; uchar v_uchar; short v_short; ushort v_ushort; half v_half; long all;
}};
""",
    WIDEN: f"""inline float {WIDEN}(ushort bits) {{ return float(as_type<half>(bits)); }}
""",
    NARROW: f"""inline ushort {NARROW}(float value) {{ return as_type<ushort>(half(value)); }}
""",
    "relaxpy_hypot": """inline float relaxpy_hypot(float x, float y) {
  float a = precise::fabs(x), b = precise::fabs(y);
  if (isinf(a) || isinf(b)) { return as_type<float>(0x7f800000u); }
  float large = a < b ? b : a, small = a < b ? a : b;
  if (large == 0.0f || isnan(a) || isnan(b)) { return a + b; }
  float ratio = small / large;
  return large * precise::sqrt(1.0f + ratio * ratio);
}
""",
    "relaxpy_nextafter": """inline float relaxpy_nextafter(float x, float y) {
  if (isnan(x) || isnan(y)) { return x + y; }
  if (x == y) { return y; }
  uint bits = as_type<uint>(x);
  if (x == 0.0f) { return as_type<float>((as_type<uint>(y) & 0x80000000u) | 1u); }
  return as_type<float>((x < y) == (x > 0.0f) ? bits + 1u : bits - 1u);
}
""",
}
"""Types and functions that kernels use, by name."""


class _MetalLanguage(CLike):
    types: ClassVar[Mapping[str, str]] = {
        "float32": "float", "float16": "half", "int64": "long", "uint64": "ulong", "int32": "int", "uint32": "uint",
        "int16": "short", "uint16": "ushort", "int8": "char", "uint8": "uchar",
    }  # fmt: skip
    bits: ClassVar[str] = "as_type<{}>"
    functions: ClassVar[Mapping[str, str]] = {
        **{name: f"precise::{name}" for name in _PRECISE},
        "nearbyint": "precise::rint",
        "hypot": "relaxpy_hypot",
        "nextafter": "relaxpy_nextafter",
    }
    reserved: ClassVar[frozenset[str]] = CPLUSPLUS.union(_WORDS, _USED)


_LANGUAGE = _MetalLanguage()


def metal_source(func: tirx.PrimFunc, target: Any) -> str:
    """The source of one kernel without float64, under the function's global symbol. Sources of several kernels are one
    source together."""
    func = func.with_body(rewritten(func.body, (tvm.ir.Call, _formula)))
    text = _LANGUAGE.text(func, target).replace(_FENCE, _WHOLE_FENCE).replace(_INCOMPLETE, "")
    text = _LONG_LONG.sub("L", text)
    return _PREAMBLE + "".join(map(_helper, filter(text.__contains__, _HELPERS))) + text


def _formula(call: Any) -> Any:
    """The arithmetic of a function that the language lacks."""
    name = str(getattr(call.op, "name", "")).removeprefix("tirx.")
    return applied(name, call.args) if name in _FORMULAS else call


def _helper(name: str) -> str:
    return f"#ifndef {name.upper()}\n#define {name.upper()}\n{_HELPERS[name]}#endif\n"
