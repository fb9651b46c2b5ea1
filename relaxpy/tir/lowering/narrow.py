"""Remove arithmetic on a narrow float from programs: the rewrite of each kind of node, independent of the format.

A narrow float is read from memory unchanged. Elsewhere it is *kept* in a representation that arithmetic takes, or that
can be moved. A format defines the representation, how a float32 is made from it, and how a float32 is rounded to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

from relaxpy.tir.lowering.lanes import like, memory_like
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi

Expr = tvm.ir.Expr
Stmt = tirx.Stmt

_BINARY = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max, tirx.EQ,
    tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE,
)  # fmt: skip
Callbacks = tuple[tuple[object, Callable[..., object]], ...]


class NarrowRewriter(ABC):
    """Rewrites nodes after their operands."""

    kept: ClassVar[str]
    """The dtype of the representation outside of memory, and in buffers that the function allocates."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.buffers: dict[tvm.ir.Var, tvm.ir.Var] = {}
        """Buffers of narrow floats that the function allocates, and their replacements."""

        def allocate(buffers: Iterable[Expr]) -> None:
            self.buffers |= {b: memory_like(b, self.kept) for b in buffers if self.is_memory(b)}

        visits = [
            (s_tir.SBlock, lambda block: allocate(block.alloc_buffers)),
            (tirx.AllocBuffer, lambda stmt: allocate([stmt.buffer])),
        ]
        tvm_ffi.structural_walk(func.body, visits)

    # Defined by a format

    @abstractmethod
    def is_narrow(self, value: Expr) -> bool:
        """Is it a number, or a vector of numbers, of the format?"""

    @abstractmethod
    def is_memory(self, buffer: Expr) -> bool:
        """Are the elements of a buffer of the format?"""

    @abstractmethod
    def wide(self, value: Expr) -> Expr:
        """Convert a narrow float to float32; other values unchanged."""

    @abstractmethod
    def rounded(self, value: Expr, node: Expr) -> Expr:
        """The replacement of a node whose value was computed in float32."""

    @abstractmethod
    def moved(self, value: Expr) -> Expr:
        """Convert a narrow float to its kept representation; other values unchanged."""

    @abstractmethod
    def again(self, value: Expr, node: Expr) -> Expr:
        """The replacement of a node whose value has this kept representation."""

    @abstractmethod
    def stored(self, buffer: Expr, value: Expr) -> Expr:
        """Convert a value to the form in which a buffer stores it."""

    @abstractmethod
    def number(self, node: tirx.FloatImm) -> Expr:
        """A literal."""

    @abstractmethod
    def cast(self, node: Expr) -> Expr:
        """A conversion."""

    @abstractmethod
    def reinterpreted(self, node: tvm.ir.Call) -> Expr:
        """Bits as another type."""

    def variable(self, var: tvm.ir.Var) -> tvm.ir.Var:
        """The replacement of a variable or buffer."""
        return self.buffers.get(var, var)

    # Common to all formats

    def callbacks(self) -> Callbacks:
        """The rewrite of each kind of node."""
        return (
            (_BINARY, self.binary),
            (tirx.FloatImm, self.number),
            (tvm.ir.Var, self.variable),
            (tvm.ir.TensorLoad, self.load),
            (tirx.Cast, self.cast),
            (tirx.Select, self.select),
            (tirx.Broadcast, self.broadcast),
            (tirx.Shuffle, self.shuffle),
            (tirx.Let, self.let),
            (tvm.ir.Call, self.call),
            (tirx.BufferStore, self.store),
        )

    def binary(self, node: Expr) -> Expr:
        if not any(map(self.is_narrow, (node, node.a, node.b))):
            return node
        return self.rounded(type(node)(self.wide(node.a), self.wide(node.b)), node)

    def load(self, node: Expr) -> Expr:
        if not self.is_narrow(node) or self.is_memory(node.source):
            return node
        return self.again(tirx.BufferLoad(node.source, list(node.indices)), node)

    def select(self, node: tirx.Select) -> Expr:
        if not self.is_narrow(node):
            return node
        sides = self.moved(node.true_value), self.moved(node.false_value)
        return self.again(tirx.Select(node.condition, *sides), node)

    def broadcast(self, node: tirx.Broadcast) -> Expr:
        if not self.is_narrow(node):
            return node
        return self.again(tirx.Broadcast(self.moved(node.value), node.lanes), node)

    def shuffle(self, node: tirx.Shuffle) -> Expr:
        if not self.is_narrow(node):
            return node
        vectors = [self.moved(vector) for vector in node.vectors]
        return self.again(tirx.Shuffle(vectors, list(node.indices)), node)

    def let(self, node: tirx.Let) -> Expr:
        if not self.is_narrow(node):
            return node
        return self.again(tirx.Let(node.var, node.value, self.moved(node.body)), node)

    def call(self, node: tvm.ir.Call) -> Expr:
        match str(getattr(node.op, "name", "")):
            case "tirx.masked_load" as name:
                if not self.is_narrow(node) or self.is_memory(node.args[0]):
                    return node
                return self.again(tirx.call_intrin(like(node, self.kept), name, *node.args), node)
            case "tirx.masked_store" as name:
                buffer, value, *place = node.args
                stored = self.stored(buffer, value)
                if stored.same_as(value):
                    return node
                return tirx.call_intrin("void", name, buffer, stored, *place)
            case "tirx.reinterpret" if isinstance(node.ty, tvm.ir.PrimType):
                return self.reinterpreted(node)
            case "tirx.address_of":  # of an element, which is not read
                return node
            case "prim.if_then_else" if self.is_narrow(node):
                condition, *sides = node.args
                kept = tvm.ir.PrimType(like(node, self.kept))
                args = [condition, *map(self.moved, sides)]
                return self.again(tvm.ir.Call(node.op, args, node.attrs, ret_ty=kept), node)
        if not self.is_narrow(node) and not any(map(self.is_narrow, node.args)):
            return node
        result = tvm.ir.PrimType(like(node, "float32")) if self.is_narrow(node) else node.ty
        called = tvm.ir.Call(node.op, list(map(self.wide, node.args)), node.attrs, ret_ty=result)
        return self.rounded(called, node)

    def store(self, node: tirx.BufferStore) -> Stmt:
        value = self.stored(node.buffer, node.value)
        if value.same_as(node.value):
            return node
        return tirx.BufferStore(node.buffer, value, list(node.indices))
