"""CausalAttention: masks of attention that compare positions become its causal mask and window."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from relaxpy.analysis.called_operators import calls_operator
from relaxpy.analysis.scope import scope_of
from relaxpy.ir.accessors import expect, tensor_of
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    Expr,
    Function,
    PrimValue,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.op.attention import DenseAttention
from relaxpy.op.binary import Add, BitwiseAnd, LogicalAnd, Multiply, Subtract
from relaxpy.op.compare import Greater, GreaterEqual, Less, LessEqual, NotEqual
from relaxpy.op.create import Arange, Full, Ones
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.intrinsic import ScalarToTensor
from relaxpy.op.manipulate import BroadcastTo, ExpandDims
from relaxpy.op.row_major import Reshape
from relaxpy.op.search import Where
from relaxpy.shape.prove import prove
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_blocks import change_blocks


@dataclass(frozen=True)
class CausalAttention(Pass):
    """Give attention the causal mask, and the window, that its bias says.

    A bias is where(mask, 0, -inf), and its mask a conjunction. A part that compares positions of keys and queries, made
    by `arange`, is left to the kernel, which then reads no mask of all pairs. The rest, such as the padding of each
    sequence, stays a bias of its own shape. A conjunction with another diagonal stays as it is. A large negative number
    in place of -inf leaves some weight where all keys are hidden, which happens only if there is such a rest.

    Before:
        @R.function
        def main(
            x: R.Tensor(("b", "s", 2, 4), "float32"),
            kept: R.Tensor(("b", 1, 1, "s"), "bool"),
        ) -> R.Tensor(("b", "s", 2, 4), "float32"):
            s = T.int64()
            with R.dataflow():
                positions = R.arange(R.prim_value(s))
                queries = R.expand_dims(positions, axis=1)
                before = R.less_equal(positions, queries)
                mask = R.logical_and(before, kept)
                bias = R.where(mask, R.const(0.0, "float32"), R.const(float("-inf"), "float32"))
                y = R.nn.attention(x, x, x, bias)
                R.output(y)
            return y
    After:
        @R.function
        def main(
            x: R.Tensor(("b", "s", 2, 4), "float32"),
            kept: R.Tensor(("b", 1, 1, "s"), "bool"),
        ) -> R.Tensor(("b", "s", 2, 4), "float32"):
            s = T.int64()
            with R.dataflow():
                positions = R.arange(R.prim_value(s))
                queries = R.expand_dims(positions, axis=1)
                before = R.less_equal(positions, queries)
                mask = R.logical_and(before, kept)
                bias = R.where(mask, R.const(0.0, "float32"), R.const(float("-inf"), "float32"))
                bias_rest = R.where(kept, R.const(0.0, "float32"), R.const(float("-inf"), "float32"))
                y = R.nn.attention(x, x, x, bias_rest, causal_mask="TopLeft")
                R.output(y)
            return y
    """

    name: ClassVar[str] = "causal-attention"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("fuse-attention",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        def changed(block: DataflowBlock) -> DataflowBlock:
            return _Masks(block, mod).run()

        def change(_: str, function: Function) -> Function:
            there = calls_operator(function, DenseAttention)
            return change_blocks(function, changed) if there else function

        return mod.map_graph_functions(change)


_HIDDEN = -1e30
"""Scores are lost in a number of this size."""
_QUERIES, _KEYS = 2, 1
"""The axes of scores, (batch, heads, queries, keys), from the end."""


@dataclass(frozen=True)
class _Positions:
    """The indices of one axis, plus an offset."""

    axis: int
    """From the end, 1 for the last."""
    offset: Dim


@dataclass(frozen=True)
class _Bound:
    """A relation of the index of a key to that of a query plus `offset`."""

    is_upper: bool
    """key <= query + offset; or key > query + offset."""
    offset: Dim


@dataclass(frozen=True)
class _Split:
    """The positions that a bias lets attention see."""

    causal_mask: str
    window_size: int | None
    bias: Expr | None
    """The rest of the bias."""


class _Masks:
    """Rewrites one block."""

    def __init__(self, block: DataflowBlock, mod: IRModule) -> None:
        self.block, self.mod = block, mod
        self.scope = scope_of(block, mod)
        self.new: list[Binding] = []
        self.splits: dict[tuple[Expr, Dim, Dim], _Split | None] = {}
        """By bias, and numbers of queries and keys: layers share their mask."""

    def run(self) -> DataflowBlock:
        bindings = [self.binding(binding) for binding in self.block.bindings]
        if all(new is old for new, old in zip(bindings, self.block.bindings, strict=True)):
            return self.block
        return replace(self.block, bindings=tuple(self.new))

    def binding(self, binding: Binding) -> Binding:
        """Add a binding, with what it needs before it."""
        match binding:
            case VarBinding(value=Call(op=DenseAttention(causal_mask=None) as op) as call) if (
                len(call.args) == 4 and (split := self.split(call)) is not None
            ):
                op = replace(op, causal_mask=split.causal_mask, window_size=split.window_size)
                rest = () if split.bias is None else (split.bias,)
                call = replace(call, op=op, args=(*call.args[:3], *rest))
                binding = dataclasses.replace(binding, value=call)
            case _:
                pass
        self.new.append(binding)
        return binding

    def split(self, call: Call) -> _Split | None:
        query, key, _, bias = call.args
        queries, keys = (_length(x) for x in (query, key))
        if queries is None or keys is None:
            return None
        at = bias, queries, keys
        if at not in self.splits:
            self.splits[at] = self.found(bias, queries, keys)
        return self.splits[at]

    def found(self, bias: Expr, queries: Dim, keys: Dim) -> _Split | None:
        """The positions that the bias lets attention see; None if it depends on none."""
        value, way = self.scope.value(self.unbroadcast(bias))
        match value:
            case Call(op=Where(), args=(mask, zero, least)) if self.number(zero) == 0:
                number = self.number(least)
                parts = [(part, self.bound(part, queries, keys)) for part in self.parts(mask)]
            case _:
                return None
        bounds = [bound for _, bound in parts if bound is not None]
        upper = {bound.offset for bound in bounds if bound.is_upper}
        lower = {bound.offset for bound in bounds if not bound.is_upper}
        if len(upper) != 1 or len(lower) > 1:
            return None
        (diagonal,) = upper
        behind = keys - queries
        if diagonal == 0:
            causal = "TopLeft"
        elif diagonal == behind and prove(dim_op("le", 0, behind)):
            causal = "BottomRight"
        else:
            return None
        window = (diagonal - lower.pop()).value if lower else None
        if len(bounds) > len(upper) and (window is None or window <= 0):
            return None
        rest = [part for part, bound in parts if bound is None]
        if number is None or number > (-math.inf if rest else _HIDDEN):
            return None
        name = way[0].name if way else "mask"
        return _Split(causal, window, self.bias_of(rest, zero, least, f"{name}_rest"))

    def bias_of(self, parts: list[Expr], zero: Expr, least: Expr, name: str) -> Expr | None:
        if not parts:
            return None
        mask = parts[0]
        for part in parts[1:]:
            mask = self.bind(name, LogicalAnd()(mask, part))
        missing = 4 - _ndim(mask)
        if missing:
            mask = self.bind(name, ExpandDims(tuple(range(missing)))(mask))
        return self.bind(name, Where()(mask, zero, least))

    def bind(self, name: str, value: Call) -> Var:
        var = DataflowVar(name, deduce(value, self.mod))
        self.new.append(VarBinding(var, value))
        return var

    # What values are

    def value(self, expr: Expr) -> Expr:
        return self.scope.value(expr)[0]

    def unbroadcast(self, x: Expr) -> Expr:
        """The value that is broadcast to this one."""
        match self.value(x):
            case Call(op=BroadcastTo(), args=(inner, _)):
                return self.unbroadcast(inner)
            case Call(op=ExpandDims() as op, args=(inner,)) if _is_leading(op, inner):
                return self.unbroadcast(inner)
            case Call(op=Reshape(), args=(Var() as inner, _)) if _without_leading(
                inner
            ) == _without_leading(x):
                return self.unbroadcast(inner)
            case _:
                return x

    def parts(self, mask: Expr) -> Iterator[Expr]:
        """The parts of a conjunction that are not always true."""
        mask = self.unbroadcast(mask)
        match self.value(mask):
            case Call(op=LogicalAnd() | BitwiseAnd(), args=(a, b)):
                yield from self.parts(a)
                yield from self.parts(b)
            case Call(op=NotEqual(), args=(Var() as number, zero)) if (
                self.number(zero) == 0 and (inner := self.converted(number)) is not None
            ):
                yield from self.parts(inner)
            case Call(op=ExpandDims() as op, args=(inner,)) if max(op.places(_ndim(mask))) < _ndim(
                mask
            ) - _QUERIES and all(self.bound(each, *_dims(mask)[-2:]) for each in self.parts(inner)):
                yield from self.parts(inner)
            case Call(op=Where(), args=(condition, yes, no)) if (
                self.number(self.unbroadcast(yes)) == 1 and self.number(self.unbroadcast(no)) == 0
            ):
                yield from self.parts(condition)
            case Call(op=Ones()):
                pass
            case value if self.number(value) == 1:
                pass
            case _:
                yield mask

    def converted(self, number: Var) -> Var | None:
        """The bools that numbers were."""
        match self.value(number):
            case Call(op=Astype(), args=(Var(annotation=TensorType(dtype="bool")) as flags,)):
                return flags
            case _:
                return None

    def bound(self, part: Expr, queries: Dim, keys: Dim) -> _Bound | None:
        """The relation of keys to queries that a part is."""
        if _dims(part)[-2:] != (queries, keys):
            return None
        match self.value(part):
            case Call(op=LessEqual() | Less() | GreaterEqual() | Greater() as op, args=(a, b)):
                left, right = self.positions(a), self.positions(b)
            case _:
                return None
        if left is None or right is None or {left.axis, right.axis} != {_QUERIES, _KEYS}:
            return None
        # key (relation) query + offset, as an upper bound that is taken, or a lower one that is not
        is_upper = isinstance(op, (LessEqual, Less)) == (left.axis == _KEYS)
        offset = (right.offset - left.offset) * (1 if left.axis == _KEYS else -1)
        is_strict = isinstance(op, (Less, Greater))
        return _Bound(is_upper, offset - int(is_strict == is_upper))

    def positions(self, expr: Expr) -> _Positions | None:
        """The axis whose indices these are, broadcast along the others."""
        match self.value(expr):
            case Call(op=Arange(), args=args):
                numbers = [self.size(arg) for arg in args]
                start = Dim.of(0) if len(args) == 1 else numbers[0]
                if start is None or (len(args) == 3 and numbers[2] != 1):
                    return None
                return _Positions(1, start)
            case Call(op=ExpandDims() as op, args=(x,)):
                found = self.positions(x)
                if found is None:
                    return None
                ndim = _ndim(x)
                places = op.places(ndim + len([op.axis] if isinstance(op.axis, int) else op.axis))
                kept = [i for i in range(ndim + len(places)) if i not in places]
                return replace(found, axis=ndim + len(places) - kept[ndim - found.axis])
            case Call(op=Astype(dtype=dtype), args=(x,)) if dtype in ("int64", "int32"):
                return self.positions(x)
            case Call(op=BroadcastTo(), args=(x, _)):
                found = self.positions(x)
                if found is None or _dims(x)[-found.axis] != _dims(expr)[-found.axis]:
                    return None
                return found
            case Call(op=Multiply(), args=(a, b)):
                first, second = self.size(a), self.size(b)
                return self.positions(b if first == 1 else a) if 1 in (first, second) else None
            case Call(op=Add() | Subtract() as op, args=(a, b)):
                found, other = self.positions(a), self.size(b)
                if found is None and isinstance(op, Add):
                    found, other = self.positions(b), self.size(a)
                if found is None or other is None:
                    return None
                by = other if isinstance(op, Add) else -other
                return replace(found, offset=found.offset + by)
            case _:
                return None

    def size(self, expr: Expr) -> Dim | None:
        """The value of a whole number, known or symbolic, that is a scalar or broadcast."""
        match self.value(expr):
            case PrimValue(value=Dim() as value):
                return value
            case PrimValue(value=int() as value):
                return Dim.of(value)
            case Call(op=ScalarToTensor() | BroadcastTo(), args=(x, *_)):
                return self.size(x)
            case Call(op=Full(), args=(_, x)):
                return self.size(x)
            case value:
                number = self.number(value)
                return Dim.of(int(number)) if number is not None and number % 1 == 0 else None

    def number(self, expr: Expr) -> float | None:
        """The value of a known number, that of all elements of a tensor of one element."""
        match self.value(expr):
            case Constant(data=data) if data.size == 1:
                return float(np.asarray(data).reshape(()))
            case Call(op=Full(), args=(_, x)):
                return self.number(x)
            case _:
                return None


def _is_leading(op: ExpandDims, x: Expr) -> bool:
    """Are the new axes the first ones, so that broadcasting makes them anyway?"""
    count = 1 if isinstance(op.axis, int) else len(op.axis)
    return op.places(_ndim(x) + count) == list(range(count))


def _without_leading(x: Expr) -> tuple[Dim, ...]:
    """The sizes from the first on that is not 1."""
    dims = _dims(x)
    return dims[next((i for i, size in enumerate(dims) if size != 1), len(dims)) :]


def _length(x: Expr) -> Dim | None:
    dims = _dims(x)
    return dims[1] if len(dims) == 4 else None


def _dims(x: Expr) -> tuple[Dim, ...]:
    """The sizes, or none if they are unknown."""
    found = x.annotation if isinstance(x, Var) else None
    return (found.dims or ()) if isinstance(found, TensorType) else ()


def _ndim(x: Expr) -> int:
    if isinstance(x, Constant):
        return x.data.ndim
    x = expect(Var, x)
    return tensor_of(x).ndim
