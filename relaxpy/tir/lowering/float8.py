"""The two float8 formats: bits in memory, float32 in arithmetic.

TVM's own passes for them compute wrong numbers: 1000 becomes -0.015625 in float8_e4m3fn, a NaN 1.5, and what is below
the normal range comes out otherwise than in `ml_dtypes`. So conversions are written as integer arithmetic here, before
those passes run, and they are left with elements in memory that are moved as they are. Rounding is to nearest, ties to
even; beyond the range there is infinity in float8_e5m2 and NaN in float8_e4m3fn, which has no infinity.

After the rewrite a float8 value is an element in memory or a `reinterpret` of eight bits. Operations that only move
values (a choice, a name) move the bits; all others take float32 operands and round their result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaxpy.ir.dtype import DType
from relaxpy.tir.lowering.lanes import like, splat
from relaxpy.tir.lowering.narrow import NarrowRewriter
from relaxpy.tir.nodes import with_body
from relaxpy.tir.numerics.floats import INFINITY_BITS
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

Expr = tvm.ir.Expr
Stmt = tirx.Stmt

_F32_BITS, _F32_BIAS = 23, 127


@dataclass(frozen=True)
class Format:
    """The layout of a number of eight bits."""

    mantissa: int
    """Bits of the mantissa."""
    bias: int
    """The bias of the exponent."""
    infinity: int
    """The bits of an overflowed result: infinity, or NaN if the format has no infinity."""
    nan: int
    last: float
    """The largest number that is rounded to a finite one."""

    @property
    def dropped(self) -> int:
        """The bits of float32's mantissa that this format does not have."""
        return _F32_BITS - self.mantissa

    @property
    def rebias(self) -> int:
        """The difference of the biases, shifted to the exponent of a float32's bits."""
        return (_F32_BIAS - self.bias) << _F32_BITS

    @property
    def normal(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)


FORMATS = {
    "float8_e4m3fn": Format(mantissa=3, bias=7, infinity=0x7F, nan=0x7F, last=464.0),
    "float8_e5m2": Format(mantissa=2, bias=15, infinity=0x7C, nan=0x7E, last=np.nextafter(np.float32(61440), 0).item()),
}  # fmt: skip


