"""Reads through sliding windows over a tensor, possibly padded: convolutions and poolings.

A *guarded* read returns an element where it exists, and a number (0, minus infinity) elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from relaxpy.tir.analyzer import equal
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, PrimFunc
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.contraction import linear_part
from relaxpy.tir.recognise.stages import Load, Stage
from relaxpy.tir.tvm import tirx, tvm


@dataclass(frozen=True, eq=False)
class Guarded:
    """A read where all bounds are at least 0, and another value elsewhere."""

    load: Load
    bounds: tuple[Expr, ...]
    otherwise: Expr


@dataclass(frozen=True, eq=False)
class Walk:
    """The index of a window along one dimension of data: `base + sum(axis * step)`."""

    size: Expr
    stride: Expr
    """The stride of the dimension, in elements."""
    steps: tuple[Expr | None, ...]
    """One entry per axis; None if the axis does not move along this dimension."""
    base: Expr
    """The part that is not linear in these axes."""
    is_guarded: bool
    """Do windows extend beyond the dimension?"""


def read_guarded(value: Expr) -> Guarded | None:
    """A read, guarded or not; None for other expressions."""
    if isinstance(value, Load):
        return Guarded(value, (), tirx.const(0, value.ty.dtype))
    parts = _alternatives(value)
    if parts is None:
        return None
    condition, load, otherwise = parts
    bounds = _bounds(condition)
    if bounds is None or not isinstance(load, Load) or s.loads_of(otherwise):
        return None
    return Guarded(load, tuple(bounds), otherwise)


def read_walks(
    load: Load, bounds: Sequence[Expr], extents: Mapping[Expr, Expr]
) -> tuple[Walk, ...] | None:
    """How a read moves along each dimension with the axes of these extents. None if an index is read from memory, or if
    a bound is not the beginning or the end of a dimension."""
    walks: list[Walk] = []
    left = list(bounds)
    stride = loops.int64(1)
    shape = [loops.int64(size) for size in load.source.shape]
    for size, index in reversed(list(zip(shape, load.indices, strict=True))):
        linear, base = linear_part(index, extents)
        if s.loads_of(base):
            return None
        ends = (index, size - loops.int64(1) - index)
        factors = {1, *(abs(loops.constant(step) or 1) for step in linear.values())}
        own = [bound for bound in left if any(_is_same_bound(bound, end, factors) for end in ends)]
        left = [bound for bound in left if not any(bound is other for other in own)]
        steps = tuple(linear.get(axis) for axis in extents)
        walks.append(Walk(size, stride, steps, base, bool(own)))
        stride = loops.simplify(stride * size)
    return None if left else tuple(reversed(walks))


def with_padding_inlined(stages: Sequence[Stage], func: PrimFunc) -> list[Stage]:
    """Return the stages with padding inlined into the one reduction that reads it."""
    current = list(stages)
    for stage in stages:
        readers = [other for other in current if other.reads(stage.buffer)]
        if stage.combiner is None and not s.is_output(stage, func) and len(readers) == 1:
            (reader,) = readers
            if reader.combiner is not None and read_guarded(stage.value) is not None:
                current = [
                    s.inlined_into(stage, reader) if other is reader else other
                    for other in current
                    if other is not stage
                ]
    return current


def _is_same_bound(bound: Expr, end: Expr, factors: Collection[int]) -> bool:
    """Are the two at least 0 together? Simplification turns `2 * i - 1 >= 0` into `i - 1 >= 0`."""
    for factor in sorted(factors):
        rest = loops.constant(loops.simplify(end - bound * loops.int64(factor)))
        if rest is not None and 0 <= rest < factor:
            return True
    return equal(bound, end)


def _alternatives(value: Expr) -> tuple[Expr, Expr, Expr] | None:
    """The condition and the two values of a choice."""
    if isinstance(value, tirx.Select):
        return value.condition, value.true_value, value.false_value
    # The operator's dialect is `prim` or `tirx`, depending on where the program comes from.
    if isinstance(value, tvm.ir.Call) and value.op.name.rpartition(".")[2] == "if_then_else":
        condition, then, otherwise = value.args
        return condition, then, otherwise
    return None


def _bounds(condition: Expr) -> list[Expr] | None:
    """The expressions that must be at least 0, for a conjunction of integer comparisons; None for other conditions."""
    if isinstance(condition, tirx.And):
        first, second = _bounds(condition.a), _bounds(condition.b)
        return None if first is None or second is None else first + second
    match condition:
        case tirx.LE():
            return [condition.b - condition.a]
        case tirx.LT():
            return [condition.b - condition.a - loops.int64(1)]
        case tirx.GE():
            return [condition.a - condition.b]
        case tirx.GT():
            return [condition.a - condition.b - loops.int64(1)]
        case _:
            return None
