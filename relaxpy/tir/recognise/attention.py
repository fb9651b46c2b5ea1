"""Recognise attention, softmax(mask(f(query · key))) · value, and the memory layout of each operand.

The program that `R.nn.attention` is legalised to has a stage for every step of the formula (products, largest score,
powers, their totals, weighted sums, quotients). Every stage must be the one that the formula has, to the last
operation: what is recognised may be computed in one pass over the keys, with sums that are rescaled as larger scores
turn up (online softmax: Milakov and Gimelshein, 2018; Dao et al., FlashAttention, 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from relaxpy.tir.numerics import scalar
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, int64
from relaxpy.tir.recognise.contraction import Operand, places_behind, read_operand
from relaxpy.tir.recognise.stages import (
    Load,
    Stage,
    Var,
    is_output,
    loads_of,
    map_loads,
    stages_of,
    substitute,
    uses,
)
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import walk


@dataclass(frozen=True, eq=False)
class Axes:
    """The loops of attention, and their extents. A loop of extent 1 is the number 0."""

    batch: Expr
    head: Expr
    row: Expr
    """The rows of queries."""
    key: Expr
    depth: Expr
    """The depth, along a query and a key."""
    column: Expr
    """The columns of a value and of the result."""
    extents: Mapping[str, Expr]
    """The extents of the loops, by these names."""


@dataclass(frozen=True, eq=False)
class Interval:
    """The keys that a query sees: from `low` up to, not including, `high`, as expressions over batch, head and row."""

    low: Expr
    high: Expr


@dataclass(frozen=True, eq=False)
class AttentionForm:
    """`out[b, i, h, c] = sum_j p[b, h, i, j] * value[b, j, h, c]` where p is the softmax over seen keys j of
    `score(sum_d query[b, i, h, d] * key[b, j, h, d])`; 0 where the powers' total is 0."""

    axes: Axes
    query: Operand
    key: Operand
    value: Operand
    out: Operand
    """The memory accesses. Their strides are along batch, head, row, key, depth, column, in this order; an axis without
    a fixed stride is part of the base."""
    dtype: str
    """The dtype of the three factors; scores and sums are float32."""
    score: Expr
    """A score before the mask, over the axes and `product`."""
    product: Expr
    """The float32 variable for the product of a query and a key in `score`."""
    seen: Interval | None
    """The mask; None: every query sees all keys."""
    result: Expr
    """The stored expression, over the axes and `quotient`."""
    quotient: Expr
    """The float32 variable for an element of the result in `result`."""

    @property
    def depth(self) -> int:
        """Width of a query and of a key."""
        return _known(self.axes.extents["depth"])

    @property
    def columns(self) -> int:
        """Width of a value and of a result."""
        return _known(self.axes.extents["column"])

    @property
    def is_rounded(self) -> bool:
        """Are results rounded to the dtype of the factors? If not, as where these are widened before attention, kernels
        must not round powers to it either."""
        found: list[tirx.Cast] = []

        def note(cast: tirx.Cast) -> None:
            if str(cast.ty.dtype) == self.dtype and uses(cast.value, self.quotient):
                found.append(cast)

        walk(self.result, (tirx.Cast, note))
        return self.dtype == "float32" or bool(found)

    def place(self, **values: Expr) -> dict[Expr, Expr]:
        """The values of axes, given by name, as far as they are loops."""
        named = [(getattr(self.axes, name), value) for name, value in values.items()]
        return {axis: value for axis, value in named if _is_var(axis)}

    def stride(self, operand: Operand, axis: str) -> Expr:
        """The stride of an operand along an axis; 0 where it has none."""
        stride = operand.strides[ORDER.index(axis)]
        return int64(0) if stride is None else stride

    def offset(self, operand: Operand, place: Mapping[Expr, Expr]) -> Expr:
        """The offset of an operand's element in its buffer, at a place that has all axes of its base."""
        offset = substitute(operand.base, place)
        for name in ORDER:
            axis = getattr(self.axes, name)
            if _is_var(axis) and axis in place:
                offset = offset + place[axis] * self.stride(operand, name)
        return loops.simplify(offset)

    def alignment(self, operand: Operand) -> int:
        """The largest number that divides the offset of the first number of each query, key, value or result; 0 if they
        all begin at 0."""
        start = self.offset(
            operand, self.place(**{name: getattr(self.axes, name) for name in ORDER[:4]})
        )
        found = tvm.sym.Analyzer().modular_set(start)
        return gcd(found.coeff, found.base)


