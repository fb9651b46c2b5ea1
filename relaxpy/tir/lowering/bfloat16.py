"""bfloat16 as the processor has it: bits in memory, float32 in registers.

TVM's own pass computes wrong numbers where a bfloat16 is anything but an element in memory: it reads a value that was
just rounded, a `Let` or a choice among such values as the integer that its bits are; and it turns a NaN into 0 when it
rounds. So everything that a program computes in bfloat16 is written in float32 here, before that pass runs. Rounding,
to nearest, ties to even, NaN kept, is where the program says so (a cast) and where a value is stored.

Buffers that the program allocates become float32, too: values are rounded where the program says so. (TVM's pass does
that by halves: it forgets them inside a `Let`.) What is left to TVM are elements in memory that are moved as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import ml_dtypes

from relaxpy.tir.lowering.lanes import like, memory_like, splat
from relaxpy.tir.numerics.floats import is_nan
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi

Expr = tvm.ir.Expr
Stmt = tirx.Stmt

_BINARY = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max, tirx.EQ,
    tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE,
)  # fmt: skip
_BITS, _NAN = 16, 0x7FC0


def without_bfloat16(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function, in which no arithmetic, function or choice is of bfloat16."""
    rewriter = _Rewriter(func)
    body = tvm_ffi.structural_map(func.body, rewriter.callbacks())
    return func if body.same_as(func.body) else func.with_body(body)


class _Rewriter:
    """Rewrites nodes whose parts are rewritten: of a part that was bfloat16, only elements in memory still are."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.buffers: dict[tvm.ir.Var, tvm.ir.Var] = {}
        """Buffers of bfloat16 that the function allocates, and those of float32 in their place."""
        self.names: dict[tvm.ir.Var, tvm.ir.Var] = {}
        """Variables that stand for a bfloat16, and those of float32 in their place."""

        def bind(node: tirx.Let | tirx.Bind) -> None:
            if _is_bfloat16(node.value):
                self.names[node.var] = tirx.Var(node.var.name, like(node.value, "float32"))

        def allocate(buffers: Iterable[Expr]) -> None:
            self.buffers |= {
                b: memory_like(b, "float32") for b in buffers if _is_bfloat16_memory(b)
            }

        visits = [
            (s_tir.SBlock, lambda block: allocate(block.alloc_buffers)),
            (tirx.AllocBuffer, lambda stmt: allocate([stmt.buffer])),
            ((tirx.Let, tirx.Bind), bind),
        ]
        tvm_ffi.structural_walk(func.body, visits)

    def callbacks(self) -> tuple[tuple[object, Callable[..., object]], ...]:
        """How each kind of node is rewritten."""
        return (
            (_BINARY, self.binary),
            (tirx.FloatImm, self.number),
            (tvm.ir.Var, lambda var: self.names.get(var, self.buffers.get(var, var))),
            (tvm.ir.TensorLoad, self.load),
            (tirx.Cast, self.cast),
            (tirx.Select, self.select),
            (tirx.Broadcast, self.broadcast),
            (tirx.Shuffle, self.shuffle),
            (tirx.Let, self.let),
            (tirx.Bind, self.bind),
            (tvm.ir.Call, self.call),
            (tirx.BufferStore, self.store),
        )

    def wide(self, value: Expr) -> Expr:
        """A bfloat16 in memory as float32; what is none, as it is."""
        if not _is_bfloat16(value):
            return value
        return _widened(tirx.reinterpret(like(value, "uint16"), value))

    def load(self, node: Expr) -> Expr:
        if not _is_bfloat16(node) or _is_bfloat16_memory(node.source):
            return node
        return tirx.BufferLoad(node.source, list(node.indices))

    def binary(self, node: Expr) -> Expr:
        if _is_bfloat16(node) or _is_bfloat16(node.a) or _is_bfloat16(node.b):
            return type(node)(self.wide(node.a), self.wide(node.b))
        return node

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

    def select(self, node: tirx.Select) -> Expr:
        if not _is_bfloat16(node):
            return node
        yes, no = self.wide(node.true_value), self.wide(node.false_value)
        return tirx.Select(node.condition, yes, no)

    def broadcast(self, node: tirx.Broadcast) -> Expr:
        return tirx.Broadcast(self.wide(node.value), node.lanes) if _is_bfloat16(node) else node

    def shuffle(self, node: tirx.Shuffle) -> Expr:
        if not _is_bfloat16(node):
            return node
        return tirx.Shuffle([self.wide(vector) for vector in node.vectors], list(node.indices))

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

    def call(self, node: tvm.ir.Call) -> Expr:
        name = str(getattr(node.op, "name", ""))
        match name:
            case "tirx.masked_load":
                if not _is_bfloat16(node) or _is_bfloat16_memory(node.args[0]):
                    return node
                return tirx.call_intrin(like(node, "float32"), name, *node.args)
            case "tirx.masked_store":
                buffer, value, *place = node.args
                stored = self.stored(buffer, value)
                if stored.same_as(value):
                    return node
                return tirx.call_intrin("void", name, buffer, stored, *place)
            case "tirx.reinterpret" if isinstance(node.ty, tvm.ir.PrimType):
                (value,) = node.args
                if _is_bfloat16(node):
                    return _widened(value)
                is_half = tvm.DataType(str(node.ty.dtype)).bits == _BITS
                if is_half and str(value.ty.dtype).startswith("float32"):  # no bfloat16 any more
                    return tirx.reinterpret(str(node.ty.dtype), _rounded(value))
                return node
        if not _is_bfloat16(node) and not any(map(_is_bfloat16, node.args)):
            return node
        result = tvm.ir.PrimType(like(node, "float32")) if _is_bfloat16(node) else node.ty
        return tvm.ir.Call(node.op, list(map(self.wide, node.args)), node.attrs, ret_ty=result)

    def store(self, node: tirx.BufferStore) -> Stmt:
        value = self.stored(node.buffer, node.value)
        if value.same_as(node.value):
            return node
        return tirx.BufferStore(node.buffer, value, list(node.indices))

    def stored(self, buffer: Expr, value: Expr) -> Expr:
        """A value as it goes to a buffer."""
        if not _is_bfloat16_memory(buffer):
            return self.wide(value)
        if _is_bfloat16(value):
            return value
        return tirx.reinterpret(like(value, "bfloat16"), _rounded(value))


def _is_bfloat16(value: Expr) -> bool:
    """Is it a number, or a vector of numbers, of that type?"""
    return isinstance(value.ty, tvm.ir.PrimType) and str(value.ty.dtype).startswith("bfloat16")


def _is_bfloat16_memory(buffer: Expr) -> bool:
    return str(buffer.dtype) == "bfloat16"


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
