"""Split an axis at the bounds of a choice, so that the choice is made once per segment instead of once per element.

Examples are `if j < n: x[i, j] else: y[i, j - n]` (concatenation), `if 1 <= j and j < m + 1: x[j - 1] else: 0`
(padding), and masks such as `j <= i`: positions below a bound take one arm, those above it the other. Between the
bounds nothing is left to choose, and the remaining accesses are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relaxpy.tir.programs.loops import Expr, Program, constant, int64, maximum, minimum, simplify
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Var
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

_MOST = 8
"""The most segments of an axis: each becomes a loop of its own."""


@dataclass(frozen=True)
class Segment:
    """A run of positions with the value that holds in it."""

    start: Expr
    length: Expr
    value: Expr


def segments(p: Program, value: Expr, axis: Var, start: Expr, length: Expr) -> list[Segment]:
    """Split `length` positions from `start` on where a choice in the value changes. Returns one segment if no choice
    does, or if there would be too many. The bounds are computed here."""
    tree = _cut(value, axis)
    if not isinstance(tree, _Cut) or tree.leaves > _MOST:
        return [Segment(start, length, value)]
    return list(_placed(p, tree, start, simplify(start + length)))


@dataclass(frozen=True)
class _Cut:
    """The two values below a bound and from the bound on."""

    bound: Expr
    below: _Cut | Expr
    above: _Cut | Expr

    @property
    def leaves(self) -> int:
        return sum(
            part.leaves if isinstance(part, _Cut) else 1 for part in (self.below, self.above)
        )


@dataclass(frozen=True)
class _Comparison:
    """A condition on an axis: below a bound, or not below it."""

    bound: Expr
    is_below: bool


def _placed(p: Program, tree: _Cut | Expr, low: Expr, end: Expr) -> Iterator[Segment]:
    if not isinstance(tree, _Cut):
        yield Segment(low, simplify(end - low), tree)
        return
    middle = p.let("bound", minimum(maximum(tree.bound, low), end))
    yield from _placed(p, tree.below, low, middle)
    yield from _placed(p, tree.above, middle, end)


def _cut(value: Expr, axis: Var, depth: int = 0) -> _Cut | Expr:
    found = _first_comparison(value, axis)
    if found is None or depth > _MOST:
        return value
    parts = (_decided(value, axis, found.bound, is_below=below) for below in (True, False))
    below, above = (_cut(part, axis, depth + 1) for part in parts)
    return _Cut(found.bound, below, above)


def _first_comparison(value: Expr, axis: Var) -> _Comparison | None:
    """A comparison that a choice in the value depends on."""

    found: list[_Comparison] = []

    def comparison(node: Expr) -> None:
        if not found and (own := _comparison(node, axis)) is not None:
            found.append(own)

    def choice(node: Expr) -> None:
        condition = _condition(node)
        if condition is not None and not found:
            tvm_ffi.structural_walk(condition, (_COMPARISONS, comparison), order="pre")

    tvm_ffi.structural_walk(value, ((tirx.Select, tvm.ir.Call), choice), order="pre")
    return found[0] if found else None


_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def _condition(node: Expr) -> Expr | None:
    """The condition of a choice; None for other expressions."""
    if isinstance(node, tirx.Select):
        return node.condition
    return node.args[0] if s.is_choice(node) else None


def _comparison(node: Expr, axis: Var) -> _Comparison | None:
    """A comparison of integers in which the axis has the factor 1 or -1; None for others."""
    if "int" not in str(node.a.ty.dtype) or s.loads_of(node) or not s.uses(node, axis):
        return None
    distance = int64(node.a) - int64(node.b)
    after, at_zero = (
        s.substitute(distance, {axis: place}) for place in (axis + int64(1), int64(0))
    )
    factor = constant(simplify(after - distance))
    if factor not in (1, -1):
        return None
    # The position where the distance, which changes by 1 per step, is 0.
    root = simplify(at_zero * int64(-factor))
    is_below = (factor == 1) == isinstance(node, tirx.LT | tirx.LE)
    includes = isinstance(node, tirx.LE | tirx.GE)
    return _Comparison(simplify(root + int64(includes == is_below)), is_below)


def _decided(value: Expr, axis: Var, bound: Expr, *, is_below: bool) -> Expr:
    """The value on one side of the bound."""

    def comparison(node: Expr) -> Expr:
        found = _comparison(node, axis)
        if found is None or not tvm_ffi.structural_equal(found.bound, bound):
            return node
        return tirx.const(found.is_below == is_below, "bool")

    def choice(node: Expr) -> Expr:
        condition = _condition(node)
        known = None if condition is None else constant(tvm.sym.Analyzer().simplify(condition))
        if known is None:
            return node
        yes, no = (
            (node.true_value, node.false_value) if isinstance(node, tirx.Select) else node.args[1:]
        )
        return yes if known else no

    callbacks = ((_COMPARISONS, comparison), ((tirx.Select, tvm.ir.Call), choice))
    return tvm_ffi.structural_map(value, callbacks)