ORDER = ("batch", "head", "row", "key", "depth", "column")
_DTYPES = ("float32", "float16", "bfloat16")
_STAGES = 6
_LOWEST = -3.4028234663852886e38


def attention_of(func: PrimFunc) -> AttentionForm | None:
    """Recognise a program as attention in float32 (of float32 or narrower floats) whose mask is an interval of keys,
    and whose head sizes are known; None for other programs."""
    stages = stages_of(func)
    if stages is None:
        return None
    if len(stages) != _STAGES:
        return None
    return _Reader(func, stages).read()


ALIGNED = 16
"""Elements, of which any multiple is as good a place as another."""


def is_as_efficient(new: AttentionForm, old: AttentionForm) -> bool:
    """Does the same attention in another layout take no longer? Each operand has strides along the same axes, is as
    contiguous along its width, and aligned to as many elements; scores and results are the same expressions. The dtype
    is the same, too: kernels round the powers to that of the factors."""
    return (
        new.dtype == old.dtype
        and all(
            tvm_ffi.structural_equal(getattr(new, part), getattr(old, part), map_free_vars=True)
            for part in ("score", "result")
        )
        and all(
            _is_accessed_as_well(new, old, name, width)
            for name, width in (
                ("query", "depth"),
                ("key", "depth"),
                ("value", "column"),
                ("out", "column"),
            )
        )
    )


def _is_accessed_as_well(new: AttentionForm, old: AttentionForm, name: str, width: str) -> bool:
    operand, previous = getattr(new, name), getattr(old, name)
    axes, previous_axes = (
        [stride is not None for stride in each.strides] for each in (operand, previous)
    )
    stride = loops.constant(new.stride(operand, width))
    multiple, previous_multiple = new.alignment(operand), old.alignment(previous)
    return (
        axes == previous_axes
        and stride in (1, loops.constant(old.stride(previous, width)))
        and (multiple % ALIGNED == 0 or multiple == previous_multiple)
    )


def heads_of_a_key(form: AttentionForm, together: int = 1) -> int:
    """The number of neighbouring heads that share a key head, if it is known; else 1. Where all heads share one, at
    most `together` of them count."""
    head, heads = form.axes.head, loops.constant(form.axes.extents["head"])
    if heads is None or not isinstance(head, Var):
        return 1
    found: list[int] = []

    def division(node: tirx.FloorDiv) -> None:
        divisor = loops.constant(node.b)
        if node.a.same_as(head) and divisor is not None:
            found.append(divisor)

    tvm_ffi.structural_walk(form.key.base, (tirx.FloorDiv, division))
    for size in (*found, *range(min(heads, together), 1, -1)):
        shared = all(_is_shared(operand, head, size) for operand in (form.key, form.value))
        if size > 1 and heads % size == 0 and shared:
            return size
    return 1


