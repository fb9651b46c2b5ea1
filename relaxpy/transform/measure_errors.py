"""MeasureErrors: make the program that returns what each quantised layer loses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr, Tuple, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.op.binary import Subtract
from relaxpy.op.conv import Convolution
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.reduce import Mean, Sum
from relaxpy.op.unary import Square
from relaxpy.transform.annotate import Annotate, Observer, Pairs
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class MeasureErrors(Pass):
    """Make functions return, instead of their results, for each call that `annotate` puts pairs on, the sum of the
    squares of what its result loses by them alone (its arguments are those of the floats), that of its result, and the
    mean of what each of its channels loses, as a tensor that is broadcast with the result. `measured` also says which
    calls these are, by function and layer, in the same order."""

    name: ClassVar[str] = "measure-errors"
    annotate: Annotate = field(default_factory=Annotate)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return self.measured(mod)[0]

    def measured(self, mod: IRModule) -> tuple[IRModule, list[tuple[str, str]]]:
        """The module after the pass, and the calls."""
        judge = _Judge(mod, self.annotate)
        return judge.run(), judge.calls


class _Judge(Observer):
    def __init__(self, mod: IRModule, step: Annotate) -> None:
        super().__init__(mod, step)
        self.calls: list[tuple[str, str]] = []

    def with_pairs(self, call: Call, given: Mapping[str, Expr], pairs: Pairs, layer: str) -> Expr:
        if self.is_inside:  # what is inside a branch cannot be returned
            return call
        floats, lost = self.emit(call), self.emit(super().with_pairs(call, given, pairs, layer))
        kind = expect(TensorType, deduce(floats, self.mod))

        def step(op: Op, *args: Expr) -> Var:
            return self.emit(op(*args))

        def size(x: Expr) -> Var:
            return step(Sum(), step(Square(), x))

        wide = [step(Astype(DType("float32")), each) for each in (floats, lost)]
        difference = step(Subtract(), *wide)
        self.calls.append((self.function_name, layer))
        assert kind.dims is not None, "as a product is"
        channel = _channel(call.op, len(kind.dims))
        over = tuple(axis for axis in range(len(kind.dims)) if axis != channel)
        mean = step(Mean(over, keepdims=True), difference)
        self.found.append(self.emit(Tuple((size(difference), size(wide[0]), mean))))
        return floats


def _channel(op: Any, rank: int) -> int:
    """The axis of a product's result along which its outputs are."""
    return op.layouts()[2].letters.index("C") if isinstance(op, Convolution) else rank - 1
