"""bfloat16 as the processor has it: bits in memory, float32 in registers.

TVM's own pass computes wrong numbers where a bfloat16 is anything but an element in memory: it reads a value that was
just rounded, a `Let` or a choice among such values as the integer that its bits are; and it turns a NaN into 0 when it
rounds. So everything that a program computes in bfloat16 is written in float32 here, before that pass runs. Rounding,
to nearest, ties to even, NaN kept, is where the program says so (a cast) and where a value is stored.

Buffers that the program allocates become float32, too: values are rounded where the program says so. (TVM's pass does
that by halves: it forgets them inside a `Let`.) What is left to TVM are elements in memory that are moved as they are.
"""

from __future__ import annotations

import ml_dtypes

from relaxpy.tir.lowering.lanes import like, splat
from relaxpy.tir.lowering.narrow import Callbacks, NarrowRewriter
from relaxpy.tir.numerics.floats import is_nan
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

Expr = tvm.ir.Expr
Stmt = tirx.Stmt

_BITS, _NAN = 16, 0x7FC0


def without_bfloat16(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function, in which no arithmetic, function or choice is of bfloat16."""
    rewriter = _Rewriter(func)
    body = tvm_ffi.structural_map(func.body, rewriter.callbacks())
    return func if body.same_as(func.body) else func.with_body(body)


class _Rewriter(NarrowRewriter):
    """Rewrites nodes whose parts are rewritten: of a part that was bfloat16, only elements in memory still are."""

    kept = "float32"

    def __init__(self, func: tirx.PrimFunc) -> None:
        super().__init__(func)
        self.names: dict[tvm.ir.Var, tvm.ir.Var] = {}
        """Variables that stand for a bfloat16, and those of float32 in their place."""

        def bind(node: tirx.Let | tirx.Bind) -> None:
            if _is_bfloat16(node.value):
                self.names[node.var] = tirx.Var(node.var.name, like(node.value, "float32"))

        tvm_ffi.structural_walk(func.body, ((tirx.Let, tirx.Bind), bind))

    def callbacks(self) -> Callbacks:
        return (*super().callbacks(), (tirx.Bind, self.bind))

    def is_narrow(self, value: Expr) -> bool:
        return _is_bfloat16(value)

    def is_memory(self, buffer: Expr) -> bool:
        return str(buffer.dtype) == "bfloat16"

    def variable(self, var: tvm.ir.Var) -> tvm.ir.Var:
        return self.names.get(var, super().variable(var))

    def wide(self, value: Expr) -> Expr:
        if not _is_bfloat16(value):
            return value
        return _widened(tirx.reinterpret(like(value, "uint16"), value))

    def rounded(self, value: Expr, node: Expr) -> Expr:
        return value  # where it is stored, or the program says so

    def moved(self, value: Expr) -> Expr:
        return self.wide(value)

    def again(self, value: Expr, node: Expr) -> Expr:
        return value

    def number(self, node: tirx.FloatImm) -> Expr:
        if not _is_bfloat16(node):
            return node
        return tirx.FloatImm("float32", float(ml_dtypes.bfloat16(node.value)))

    def cast(self, node: Expr) -> Expr:
        value = self.wide(node.value)
        if not _is_bfloat16(node):
            if str(value.ty.dtype) == str(node.ty.dtype):
                return value
            return node if value.same_as(node.value) else value.astype(str(node.ty.dtype))
        if _is_bfloat16(node.value):
            return value
        return _widened(_rounded(value.astype(like(value, "float32"))))

    def let(self, node: tirx.Let) -> Expr:
        var = self.names.get(node.var, node.var)
        if var.same_as(node.var) and not _is_bfloat16(node) and not _is_bfloat16(node.value):
            return node
        return tirx.Let(var, self.wide(node.value), self.wide(node.body))

    def bind(self, node: tirx.Bind) -> Stmt:
        var = self.names.get(node.var, node.var)
        if var.same_as(node.var) and not _is_bfloat16(node.value):
            return node
        return tirx.Bind(var, self.wide(node.value))

    def reinterpreted(self, node: tvm.ir.Call) -> Expr:
        (value,) = node.args
        if _is_bfloat16(node):
            return _widened(value)
        is_half = tvm.DataType(str(node.ty.dtype)).bits == _BITS
        if is_half and str(value.ty.dtype).startswith("float32"):  # no bfloat16 any more
            return tirx.reinterpret(str(node.ty.dtype), _rounded(value))
        return node

    def stored(self, buffer: Expr, value: Expr) -> Expr:
        if not self.is_memory(buffer):
            return self.wide(value)
        if _is_bfloat16(value):
            return value
        return tirx.reinterpret(like(value, "bfloat16"), _rounded(value))


def _is_bfloat16(value: Expr) -> bool:
    """Is it a number, or a vector of numbers, of that type?"""
    return isinstance(value.ty, tvm.ir.PrimType) and str(value.ty.dtype).startswith("bfloat16")


def _widened(bits: Expr) -> Expr:
    """The float32 with these 16 bits, and zeros below them."""
    wide = bits.astype(like(bits, "uint32")) << splat(_BITS, bits, "uint32")
    return tirx.reinterpret(like(bits, "float32"), wide)


def _widened_from(value: Expr) -> Expr | None:
    """The bits that `_widened` made a float32 of; None for any other value."""
    match value:
        case tvm.ir.Call(args=[tirx.LShift(a=tirx.Cast(value=bits), b=shift)]) if (
            _is_reinterpretation(value)
            and str(bits.ty.dtype).startswith("uint16")
            and tvm_ffi.structural_equal(shift, splat(_BITS, bits, "uint32"))
        ):
            return bits
        case _:
            return None


def _is_reinterpretation(call: tvm.ir.Call) -> bool:
    return str(getattr(call.op, "name", "")) == "tirx.reinterpret"


def _rounded(value: Expr) -> Expr:
    """The bits of the bfloat16 next to a float32; of one that was widened, those it was widened from."""
    narrow = _widened_from(value)
    if narrow is not None:
        return narrow
    wide = tirx.Var("wide", value.ty)
    bits = tirx.reinterpret(like(value, "uint32"), wide)
    shift, one = splat(_BITS, value, "uint32"), splat(1, value, "uint32")
    half = splat(0x7FFF, value, "uint32") + ((bits >> shift) & one)
    near = ((bits + half) >> shift).astype(like(value, "uint16"))
    kept = tirx.Select(is_nan(wide), splat(_NAN, value, "uint16"), near)
    return tirx.Let(wide, value, kept)