class _Reader:
    """Reads the six stages, all over the same variables."""

    def __init__(self, func: PrimFunc, stages: Sequence[Stage]) -> None:
        self.func = func
        self.products, self.largest, self.powers, self.totals, self.sums, self.last = stages

    def read(self) -> AttentionForm | None:
        """The form, if each stage matches."""
        kinds = ("add", "max", None, "add", "add", None)
        stages = (self.products, self.largest, self.powers, self.totals, self.sums, self.last)
        ranks = (4, 3, 4, 3, 4, None)
        for stage, kind, rank in zip(stages, kinds, ranks, strict=True):
            if (stage.combiner and stage.combiner.kind) != kind:
                return None
            if rank is not None and (
                len(stage.index) != rank or str(stage.buffer.dtype) != "float32"
            ):
                return None
            if len(stage.reduce_axes) != (kind is not None):
                return None
            if is_output(stage, self.func) != (stage is self.last):
                return None
        if not self._begins_as_it_should():
            return None
        self.axes = axes = self._axes()
        scores = self._scores()
        if scores is None:
            return None
        score, product, seen, condition = scores
        values = self._values(condition)
        stored = self._stored()
        if values is None or stored is None:
            return None
        factors = self._factors(self.products, axes.row, axes.key)
        if factors is None:
            return None
        query, key = factors
        result, quotient, place = stored
        dtypes = {str(load.source.dtype) for load in (query, key, values)}
        if len(dtypes) != 1 or not dtypes <= set(_DTYPES):
            return None
        operands = [
            self._operand(buffer, indices)
            for buffer, indices in (
                *((load.source, load.indices) for load in (query, key, values)),
                (self.last.buffer, place),
            )
        ]
        depths = (axes.extents["depth"], axes.extents["column"])
        if any(operand is None for operand in operands) or None in map(loops.constant, depths):
            return None
        if any(
            operand.buffer.same_as(self.last.buffer) for operand in operands[:3]
        ):  # computed in place: the value read may have been overwritten
            return None
        return AttentionForm(axes, *operands, dtypes.pop(), score, product, seen, result, quotient)

    def _begins_as_it_should(self) -> bool:
        """Does each reduction have the right initial value? Sums start from 0, the maximum from the lowest finite
        number, so that a row of minus infinities has exponentials of 0."""
        starts = (
            (self.products, 0.0), (self.largest, _LOWEST), (self.totals, 0.0), (self.sums, 0.0),
        )  # fmt: skip
        return all(
            stage.combiner is not None
            and isinstance(stage.combiner.init, tirx.FloatImm)
            and stage.combiner.init.value == value
            for stage, value in starts
        )

    def _axes(self) -> Axes:
        (depth,) = self.products.reduce_extents
        shape = [*self.products.buffer.shape, depth, self.sums.buffer.shape[3]]
        extents = dict(zip(ORDER, map(int64, shape), strict=True))
        made = {
            name: int64(0) if loops.constant(extent) == 1 else tirx.Var(name, "int64")
            for name, extent in extents.items()
        }
        return Axes(**made, extents=extents)

    def _over(
        self, stage: Stage, places: Sequence[Expr], reduced: Expr | None, value: Expr
    ) -> Expr:
        """The value of a stage over the axes, if its indices are these places."""
        table = {
            own: axis for own, axis in zip(stage.index, places, strict=True) if isinstance(own, Var)
        }
        if reduced is not None:
            (own,) = stage.reduce_axes
            table[own] = reduced
        return substitute(value, table)

    def _load(self, stage: Stage, *places: Expr) -> Expr:
        return tirx.BufferLoad(stage.buffer, list(places))

    def _scores(self) -> tuple[Expr, Expr, Interval | None, Expr | None] | None:
        """The score as an expression of the product's variable, that variable, and the mask: as an interval of keys,
        and as the condition in the program."""
        a = self.axes
        row, square = (a.batch, a.head, a.row), (a.batch, a.head, a.row, a.key)
        value = self._over(self.largest, row, a.key, self.largest.value)
        seen, score = _split(value, -float("inf"))
        power = self._over(self.powers, square, None, self.powers.value)
        expected = scalar.exp(score - self._load(self.largest, *row))
        if seen is not None:
            expected = tirx.Select(seen, expected, tirx.FloatImm("float32", 0.0))
        total = self._over(self.totals, row, a.key, self.totals.value)
        if not _same(power, expected) or not _same(total, self._load(self.powers, *square)):
            return None
        interval = None
        if seen is not None:
            interval = _interval(seen, a.key, a.extents["key"])
            if interval is None:
                return None
        product = tirx.Var("product", "float32")
        own = self._load(self.products, *square)
        score = map_loads(score, lambda load: product if _same(load, own) else load)
        foreign = (self.products, self.largest, self.powers, self.totals, self.sums)
        if _reads(score, foreign) or any(uses(score, v) for v in (a.depth, a.column) if _is_var(v)):
            return None
        return score, product, interval, seen

    def _values(self, condition: Expr | None) -> Load | None:
        """The read of the value that is weighted, where the condition holds."""
        a = self.axes
        weighted = self._over(self.sums, (a.batch, a.row, a.head, a.column), a.key, self.sums.value)
        seen, weighted = _split(weighted, 0.0)
        if (seen is None) != (condition is None):
            return None
        if seen is not None and not _same(seen, condition):
            return None
        if not isinstance(weighted, tirx.Mul):
            return None
        power = self._load(self.powers, a.batch, a.head, a.row, a.key)
        for left, right in ((weighted.a, weighted.b), (weighted.b, weighted.a)):
            part = _widened(right)
            if _same(left, power) and part is not None:
                return None if _is_var(a.row) and uses(part, a.row) else part
        return None

    def _factors(self, stage: Stage, row: Expr, key: Expr) -> tuple[Load, Load] | None:
        """The reads of a query and of a key that are multiplied."""
        a = self.axes
        value = self._over(stage, (a.batch, a.head, a.row, a.key), a.depth, stage.value)
        if not isinstance(value, tirx.Mul):
            return None
        first, second = _widened(value.a), _widened(value.b)
        if first is None or second is None:
            return None
        for query, other in ((first, second), (second, first)):
            apart = not (_is_var(key) and uses(query, key))
            if apart and not (_is_var(row) and uses(other, row)):
                return query, other
        return None

    def _stored(self) -> tuple[Expr, Expr, list[Expr]] | None:
        """The stored expression of a quotient's variable, that variable, and the place."""
        a = self.axes
        moved = places_behind(self.sums, self.last)
        if moved is None:
            return None
        places = (a.batch, a.row, a.head, a.column)

        def over(expr: Expr) -> Expr:
            return self._over(self.sums, places, None, substitute(expr, moved))

        total = self._load(self.totals, a.batch, a.head, a.row)
        zero = tirx.FloatImm("float32", 0.0)
        found = self._load(self.sums, *places) / total
        expected = _normal(tirx.Select(scalar.equal(total, zero), zero, found))
        quotient = tirx.Var("quotient", "float32")

        def select(node: tirx.Select) -> Expr:
            same = tvm_ffi.structural_equal(_normal(node), expected)
            return quotient if same else node

        result = tvm_ffi.structural_map(over(self.last.value), (tirx.Select, select))
        if _reads(result, (self.products, self.largest, self.powers, self.totals, self.sums)):
            return None
        return result, quotient, [over(index) for index in self.last.index]

    def _operand(self, buffer: Buffer, indices: Sequence[Expr]) -> Operand | None:
        """The access over the axes; an axis of extent 1 has no stride."""
        if not any(buffer.same_as(param) for param in self.func.params):
            return None
        vars_ = {name: getattr(self.axes, name) for name in ORDER}
        ranges = {v: self.axes.extents[name] for name, v in vars_.items() if _is_var(v)}
        operand = read_operand(buffer, tuple(indices), ranges)
        if operand is None or operand.panels is not None:
            return None
        strides = dict(zip(ranges, operand.strides, strict=True))
        padded = tuple(strides.get(v) if _is_var(v) else int64(0) for v in vars_.values())
        free = ("key", "depth", "column")
        if any(_is_var(vars_[name]) and uses(operand.base, vars_[name]) for name in free):
            return None
        return Operand(buffer, padded, operand.base)


