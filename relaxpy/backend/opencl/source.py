"""Device functions as OpenCL C. TVM writes the text (`relaxpy.backend.gpu.c_like`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from relaxpy.backend.gpu.c_like import C_FUNCTIONS, CPLUSPLUS, CLike, named
from relaxpy.backend.gpu.half import NARROW, WIDEN
from relaxpy.tir.tvm import tirx
from relaxpy.tir.types import Expr

_FLAT = 20.0
"""From here on the hyperbolic tangent is 1 in float32 and float64."""
_LOCAL_FENCE = "barrier(CLK_LOCAL_MEM_FENCE)"
_FENCE = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)"
"""Threads of a group that meet see what the others have written, in all memory."""
_PREAMBLE = "#pragma OPENCL FP_CONTRACT OFF\n"
"""Products and sums are rounded separately (no contraction), so that sums that are exact by design stay exact."""

_HALVES = f"""#ifndef {WIDEN.upper()}
#define {WIDEN.upper()}
inline float {WIDEN}(ushort bits) {{ return vload_half(0, (const half*)&bits); }}
inline ushort {NARROW}(float value) {{ ushort bits; vstore_half_rte(value, 0, (half*)&bits); return bits; }}
#endif
"""
"""Functions of halves that every device has; arithmetic on halves is an extension."""


_WORDS = CPLUSPLUS.union(
    C_FUNCTIONS,
    (f"{kind}{lanes}"
     for kind in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double", "half", "bool")
     for lanes in ("", 2, 3, 4, 8, 16)),
    (f"{underscores}{word}"
     for word in ("kernel", "global", "local", "constant", "private", "generic", "read_only", "write_only",
                  "read_write")
     for underscores in ("", "__")),
    "restrict quad complex imaginary pipe uniform size_t ptrdiff_t intptr_t uintptr_t event_t sampler_t queue_t "
    "ndrange_t clk_event_t reserve_id_t image1d_t image2d_t image3d_t unorm snorm vec_step fabs floor ceil round trunc "
    "rint rsqrt fma nextafter min max abs select barrier popcount clz isnan isinf isfinite".split(),
)  # fmt: skip
"""The words, types and functions of OpenCL C, also of its later versions."""


class _OpenCLC(CLike):
    types: ClassVar[Mapping[str, str]] = {
        "float64": "double", "float32": "float", "float16": "half", "int64": "long", "uint64": "ulong", "int32": "int",
        "uint32": "uint", "int16": "short", "uint16": "ushort", "int8": "char", "uint8": "uchar",
    }  # fmt: skip
    bits: ClassVar[str] = "as_{}"
    functions: ClassVar[Mapping[str, str]] = {**C_FUNCTIONS, "nextafter": "nextafter"}
    reserved: ClassVar[frozenset[str]] = _WORDS

    def function(self, name: str, dtype: str, *args: Expr) -> Expr:
        if name != "tanh":
            return super().function(name, dtype, *args)
        return named(lambda x: _flat(super(_OpenCLC, self).function(name, dtype, x), x), *args)


_LANGUAGE = _OpenCLC()


def opencl_source(func: tirx.PrimFunc, target: Any) -> str:
    """The source of one kernel, under the name of the function."""
    text = _LANGUAGE.text(func, target).replace(_LOCAL_FENCE, _FENCE)
    return _PREAMBLE + (_HALVES if WIDEN in text or NARROW in text else "") + text


def _flat(tanh: Expr, x: Expr) -> Expr:
    """The hyperbolic tangent of x, 1 where it rounds to that: drivers' own are off by one unit there, at infinity too
    (PoCL)."""
    dtype = str(x.ty.dtype)
    size = tirx.call_pure_extern(dtype, "fabs", x)
    one = tirx.call_pure_extern(dtype, "copysign", tirx.const(1.0, dtype), x)
    return tirx.if_then_else(size > tirx.const(_FLAT, dtype), one, tanh)
