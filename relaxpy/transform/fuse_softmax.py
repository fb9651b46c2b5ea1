"""FuseSoftmax: replace softmax and log-softmax written out by one call of `nn.softmax` or `nn.log_softmax`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_operators import calls_operator
from relaxpy.analysis.dataflow_match import Match
from relaxpy.analysis.pattern_regions import PatternRegions, PatternReport
from relaxpy.analysis.scope import Scope, scope_of
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import Binding, Call, DataflowBlock, Function, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.ir.pattern import Pattern, is_const, is_op, wildcard
from relaxpy.op.reduce import Reduction
from relaxpy.op.softmax import LogSoftmax, Softmax
from relaxpy.op.unary import Exp
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_blocks import change_blocks


@dataclass(frozen=True)
class FuseSoftmax(Pass):
    """Replace exp(x - max(x)) / sum(exp(x - max(x))) along an axis by `nn.softmax`, and x - max(x) - log(sum(exp(x -
    max(x)))) by `nn.log_softmax`, as JAX and others write them. Sums of narrower floats may be of float32. Results are
    equal up to rounding.

    Before:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            n = T.int64()
            with R.dataflow():
                largest = R.max(x, axis=[1])
                rows = R.expand_dims(largest, axis=1)
                less = R.subtract(x, rows)
                powers = R.exp(less)
                total = R.sum(powers, axis=[1], keepdims=True)
                y = R.divide(powers, total)
                R.output(y)
            return y
    After:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            n = T.int64()
            with R.dataflow():
                y = R.nn.softmax(x, axis=1)
                R.output(y)
            return y
    """

    name: ClassVar[str] = "fuse-softmax"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("convert-to-dataflow",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        def fused(block: DataflowBlock) -> DataflowBlock:
            return _fused(block, mod)

        def change(_: str, function: Function) -> Function:
            return change_blocks(function, fused) if calls_operator(function, Exp) else function

        return mod.map_graph_functions(change)


SHAPED: list[Pattern] = []
"""Rows whose axis of size 1 is back."""


def _rows(row: Pattern) -> Pattern:
    """A row as it is combined with all elements: its axis is back, and perhaps repeated."""
    shaped = is_op("expand_dims")(row) | is_op("reshape")(row, wildcard()) | row
    SHAPED.append(shaped)
    return is_op("broadcast_to")(shaped, wildcard()) | shaped


def _or_converted(value: Pattern) -> Pattern:
    return is_op("astype")(value) | value


X = wildcard()
MAX = is_op("max")(X)
_largest = is_op("maximum")(MAX, is_const(-math.inf), any_order=True) | MAX
_less = is_op("subtract")(X, _rows(_largest))
_powers = is_op("exp")(_less)
SUM = is_op("sum")(_or_converted(_powers))
_total = _or_converted(SUM)
SOFTMAX = is_op("divide")(_powers, _or_converted(_rows(_total)))
LOG_SOFTMAX = is_op("subtract")(
    _less, _or_converted(_rows(is_op("log")(_total)) | is_op("log")(_rows(_total)))
)


def _fused(block: DataflowBlock, mod: IRModule) -> DataflowBlock:
    scope = scope_of(block, mod)
    regions = PatternRegions(scope, mod)

    def refusal(match: Match) -> str:
        return _refusal(match, scope)

    calls: dict[int, Call] = {}
    gone: set[int] = set()
    for pattern, kind in ((SOFTMAX, Softmax), (LOG_SOFTMAX, LogSoftmax)):
        for region in regions.claim(pattern, refusal, PatternReport(kind.name)):
            gone |= region.members
            span = region.match.bindings[-1].span
            call = kind(_axis(region.match, scope))(region.match[X], span=span)
            calls[max(region.members)] = call
    if not calls:
        return block
    kept: list[Binding] = []
    for i, binding in enumerate(block.bindings):
        if i in calls:
            kept.append(VarBinding(binding.var, calls[i], span=binding.span))
        elif i not in gone:
            kept.append(binding)
    return dataclasses.replace(block, bindings=tuple(kept))


def _axis(match: Match, scope: Scope) -> int:
    """The axis of the maximum and the sum; -1 if they have not one and the same."""
    x = match.annotation(X)
    found = set[tuple[int, ...]]()
    for pattern in (MAX, SUM):
        value = scope.value(match[pattern])[0]
        if isinstance(value, Call) and isinstance(value.op, Reduction):
            found.add(value.op.axes_of(x.ndim) if isinstance(x, TensorType) else ())
    axes = found.pop() if len(found) == 1 else ()
    return axes[0] if len(axes) == 1 else -1


def _refusal(match: Match, scope: Scope) -> str:
    """The reason why a match is not softmax; empty if it is."""
    x, result = match.annotation(X), match.annotation(_less)
    if not isinstance(x, TensorType) or x.dims is None or x.dtype is None or not x.dtype.is_float:
        return "the argument is not a tensor of floats of known rank"
    if not isinstance(result, TensorType) or result.dims is None or not _equal(result.dims, x.dims):
        return "the result has another shape"
    axis = _axis(match, scope)
    if axis < 0:
        return "the maximum and the sum are not along one axis"
    wanted = [Dim.of(1) if a == axis else size for a, size in enumerate(x.dims)]
    for row in SHAPED:
        if row in match:
            found = match.annotation(row)
            if not isinstance(found, TensorType) or found.dims is None:
                return "a row has no known shape"
            missing = [Dim.of(1)] * (len(wanted) - len(found.dims))
            if not _equal([*missing, *found.dims], wanted):
                return "the rows are along another axis"
    return ""


def _equal(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    return len(a) == len(b) and all(equal(x, y) is Verdict.YES for x, y in zip(a, b, strict=True))