def _known(extent: Expr) -> int:
    value = loops.constant(extent)
    assert value is not None, "asked before"
    return value


def _split(value: Expr, otherwise: float) -> tuple[Expr | None, Expr]:
    """The condition and the value of a selection whose other value is this number; None for other expressions."""
    if (
        isinstance(value, tirx.Select)
        and isinstance(value.false_value, tirx.FloatImm)
        and value.false_value.value == otherwise
    ):
        return value.condition, value.true_value
    return None, value


def _normal(expr: Expr) -> Expr:
    """The simplified form, as `te` writes programs."""
    return tvm.sym.Analyzer().simplify(expr)


def _same(a: Expr, b: Expr) -> bool:
    """Are two values structurally equal?"""
    if tvm_ffi.structural_equal(a, b):
        return True
    return tvm_ffi.structural_equal(_normal(a), _normal(b))


def _is_var(axis: Expr) -> bool:
    return isinstance(axis, Var)


def _reads(expr: Expr, stages: Sequence[Stage]) -> bool:
    return any(load.source.same_as(stage.buffer) for load in loads_of(expr) for stage in stages)


def _widened(factor: Expr) -> Load | None:
    """The read below a conversion to float32, if there is one."""
    if isinstance(factor, tirx.Cast) and str(factor.ty.dtype) == "float32":
        factor = factor.value
    return factor if isinstance(factor, Load) else None


