"""Device functions as CUDA C: TVM's text behind declarations of our own, which need no header."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from relaxpy.backend.cuda.target import COPIES_ON_THEIR_WAY
from relaxpy.backend.gpu.c_like import C_FUNCTIONS, CPLUSPLUS, CLike
from relaxpy.backend.gpu.half import NARROW, WIDEN
from relaxpy.tir.tvm import tirx

_KERNEL = 'extern "C" __global__'
_BITS = "relaxpy_bits"
_TYPES = f"""typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t, uchar;
typedef unsigned short uint16_t, ushort, nv_bfloat16;
typedef unsigned int uint32_t, uint;
typedef unsigned long long uint64_t;
inline float {WIDEN}(ushort bits) {{ float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits)); return x; }}
inline ushort {NARROW}(float x) {{ ushort bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); return bits; }}
struct half {{
  ushort bits;
  half() = default;
  half(float x) : bits({NARROW}(x)) {{}}
  operator float() const {{ return {WIDEN}(bits); }}
}};
template <class To, class From> inline To {_BITS}(From value) {{
  static_assert(sizeof(To) == sizeof(From), "bits of one size");
  To result;
  memcpy(&result, &value, sizeof(To));
  return result;
}}
"""


def _multiply(dtype: str, sums: str, letter: str, instruction: str) -> str:
    """The function that multiplies by tensor cores (`CudaTarget.tensor_cores`)."""
    return f"""inline void relaxpy_mma_{dtype}({sums}* c, const uint* a, const uint* b) {{
  asm volatile("mma.sync.aligned.{instruction} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
               : "+{letter}"(c[0]), "+{letter}"(c[1]), "+{letter}"(c[2]), "+{letter}"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""


def _squares(name: str, how: str) -> str:
    """A function that reads four squares from shared memory (`WarpFunctions.squares`)."""
    return f"""inline void {name}(uint* words, const void* row) {{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{how}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(relaxpy_place(row)) : "memory");
}}
"""


def _of_four(name: str, combined: str) -> str:
    """A function that combines the numbers `x` and `y` of four neighbouring threads."""
    return f"""inline float {name}(float x) {{
  for (int step = 1; step < 4; step *= 2) {{
    float y = __shfl_xor_sync(0xffffffff, x, step);
    x = {combined};
  }}
  return x;
}}
"""


def _pair(dtype: str, short: str) -> str:
    return f"""inline uint relaxpy_pair_{dtype}(float first, float second) {{
  uint word;
  asm("cvt.rn.{short}x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}}
"""


_TILES = """inline uint relaxpy_place(const void* place) { return uint(__cvta_generic_to_shared(place)); }
inline void relaxpy_copy(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(relaxpy_place(to)), "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0) : "memory");
}
inline void relaxpy_copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }
inline void relaxpy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
"""


def _copied_but(number: int) -> str:
    """The function that waits for all groups of copies but so many."""
    wait = f'asm volatile("cp.async.wait_group {number};" ::: "memory")'
    return f"inline void relaxpy_copied_but_{number}() {{ {wait}; }}\n"


PREAMBLE = _TYPES + "".join((
    _TILES,
    *map(_copied_but, COPIES_ON_THEIR_WAY),
    _squares("relaxpy_squares", ""),
    _squares("relaxpy_turned_squares", ".trans"),
    _of_four("relaxpy_largest_of_four", "x > y ? x : y"),
    _of_four("relaxpy_total_of_four", "x + y"),
    _pair("float16", "f16"),
    _pair("bfloat16", "bf16"),
    _multiply("float16", "float", "f", "m16n8k16.row.col.f32.f16.f16.f32"),
    _multiply("bfloat16", "float", "f", "m16n8k16.row.col.f32.bf16.bf16.f32"),
    _multiply("int8", "int", "r", "m16n8k32.row.col.s32.s8.s8.s32"),
))  # fmt: skip
"""Types and functions that the text uses, without headers: these take seconds to compile."""
_NAMES = frozenset(re.findall(r"\b(?:\w+_t|u[a-z]+|nv_bfloat16|memcpy|relaxpy_\w+)\b", PREAMBLE)).union(
    (f"{name}{suffix}" for name in (*C_FUNCTIONS, "fabs", "floor", "ceil", "round", "trunc", "rint", "fma")
     for suffix in ("", "f")),
    (f"{kind}{lanes}" for kind in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "longlong",
                                   "ulonglong", "float", "double", "half") for lanes in ("", 1, 2, 3, 4)),
    "min max abs isnan isinf isfinite nearbyint nearbyintf blockIdx blockDim gridDim threadIdx warpSize dim3".split(),
)  # fmt: skip
"""Names that CUDA C or the preamble has."""


class _Cuda(CLike):
    types: ClassVar[Mapping[str, str]] = {
        "float64": "double", "float32": "float", "float16": "half", "int64": "int64_t", "uint64": "uint64_t",
        "int32": "int32_t", "uint32": "uint32_t", "int16": "int16_t", "uint16": "uint16_t", "int8": "int8_t",
        "uint8": "uint8_t",
    }  # fmt: skip
    bits: ClassVar[str] = f"{_BITS}<{{}}>"
    functions = C_FUNCTIONS
    reserved: ClassVar[frozenset[str]] = CPLUSPLUS | _NAMES


_LANGUAGE = _Cuda()


def cuda_source(func: tirx.PrimFunc, target: Any) -> str:
    """The source of one kernel, under the name of the function."""
    text = _LANGUAGE.text(func, target)
    return PREAMBLE + _rolled(text[text.index(_KERNEL) :])


def _rolled(text: str) -> str:
    """The text of a kernel whose loops stay loops where threads meet in them. Turns of such a loop do not overlap, so
    to unroll it, as the compiler does with short ones, only takes registers."""
    lines = text.splitlines()
    found: list[str] = []
    for number, line in enumerate(lines):
        start = line.lstrip()
        if start.startswith("for ("):
            margin = line[: -len(start)]
            end = lines.index(f"{margin}}}", number)
            if any("__syncthreads()" in inner for inner in lines[number:end]):
                found.append(f"{margin}#pragma unroll 1")
        found.append(line)
    return "\n".join(found) + "\n"
