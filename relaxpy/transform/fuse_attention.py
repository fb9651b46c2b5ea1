"""FuseAttention: replace attention written out as matmul, softmax and matmul by one call of `nn.attention`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from relaxpy.analysis.dataflow_match import Match
from relaxpy.analysis.pattern_regions import PatternRegions, PatternReport
from relaxpy.analysis.scope import scope_of
from relaxpy.ir.accessors import expect, known_dims, known_dtype
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    Expr,
    PrimValue,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.pattern import Pattern, is_op, wildcard
from relaxpy.ir.visitor import UsedVars
from relaxpy.op.attention import Attention
from relaxpy.op.binary import Divide, Multiply
from relaxpy.op.create import Full
from relaxpy.op.deduce import deduce
from relaxpy.op.manipulate import BroadcastTo, ExpandDims, PermuteDims
from relaxpy.op.repetition import Repeat
from relaxpy.op.row_major import Reshape
from relaxpy.op.search import Where
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_blocks import change_blocks


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Replace matmul(softmax(matmul(query, key) * scale + bias), value) by `nn.attention`, whose kernel never stores
    the scores (the special fusion before FuseOps, paper §4.2).

    Queries and values are (batch, heads, length, width); keys are transposed, (batch, heads, width, length).
    Permutations between these layouts, and repetitions of key heads that several query heads share (by `repeat`, or by
    expand_dims, broadcast_to and reshape), are removed: the kernel reads the original layout. So are repetitions before
    calls of `nn.attention` that the program has. The scale may be a factor or a divisor, of scores or of queries. The
    bias may be anything that broadcasts to the scores. Conversions around the softmax (to float32 and back) are
    removed, since attention computes in float32 anyway.

    Results are equal up to rounding, with one exception: a query whose scores are all minus infinity gets 0, where
    softmax divides 0 by 0. The numbers of heads and the widths must be known, and the dtype a float of at most 32 bits.

    Before:
        @R.function
        def main(
            x: R.Tensor(("b", "s", 12, 32), "float32"),
            y: R.Tensor(("b", "t", 12, 32), "float32"),
            mask: R.Tensor(("b", 1, 1, "t"), "float32"),
        ) -> R.Tensor(("b", "s", 12, 32), "float32"):
            with R.dataflow():
                q = R.permute_dims(x, (0, 2, 1, 3))
                k = R.permute_dims(y, (0, 2, 3, 1))
                v = R.permute_dims(y, (0, 2, 1, 3))
                products = R.matmul(q, k)
                scaled = R.multiply(products, R.const(0.25, "float32"))
                scores = R.add(scaled, mask)
                weights = R.nn.softmax(scores, axis=-1)
                mixed = R.matmul(weights, v)
                together = R.permute_dims(mixed, (0, 2, 1, 3))
                R.output(together)
            return together
    After:
        @R.function
        def main(
            x: R.Tensor(("b", "s", 12, 32), "float32"),
            y: R.Tensor(("b", "t", 12, 32), "float32"),
            mask: R.Tensor(("b", 1, 1, "t"), "float32"),
        ) -> R.Tensor(("b", "s", 12, 32), "float32"):
            with R.dataflow():
                together = R.nn.attention(x, y, y, mask, scale=0.25)
                R.output(together)
            return together
    """

    name: ClassVar[str] = "fuse-attention"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("convert-to-dataflow",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        def fused(block: DataflowBlock) -> DataflowBlock:
            return _Fuser(block, mod).run()

        return mod.map_graph_functions(lambda _, function: change_blocks(function, fused))


HEADS_LAST = (0, 2, 1, 3)
"""The permutation from (batch, heads, length, width) to the layout of `nn.attention`, and back."""
KEY_LAST = (0, 3, 1, 2)
"""The permutation from (batch, heads, width, length) to the layout of `nn.attention`."""
_HEADS = 2
"""The axis of the heads in the layout of `nn.attention`."""
_DTYPES = ("float32", "float16", "bfloat16")
_LARGEST = float(np.finfo(np.float32).max)
"""The largest scale: scores are float32."""
_HIDDEN = -1e30
"""Scores are lost in a number of this size."""


def _or_converted(value: Pattern) -> Pattern:
    return is_op("astype")(value) | value


def _is_last(axis: int) -> bool:
    """Is it the last axis of scores?"""
    return axis in (-1, 3)


QUERY, KEY, VALUE, BIAS, FACTOR, DIVISOR, MASK, LEAST = (wildcard() for _ in range(8))
_products = is_op("matmul")(QUERY, KEY)
_scaled = (
    is_op("multiply")(_products, FACTOR, any_order=True)
    | is_op("divide")(_products, DIVISOR)
    | _products
)
_masked = is_op("where")(MASK, _or_converted(_scaled), LEAST)
_scores = is_op("add")(_scaled, BIAS, any_order=True) | _masked | _scaled
_weights = is_op("nn.softmax")(_or_converted(_scores)).has_attr(axis=_is_last)
ATTENTION = is_op("matmul")(_or_converted(_weights), VALUE)
"""The result of attention, with the heads axis before the length axis."""


@dataclass(frozen=True)
class _Source:
    """A value derived from another by permuting its axes and repeating its heads."""

    value: Expr
    order: tuple[int, ...]
    """For each axis of attention, the axis of `value`."""
    repeats: int = 1


@dataclass(frozen=True)
class _Repeated:
    """A value each of whose slices along an axis is repeated."""

    value: Expr
    axis: int
    repeats: int
    between: tuple[Var, ...]
    """The variables between the result and the value."""


class _Fuser:
    """Rewrites one block."""

    def __init__(self, block: DataflowBlock, mod: IRModule) -> None:
        self.block, self.mod = block, mod
        self.scope = scope_of(block, mod)
        self.new: list[Binding] = []
        self.passed: set[Var] = set()
        """Variables between the values that attention reads now and those that it read before."""

    def run(self) -> DataflowBlock:
        found = PatternRegions(self.scope, self.mod)
        gone: set[int] = set()
        roots: dict[Var, Match] = {}
        for region in found.claim(ATTENTION, self.refusal, PatternReport("attention")):
            gone |= region.members
            root = expect(Var, region.match.roots[0])
            roots[root] = region.match
        for i, binding in enumerate(self.block.bindings):
            if binding.var in roots:
                gone |= self.attention(binding.var, roots[binding.var])
            elif i not in gone:
                self.new.append(self.with_shared_heads(binding))
        if not roots and not self.passed:
            return self.block
        return dataclasses.replace(self.block, bindings=self.without_passed())

    def refusal(self, match: Match) -> str:
        """The reason why a match is not attention; empty if it is."""
        types = [match.annotation(p) for p in (QUERY, KEY, VALUE, ATTENTION, _products)]
        if any(not isinstance(t, TensorType) or t.dims is None or t.ndim != 4 for t in types):
            return "query, key and value are not known to have four dimensions"
        query, key, value, result, products = (known_dims(t) for t in types)
        dtypes = {t.dtype for t in types[:4] if isinstance(t, TensorType)}
        if len(dtypes) != 1 or str(dtypes.pop()) not in _DTYPES:
            return "query, key and value do not have one dtype of at most 32 bits"
        if any(d.value is None for d in (query[1], key[1], query[3], value[3])):
            return "the number of heads or the head size is unknown"
        if value[3] == 1:
            return "the head size of the values is 1"
        if not _equal((query[0], key[1], key[3]), (key[0], value[1], value[2])):
            return "keys and values differ in batch, heads or length"
        if not _equal((query[0], *query[:2]), (value[0], *result[:2])) or not _equal(
            query[:2], products[:2]
        ):
            return "heads are broadcast"
        if query[1].value and query[1].value % max(key[1].value or 1, 1):
            return "heads cannot be divided among those of the keys"
        if _scale(match) is None:
            return "the scale is not a scalar"
        if MASK in match and self.hidden(match, types[0].dtype) is None:  # type: ignore[union-attr]
            return "what the mask leaves is not a large negative number"
        for pattern in (BIAS, MASK):
            if pattern not in match:
                continue
            found = match.annotation(pattern)
            if not isinstance(found, TensorType) or found.dims is None or found.ndim > 4:
                return "the bias has no known shape of up to four dimensions"
            if pattern is BIAS and found.dtype != types[0].dtype:  # type: ignore[union-attr]
                return "the bias has another dtype"
            if not all(
                size == 1 or equal(size, wanted) is Verdict.YES
                for size, wanted in zip(found.dims[::-1], products[::-1], strict=False)
            ):
                return "the bias is larger than the scores"
        return ""

    def attention(self, root: Var, match: Match) -> set[int]:
        """Emit the call for a match. Returns the positions of further bindings that it replaces."""
        span = match.bindings[-1].span
        query = self.source(match[QUERY], HEADS_LAST)
        key, value = (
            self.source(match[p], order) for p, order in ((KEY, KEY_LAST), (VALUE, HEADS_LAST))
        )
        scale = _scale(match)
        assert scale is not None, "as `refusal` checked"
        query, scale = self.unscaled(f"{root.name}_unscaled", query, scale)
        shared = [self.shared(source) for source in (key, value)]
        if shared[0].repeats == shared[1].repeats:
            key, value = shared
        args = [
            self.emit(f"{root.name}_{name}", source)
            for name, source in (("query", query), ("key", key), ("value", value))
        ]
        bias = self.mask(root.name, match) if MASK in match else match.get(BIAS)
        if bias is not None:
            missing = 4 - len(known_dims(deduce(bias, self.mod)))
            if missing:
                bias = self.bind(f"{root.name}_bias", ExpandDims(tuple(range(missing)))(bias))
            args.append(bias)
        call = Attention(scale=scale)(*args, span=span)
        behind = self.only_moved_back(root)
        if behind is not None:
            self.new.append(VarBinding(self.block.bindings[behind].var, call, span=span))
            return {behind}
        mixed = self.bind(f"{root.name}_mixed", call)
        self.new.append(VarBinding(root, PermuteDims(HEADS_LAST)(mixed, span=span), span=span))
        return set()

    def hidden(self, match: Match, dtype: DType) -> float | None:
        """The value that replaces masked scores, as a bias of this dtype; None if scores would not be lost in it."""
        least = match[LEAST]
        while isinstance(least, Var):
            match self.scope.values.get(least):
                case Call(op=BroadcastTo() | Reshape(), args=(inner, _)):
                    least = inner
                case Call(op=Full(), args=(_, inner)):
                    least = inner
                case _:
                    return None
        number = _number(least)
        largest = -math.inf if dtype == "float16" else _HIDDEN
        return number if number is not None and number <= largest else None

    def mask(self, name: str, match: Match) -> Var:
        """The mask of a match as a bias."""
        dtype = known_dtype(match.annotation(QUERY))
        mask, least = match[MASK], self.hidden(match, dtype)
        match self.scope.value(mask)[0]:
            case Call(op=BroadcastTo(), args=(inner, _)) if (
                len(known_dims(deduce(inner, self.mod))) == 4
            ):
                mask = inner
            case _:
                pass
        zero, hidden = (Constant(np.array(x, dtype.numpy)) for x in (0, least))
        return self.bind(f"{name}_bias", Where()(mask, zero, hidden))

    def with_shared_heads(self, binding: Binding) -> Binding:
        """A call of attention without the repetition of its key heads."""
        match binding:
            case VarBinding(value=Call(op=Attention(), args=(query, key, value, *rest)) as call):
                passed = set(self.passed)
                heads = [self.shared(self.source(each, (0, 1, 2, 3))) for each in (key, value)]
                repeats = {source.repeats for source in heads}
                if len(repeats) == 1 and repeats != {1}:
                    found = [
                        self.emit(f"{binding.var.name}_{name}", source)
                        for name, source in zip(("key", "value"), heads, strict=True)
                    ]
                    call = dataclasses.replace(call, args=(query, *found, *rest))
                    return dataclasses.replace(binding, value=call)
                self.passed = passed
            case _:
                pass
        return binding

    def only_moved_back(self, root: Var) -> int | None:
        """The position of the only use of a result, if it moves the length axis before the heads axis."""
        at = self.scope.position[root]
        if self.scope.escapes[at] or len(self.scope.users[at]) != 1:
            return None
        (user,) = self.scope.users[at]
        binding = self.block.bindings[user]
        match getattr(binding, "value", None):
            case Call(op=PermuteDims() as op, args=(moved,)) if moved is root:
                return user if op.order(4) == HEADS_LAST else None
            case _:
                return None

    def source(self, value: Expr, order: tuple[int, ...]) -> _Source:
        """The source of a value, with permutations undone."""
        while isinstance(value, Var):
            match self.scope.values.get(value):
                case Call(op=PermuteDims() as op, args=(inner,)):
                    axes = op.order(4)
                    order = tuple(axes[i] for i in order)
                case Var() as inner:
                    pass
                case _:
                    break
            self.passed.add(value)
            value = inner
        return _Source(value, order)

    def unscaled(self, name: str, source: _Source, scale: float) -> tuple[_Source, float]:
        """The source of queries without a number that they are multiplied or divided by, perhaps before their heads are
        split, and the scale of scores times that factor."""
        shape: tuple[Expr, ...] = ()
        value, between = source.value, list[Var]()
        while isinstance(value, Var):
            between.append(value)
            match self.scope.values.get(value):
                case Call(op=Reshape(), args=(inner, *rest)) if not shape:
                    value, shape = inner, tuple(rest)
                case Var() as inner:
                    value = inner
                case Call(op=Multiply() | Divide() as op, args=(x, by)):
                    if isinstance(op, Multiply) and _number(by) is None:
                        x, by = by, x
                    factor = _factor(by, divides=isinstance(op, Divide))
                    if factor is None or abs(scale * factor) > _LARGEST:
                        break
                    self.passed.update(between)
                    found = self.bind(name, Reshape()(x, *shape)) if shape else x
                    return self.source(found, source.order), scale * factor
                case _:
                    break
        return source, scale

    def shared(self, source: _Source) -> _Source:
        """The source without a repetition of neighbouring heads."""
        found = self.repeated(source.value)
        if found is None or source.order[_HEADS] != found.axis:
            return source
        self.passed.update(found.between)
        return dataclasses.replace(self.source(found.value, source.order), repeats=found.repeats)

    def repeated(self, value: Expr) -> _Repeated | None:
        """The value that this one repeats along an axis: by `repeat`, or by a new axis that is broadcast and merged."""
        if not isinstance(value, Var):
            return None
        match self.scope.values.get(value):
            case Call(op=Repeat(axis=int() as axis, repeats=repeats), args=(inner,)):
                return _Repeated(inner, axis % 4, repeats, (value,)) if repeats > 0 else None
            case Call(op=Reshape(), args=(Var() as wide, _)):
                pass
            case _:
                return None
        match self.scope.values.get(wide):
            case Call(op=BroadcastTo(), args=(Var() as narrow, _)):
                pass
            case _:
                return None
        match self.scope.values.get(narrow):
            case Call(op=ExpandDims() as op, args=(inner,)) if len(op.places(5)) == 1:
                (axis,) = op.places(5)
            case _:
                return None
        before, after, merged = (known_dims(x.annotation) for x in (narrow, wide, value))
        repeats = after[axis].value if len(after) == 5 else None
        if not repeats or axis == 0 or len(before) != 5 or len(merged) != 4:
            return None
        same = [size for i, size in enumerate(after) if i != axis]
        whole = [size * repeats if i == axis - 1 else size for i, size in enumerate(same)]
        if not _equal(same, [s for i, s in enumerate(before) if i != axis]) or not _equal(
            merged, whole
        ):
            return None
        return _Repeated(inner, axis - 1, repeats, (value, wide, narrow))

    def emit(self, name: str, source: _Source) -> Expr:
        """Emit the value in the layout of `nn.attention`."""
        if source.order == tuple(range(4)):
            return source.value
        return self.bind(name, PermuteDims(source.order)(source.value))

    def bind(self, name: str, value: Call) -> Var:
        var = DataflowVar(name, deduce(value, self.mod), span=value.span)
        self.new.append(VarBinding(var, value, span=value.span))
        return var

    def without_passed(self) -> tuple[Binding, ...]:
        """The new bindings without the permutations that only attention used."""
        used, users = UsedVars(), dict[Var, int]()
        for binding in self.new:
            for var in used(binding.value):
                users[var] = users.get(var, 0) + 1
        kept: list[Binding] = []
        for binding in reversed(self.new):
            var = binding.var
            if var in self.passed and isinstance(var, DataflowVar) and not users.get(var):
                for inner in used(binding.value):
                    users[inner] -= 1
            else:
                kept.append(binding)
        return tuple(reversed(kept))


def _equal(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    return all(equal(x, y) is Verdict.YES for x, y in zip(a, b, strict=True))


def _scale(match: Match) -> float | None:
    """The factor of the products; None if it is not a single number."""
    factor, divisor = match.get(FACTOR), match.get(DIVISOR)
    if factor is None and divisor is None:
        return 1.0
    return _factor(factor if divisor is None else divisor, divides=divisor is not None)


def _factor(expr: Expr | None, *, divides: bool) -> float | None:
    """The factor that a number is, or its inverse; None of expressions, and of what float32 does not hold."""
    number = _number(expr)
    if number is None or (divides and number == 0):
        return None
    factor = 1 / number if divides else number
    return factor if abs(factor) <= _LARGEST else None  # nor a NaN


def _number(expr: Expr | None) -> float | None:
    match expr:
        case Constant(data=data) if data.ndim == 0:
            return float(np.asarray(data))
        case PrimValue(value=float() | int() as value):
            return float(value)
        case _:
            return None