def _interval(condition: Expr, key: Expr, keys: Expr) -> Interval | None:
    """The keys for which a condition holds, if they form an interval: the condition is a conjunction of bounds on the
    key, or a disjunction of bounds on one side."""
    if not _is_var(key):
        return _interval_of_one(condition)
    found = _bounds(condition, key)
    if found is None:
        return None
    low, high = found
    low = int64(0) if low is None else loops.maximum(low, 0)
    return Interval(low, keys if high is None else loops.minimum(high, keys))


def _interval_of_one(condition: Expr) -> Interval:
    """The interval for a single key: that key, or empty."""
    return Interval(int64(0), tirx.Select(condition, int64(1), int64(0)))


_Bounds = tuple[Expr | None, Expr | None]


def _bounds(condition: Expr, key: Expr) -> _Bounds | None:
    """The least key that satisfies a condition, and the least key above those; None on an open side. None for a
    condition that is not an interval."""
    match condition:
        case tirx.And():
            return _both(_bounds(condition.a, key), _bounds(condition.b, key))
        case tirx.Or():
            return _either(_bounds(condition.a, key), _bounds(condition.b, key))
        case tirx.LT() | tirx.LE():
            return _bound(condition.a - condition.b, isinstance(condition, tirx.LE), key)
        case tirx.GT() | tirx.GE():
            return _bound(condition.b - condition.a, isinstance(condition, tirx.GE), key)
        case _:
            return None


def _both(first: _Bounds | None, second: _Bounds | None) -> _Bounds | None:
    """The intersection of two intervals."""
    if first is None or second is None:
        return None
    sides = zip(first, second, (tirx.max, tirx.min), strict=True)
    low, high = (
        combine(a, b) if a is not None and b is not None else (b if a is None else a)
        for a, b, combine in sides
    )
    return low, high


def _either(first: _Bounds | None, second: _Bounds | None) -> _Bounds | None:
    """The union of two intervals, for bounds on the same side only."""
    match first, second:
        case ((None, a), (None, b)) if a is not None and b is not None:
            return None, tirx.max(a, b)
        case ((a, None), (b, None)) if a is not None and b is not None:
            return tirx.min(a, b), None
        case _:
            return None


def _bound(difference: Expr, or_equal: bool, key: Expr) -> _Bounds | None:
    """The keys for which a difference is below 0, or at most 0."""
    step = loops.constant(
        loops.simplify(substitute(difference, {key: key + int64(1)}) - difference)
    )
    rest = loops.simplify(substitute(difference, {key: int64(0)}))
    if step == 1:
        return None, loops.simplify(int64(int(or_equal)) - rest)
    if step == -1:
        return loops.simplify(rest + int64(int(not or_equal))), None
    return None


def _is_shared(operand: Operand, head: Expr, size: int) -> bool:
    """Do the heads of each group of this size read the same numbers?"""
    stride = operand.strides[ORDER.index("head")]
    if stride is not None and loops.constant(stride) != 0:
        return False
    group, member = tirx.Var("group", "int64"), tirx.Var("member", "int64")
    analyzer = tvm.sym.Analyzer()
    analyzer.bind(member, tvm.ir.Range.from_min_extent(int64(0), int64(size)))
    analyzer.bind(group, tvm.ir.Range.from_min_extent(int64(0), int64(1 << 40)))
    base = analyzer.simplify(substitute(operand.base, {head: group * size + member}))
    return not uses(base, member)
