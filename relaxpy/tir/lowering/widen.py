"""Represent 16-bit floats as float32 outside of memory, for targets without arithmetic on them.

Values are rounded where the program has a cast and where they are stored. Values that are copied from memory to memory
stay unchanged.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from relaxpy.tir.lowering.lanes import like
from relaxpy.tir.lowering.narrow import Callbacks, NarrowRewriter
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

Expr = tvm.ir.Expr
Stmt = tirx.Stmt

_BITS = 16


class Widener(NarrowRewriter):
    """Rewrites nodes after their operands. Only elements in memory still have the narrow format."""

    kept = "float32"
    dtype: ClassVar[str]
    """The narrow format, of 16 bits."""

    @abstractmethod
    def widened(self, bits: Expr) -> Expr:
        """The float32 of the number with these bits."""

    @abstractmethod
    def narrowed(self, value: Expr) -> Expr:
        """Round a float32 to the bits of the nearest number; a widened value gives its original bits."""

    @abstractmethod
    def nearest(self, value: float) -> float:
        """Round to the nearest number of the format."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        super().__init__(func)
        self.names: dict[tvm.ir.Var, tvm.ir.Var] = {}
        """Variables that hold a narrow float, and their float32 replacements."""

        def bind(node: tirx.Let | tirx.Bind) -> None:
            if self.is_narrow(node.value):
                self.names[node.var] = tirx.Var(node.var.name, like(node.value, "float32"))

        tvm_ffi.structural_walk(func.body, ((tirx.Let, tirx.Bind), bind))

    def callbacks(self) -> Callbacks:
        return (*super().callbacks(), (tirx.Bind, self.bind))

    def is_narrow(self, value: Expr) -> bool:
        """Is it a number, or a vector of numbers, of the format?"""
        return isinstance(value.ty, tvm.ir.PrimType) and str(value.ty.dtype).startswith(self.dtype)

    def is_memory(self, buffer: Expr) -> bool:
        return str(buffer.dtype) == self.dtype

    def variable(self, var: tvm.ir.Var) -> tvm.ir.Var:
        return self.names.get(var, super().variable(var))

    def wide(self, value: Expr) -> Expr:
        if not self.is_narrow(value):
            return value
        return self.widened(tirx.reinterpret(like(value, "uint16"), value))

    def rounded(self, value: Expr, node: Expr) -> Expr:
        return value  # where it is stored, or where the program has a cast

    def moved(self, value: Expr) -> Expr:
        return self.wide(value)

    def again(self, value: Expr, node: Expr) -> Expr:
        return value

    def number(self, node: tirx.FloatImm) -> Expr:
        if not self.is_narrow(node):
            return node
        return tirx.FloatImm("float32", self.nearest(float(node.value)))

    def cast(self, node: Expr) -> Expr:
        value = self.wide(node.value)
        if not self.is_narrow(node):
            if str(value.ty.dtype) == str(node.ty.dtype):
                return value
            return node if value.same_as(node.value) else value.astype(str(node.ty.dtype))
        if self.is_narrow(node.value):
            return value
        return self.widened(self.narrowed(value.astype(like(value, "float32"))))

    def let(self, node: tirx.Let) -> Expr:
        var = self.names.get(node.var, node.var)
        if var.same_as(node.var) and not self.is_narrow(node) and not self.is_narrow(node.value):
            return node
        return tirx.Let(var, self.wide(node.value), self.wide(node.body))

    def bind(self, node: tirx.Bind) -> Stmt:
        var = self.names.get(node.var, node.var)
        if var.same_as(node.var) and not self.is_narrow(node.value):
            return node
        return tirx.Bind(var, self.wide(node.value))

    def reinterpreted(self, node: tvm.ir.Call) -> Expr:
        (value,) = node.args
        if self.is_narrow(node):
            return self.widened(value)
        is_half = tvm.DataType(str(node.ty.dtype)).bits == _BITS
        if is_half and str(value.ty.dtype).startswith("float32"):  # not narrow any more
            return tirx.reinterpret(str(node.ty.dtype), self.narrowed(value))
        return node

    def stored(self, buffer: Expr, value: Expr) -> Expr:
        if not self.is_memory(buffer):
            return self.wide(value)
        if self.is_narrow(value):
            return value
        return tirx.reinterpret(like(value, self.dtype), self.narrowed(value))
