"""Device functions as OpenCL C.

TVM writes the text. Constructs that it writes wrongly are replaced before (`_spelled`): numbers with 7 digits, bits of
a value through the address of an rvalue, choices by `select` that evaluate both sides, the smallest integer, names of
functions that exist in C and not in OpenCL.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from relaxpy.backend.gpu.half import NARROW, WIDEN, with_bits_in_memory
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import rewritten

Expr = Any

_TYPES = {
    "float64": "double", "float32": "float", "float16": "half", "int64": "long", "uint64": "ulong", "int32": "int",
    "uint32": "uint", "int16": "short", "uint16": "ushort", "int8": "char", "uint8": "uchar",
}  # fmt: skip
"""OpenCL's names of types."""
_BITS = {
    "float64": ("uint64", "<d", "<Q"),
    "float32": ("uint32", "<f", "<I"),
    "float16": ("uint16", "<e", "<H"),
}
"""For each float type, the integer type of its size, and the `struct` formats of both."""
_FUNCTIONS = frozenset(
    f"tirx.{name}"
    for name in (
        "exp exp2 exp10 log log2 log10 log1p pow erf sqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh "
        "atanh fmod hypot copysign"
    ).split()
)
"""TVM's functions that OpenCL has under the same name, for all floats."""
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


def opencl_source(func: tirx.PrimFunc, target: Any) -> str:
    """The source of one kernel, under the name of the function."""
    name = str(func.attrs["global_symbol"])
    func = with_bits_in_memory(func.without_attr("tirx.noalias"))
    mod = tvm.IRModule({name: func.with_body(_spelled(func.body))})
    passes = [
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
        tirx.transform.LowerIntrin(),
    ]
    mod = tvm.transform.Sequential(passes)(mod)
    mod = tvm.IRModule({var: f.with_body(_spelled(f.body)) for var, f in mod.functions.items()})
    module = tvm.get_global_func("target.build.opencl")(mod, target)
    text = str(module.inspect_source()).replace(_LOCAL_FENCE, _FENCE)
    return _PREAMBLE + (_HALVES if WIDEN in text or NARROW in text else "") + text


def _spelled(body: Any) -> Any:
    """Rewrite the body into constructs that TVM's OpenCL C generator handles correctly."""
    return rewritten(
        body,
        (tvm.ir.Call, _call),
        (tirx.Select, _choice),
        ((tirx.Max, tirx.Min), _extreme),
        (tirx.IntImm, _integer),
        (tirx.FloatImm, _number),
    )


def _call(call: Any) -> Expr:
    name = str(getattr(call.op, "name", ""))
    if name == "tirx.reinterpret":
        return _bits(call.args[0], str(call.ty.dtype))
    if name == "tirx.tanh":
        return _tanh(call.args[0])
    if name in _FUNCTIONS:
        return tirx.call_pure_extern(str(call.ty.dtype), name.removeprefix("tirx."), *call.args)
    if name == "tirx.sigmoid":
        (x,), one = call.args, tirx.const(1.0, call.ty.dtype)
        return one / (one + tirx.call_pure_extern(str(call.ty.dtype), "exp", -x))
    return call


def _tanh(x: Expr) -> Expr:
    """The hyperbolic tangent, 1 where it rounds to that: drivers' own are off by one unit there, at infinity too
    (PoCL)."""
    dtype = str(x.ty.dtype)
    size = tirx.call_pure_extern(dtype, "fabs", x)
    one = tirx.call_pure_extern(dtype, "copysign", tirx.const(1.0, dtype), x)
    value = tirx.call_pure_extern(dtype, "tanh", x)
    return tirx.if_then_else(size > tirx.const(_FLAT, dtype), one, value)


def _bits(value: Expr, dtype: str) -> Expr:
    """The bits of a value as another type."""
    own = str(value.ty.dtype)
    if own == dtype:
        return value
    if dtype not in _TYPES or own not in _TYPES:
        return value
    # The type of a C expression may be wider than that of the value that it represents.
    exact = tirx.call_pure_extern(own, f"({_TYPES[own]})", value)
    return tirx.call_pure_extern(dtype, f"as_{_TYPES[dtype]}", exact)


def _choice(select: Any) -> Expr:
    return tirx.if_then_else(select.condition, select.true_value, select.false_value)


def _extreme(node: Any) -> Expr:
    """The larger or smaller of two floats, as on other targets: the second if one is a NaN. OpenCL's own functions are
    undefined there."""
    if "float" not in str(node.ty.dtype):
        return node
    names: list[Any] = []
    a, b = (_named(x, name, names) for x, name in ((node.a, "a"), (node.b, "b")))
    first = a > b if isinstance(node, tirx.Max) else a < b
    chosen = tirx.if_then_else(first, a, b)
    for var, value in reversed(names):
        chosen = tirx.Let(var, value, chosen)
    return chosen


def _named(value: Expr, name: str, names: list[Any]) -> Expr:
    """A value that is used twice: bound to a name, unless it is short."""
    if isinstance(value, tvm.ir.Var | tirx.FloatImm):
        return value
    var = tirx.Var(name, value.ty)
    names.append((var, value))
    return var


def _integer(literal: Any) -> Expr:
    """The smallest integer of a type. C has no literal for it, except the negated literal of the next larger type."""
    dtype, value = str(literal.ty.dtype), int(literal.value)
    if dtype in ("int32", "int64") and value == -(1 << (int(dtype[3:]) - 1)):
        unsigned = tirx.const(-value, f"u{dtype}")
        return tirx.call_pure_extern(dtype, f"as_{_TYPES[dtype]}", unsigned)
    return literal


def _number(literal: Any) -> Expr:
    """A float by its bits, unless a few digits represent it exactly."""
    dtype, value = str(literal.ty.dtype), float(literal.value)
    if dtype not in _BITS:
        return literal
    unsigned, packed, raw = _BITS[dtype]
    if (
        math.isfinite(value)
        and float(f"{value:e}") == value
        and (value or math.copysign(1, value) > 0)
    ):
        return literal
    (bits,) = struct.unpack(raw, struct.pack(packed, value))
    return tirx.call_pure_extern(dtype, f"as_{_TYPES[dtype]}", tirx.const(bits, unsigned))