def without_float8(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with all arithmetic, functions and choices in float8 rewritten."""
    rewriter = _Rewriter(func)
    body = _without_names(tvm_ffi.structural_map(func.body, rewriter.callbacks()))
    return with_body(func, body)


class _Rewriter(NarrowRewriter):
    """Rewrites nodes after their operands: a float8 operand is in memory, or a `reinterpret` of bits."""

    kept = "uint8"

    def is_narrow(self, value: Expr) -> bool:
        return _format(value) is not None

    def is_memory(self, buffer: Expr) -> bool:
        return str(buffer.dtype) in FORMATS

    def wide(self, value: Expr) -> Expr:
        return _wide(value)

    def rounded(self, value: Expr, node: Expr) -> Expr:
        return _result(value, node)

    def moved(self, value: Expr) -> Expr:
        return _plain(value)

    def again(self, value: Expr, node: Expr) -> Expr:
        return tirx.reinterpret(str(node.ty.dtype), value)

    def number(self, node: tirx.FloatImm) -> Expr:
        if not _format(node):
            return node
        name = str(node.ty.dtype)
        code = np.asarray(node.value).astype(DType(name).numpy).view(np.uint8)
        return tirx.reinterpret(name, tirx.IntImm("uint8", int(code)))

    def cast(self, node: Expr) -> Expr:
        if not (_format(node) or _format(node.value)):
            return node
        value, target = _wide(node.value), str(node.ty.dtype)
        if str(node.value.ty.dtype) == target:
            return node.value
        if target.startswith("bfloat16"):  # holds every float8, and is the upper half of a float32
            word = tirx.reinterpret(like(value, "uint32"), value) >> splat(16, value, "uint32")
            return tirx.reinterpret(target, word.astype(like(value, "uint16")))
        if not _format(node):
            return value if str(value.ty.dtype) == target else value.astype(target)
        return _result(value.astype(like(value, "float32")), node)

    def reinterpreted(self, node: tvm.ir.Call) -> Expr:
        (value,) = node.args
        if not _format(value):
            return node
        bits, target = _bits(value), str(node.ty.dtype)
        return bits if str(bits.ty.dtype) == target else tirx.reinterpret(target, bits)

    def stored(self, buffer: Expr, value: Expr) -> Expr:
        return _stored(buffer, value)


def _without_names(body: Stmt) -> Stmt:
    """Replace variables of float8 by variables of their bits."""
    names: dict[tvm.ir.Var, tvm.ir.Var] = {}

    def find(node: tirx.Let | tirx.Bind) -> None:
        if _format(node.var):
            names[node.var] = tirx.Var(node.var.name, like(node.var, "uint8"))

    def call(node: tvm.ir.Call) -> Expr:
        if str(getattr(node.op, "name", "")) != "tirx.reinterpret":
            return node
        is_bits = isinstance(node.args[0], tvm.ir.Var) and node.args[0] in bytes_
        return node.args[0] if is_bits and str(node.ty.dtype).startswith("uint8") else node

    tvm_ffi.structural_walk(body, ((tirx.Let, tirx.Bind), find))
    if not names:
        return body
    bytes_ = set(names.values())
    callbacks = (
        (tvm.ir.Var, lambda var: names.get(var, var)),
        (tvm.ir.Call, call),
        (tirx.Let, lambda node: tirx.Let(node.var, _plain(node.value), node.body)),
        (tirx.Bind, lambda node: tirx.Bind(node.var, _plain(node.value))),
    )
    return tvm_ffi.structural_map(body, callbacks)


def _plain(value: Expr) -> Expr:
    """The bits of a float8; other values unchanged."""
    return _bits(value) if _format(value) else value


def _format(value: Expr) -> Format | None:
    """The format of a number, or of a vector of numbers; None for other dtypes."""
    if not isinstance(getattr(value, "ty", None), tvm.ir.PrimType):
        return None
    name = str(value.ty.dtype)
    if not name.startswith("float8"):
        return None
    return FORMATS.get(name.split("x", 1)[0])


def _bits(value: Expr) -> Expr:
    """The bits of a float8."""
    if isinstance(value, tvm.ir.Call) and str(getattr(value.op, "name", "")) == "tirx.reinterpret":
        value = value.args[0]
    word = like(value, "uint8")
    return value if str(value.ty.dtype) == word else tirx.reinterpret(word, value)


def _stored(buffer: Expr, value: Expr) -> Expr:
    """Convert a value to the form in which a buffer stores it."""
    if not _format(value):
        return value
    if str(buffer.dtype) not in FORMATS:
        return _bits(value)
    is_name = isinstance(value, tvm.ir.Var)
    return tirx.reinterpret(str(value.ty.dtype), _bits(value)) if is_name else value


def _wide(value: Expr) -> Expr:
    """Convert a float8 to the float32 of the same number; other values unchanged."""
    form = _format(value)
    if form is None:
        return value
    bits = tirx.Var("bits", like(value, "int32"))

    def i32(number: int) -> Expr:
        return splat(number, value, "int32")

    def bits_of(number: float) -> int:
        return int(np.float32(number).view(np.int32))

    size = bits & i32(0x7F)
    moved = size << i32(form.dropped)
    # Subnormals have no leading 1. With one, the result is too large by the smallest normal number.
    small = tirx.reinterpret(
        like(value, "int32"),
        tirx.reinterpret(like(value, "float32"), moved + i32(bits_of(form.normal)))
        - splat(form.normal, value, "float32"),
    )
    is_small = size < i32(1 << form.mantissa)
    number = tirx.Select(is_small, small, moved + i32(form.rebias))
    is_special = size >= i32(form.infinity)
    special = tirx.Select(
        size <= i32(form.infinity if form.infinity != form.nan else -1),
        i32(INFINITY_BITS),
        i32(INFINITY_BITS | (1 << (_F32_BITS - 1))),
    )
    sign = (bits & i32(0x80)) << i32(24)
    whole = tirx.Select(is_special, special, number) | sign
    result = tirx.reinterpret(like(value, "float32"), whole)
    return tirx.Let(bits, _bits(value).astype(like(value, "int32")), result)


def _result(value: Expr, node: Expr) -> Expr:
    """The result of a rewritten node: a float32 is rounded if the node was a float8."""
    form = _format(node)
    if form is None:
        return value
    wide = tirx.Var("wide", value.ty)

    def i32(number: int) -> Expr:
        return splat(number, value, "int32")

    def bits_of(number: float) -> Expr:
        return i32(int(np.float32(number).view(np.int32)))

    def int_of(number: Expr) -> Expr:
        return tirx.reinterpret(like(value, "int32"), number)

    bits = int_of(wide)
    size = bits & i32(0x7FFFFFFF)
    odd = (size >> i32(form.dropped)) & i32(1)
    half = i32((1 << (form.dropped - 1)) - 1)
    number = (size - i32(form.rebias) + half + odd) >> i32(form.dropped)
    # Adding a number whose last bit is that of the smallest float8 rounds a float32 to that bit.
    unit = 2.0 ** (1 - form.bias - form.mantissa + _F32_BITS)
    magnitude = tirx.reinterpret(like(value, "float32"), size)
    small = int_of(magnitude + splat(unit, value, "float32")) - bits_of(unit)
    code = tirx.Select(size < bits_of(form.normal), small, number)
    code = tirx.Select(size > bits_of(form.last), i32(form.infinity), code)
    code = tirx.Select(size > i32(INFINITY_BITS), i32(form.nan), code)
    signed = (code | ((bits >> i32(24)) & i32(0x80))).astype(like(value, "uint8"))
    return tirx.reinterpret(str(node.ty.dtype), tirx.Let(wide, value, signed))
