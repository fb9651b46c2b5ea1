"""Calibrate: make the program that returns statistics of what layers read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from relaxpy.ir.accessors import known_dims
from relaxpy.ir.dim import product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Constant, Expr, ShapeExpr, Tuple, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.op.binary import Add, Maximum, Multiply
from relaxpy.op.compare import Less
from relaxpy.op.create import Ones, Zeros
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.pair import Pair
from relaxpy.op.ranges import BINS, OCTAVES, STEPS
from relaxpy.op.reduce import Max, Min
from relaxpy.op.row_major import Reshape
from relaxpy.op.scatter import ScatterElements
from relaxpy.op.search import Where
from relaxpy.op.unary import Abs, Clip, Floor, Log2
from relaxpy.transform.annotate import Annotate, Observer, Pairs, Rule
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class Site:
    """An argument whose scale comes from data."""

    function: str
    layer: str
    argument: str
    pair: Pair


@dataclass(frozen=True)
class Calibrate(Pass):
    """Make functions return, instead of their results, statistics of the arguments that `Annotate` quantises by scales
    from data: for each the smallest and the largest number (or those of each index of an axis), and how many numbers
    there are of each size (`relaxpy.op.ranges`). Which arguments these are, `sites` says, in the same order. Results
    that nothing needs are not computed.

    What calls return is bounded whatever they read. `relaxpy.build.quantize.calibrate` streams data through the
    program.
    """

    name: ClassVar[str] = "calibrate"
    rules: Mapping[str, Rule] = field(default_factory=dict[str, Rule])

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return self.observed(mod)[0]

    def observed(self, mod: IRModule) -> tuple[IRModule, list[Site]]:
        """The module after the pass, and what its functions return statistics of."""
        observer = _Observer(mod, Annotate(self.rules))
        result = observer.run()
        observer.check_rules()
        return result, observer.sites


class _Observer(Observer):
    def __init__(self, mod: IRModule, step: Annotate) -> None:
        super().__init__(mod, step)
        self.sites: list[Site] = []

    def needs_scales(self, layer: str, name: str) -> bool:
        return (
            self.is_inside
        )  # what is inside a branch, or a function of this one, cannot be returned

    def with_pairs(self, call: Call, given: Mapping[str, Expr], pairs: Pairs, layer: str) -> Expr:
        for name, pair in pairs.items():
            if pair.static:
                self.sites.append(Site(self.function_name, layer, name, pair))
                self.found.append(self.emit(Tuple(self.statistics(given[name], pair))))
        return call

    def statistics(self, x: Expr, pair: Pair) -> tuple[Expr, Expr, Expr]:
        """The smallest and the largest numbers of a tensor, and how many there are of each size."""
        dims = known_dims(deduce(x, self.mod))

        def step(op: Op, *args: Expr) -> Var:
            return self.emit(op(*args))

        def number(value: float, dtype: str = "float32") -> Constant:
            return Constant(np.array(value, dtype))

        wide = step(Astype(DType("float32")), x)
        axis = pair.axis % len(dims) if isinstance(pair.axis, int) else None
        over = tuple(a for a in range(len(dims)) if a != axis)
        low, high = step(Min(over), wide), step(Max(over), wide)
        count = ShapeExpr((product(dims),))
        flat = step(Reshape(), wide, count)
        size = step(Log2(), step(Maximum(), step(Abs(), flat), number(2.0**-OCTAVES)))
        place = step(Floor(), step(Multiply(), size, number(STEPS)))
        place = step(Clip(-STEPS * OCTAVES, STEPS * OCTAVES - 1), place)
        place = step(Astype(DType("int64")), step(Add(), place, number(STEPS * OCTAVES)))
        below = step(
            Where(), step(Less(), flat, number(0)), number(BINS, "int64"), number(0, "int64")
        )
        place = step(Add(), place, below)
        zeros = step(Zeros(DType("int64")), ShapeExpr((2 * BINS,)))
        ones = step(Ones(DType("int64")), count)
        return low, high, step(ScatterElements(0, "add"), zeros, place, ones)
