"""DecomposeOps: replace operators that are written as calls of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.analysis.called_operators import calls_in
from relaxpy.ir.annotation import Annotation, TupleType
from relaxpy.ir.expr import Call, Expr, Function, Tuple, TupleGetItem
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.fold_constant import FoldConstant
from relaxpy.transform.rebuild import Rebuilder

LARGEST = 1 << 30
"""The most bytes of a weight that is packed when building: packing may add to it."""


@dataclass(frozen=True)
class DecomposeOps(Pass):
    """Replace each call of an operator that is written as calls of others (`decompose`) by those. What they compute of
    constants only, such as joined weights, is folded. Requirements that deduction could not decide are checked at run
    time.

    Before:
        @R.function
        def main(
            x: R.Tensor(("n", 1, 2), dtype="float32"),
            w: R.Tensor((3, 2), dtype="float32"),
            u: R.Tensor((3, 3), dtype="float32"),
            h: R.Tensor((1, 1, 3), dtype="float32"),
        ):
            y = R.nn.rnn(x, (w, u), h, biases=0)
            return y
    After:
        @R.function
        def main(
            x: R.Tensor(("n", 1, 2), dtype="float32"),
            w: R.Tensor((3, 2), dtype="float32"),
            u: R.Tensor((3, 3), dtype="float32"),
            h: R.Tensor((1, 1, 3), dtype="float32"),
        ):
            n = T.int64()
            weight = R.expand_dims(u, axis=[0])
            panels = R.nn.recurrent_panels(weight, gates=1)
            inputs = R.linear(x, w)
            steps = R.nn.recurrent_steps(inputs, panels, h, cell="rnn")
            outputs = steps[0]
            last = steps[1]
            y = (outputs, last)
            return y
    """

    name: ClassVar[str] = "decompose-ops"
    mandatory: ClassVar[bool] = True

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        def change(_: str, function: Function) -> Function:
            return _Decomposer(mod).function(function) if _is_composed(function) else function

        found = mod.map_graph_functions(change)
        return mod if found is mod else FoldConstant(max_bytes=LARGEST).run(found, ctx)


def _is_composed(function: Function) -> bool:
    """Does the function call an operator that is written as calls of others?"""
    ops = (call.op for call in calls_in(function))
    return any(isinstance(op, Op) and op.decompose is not None for op in ops)


class _Decomposer(Rebuilder):
    def value(self, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return value
        op = value.op
        if op.decompose is None:
            return value
        deduction = Deduction(op, value, lambda e: deduce(e, self.mod), exact=True)
        out = deduction.run()
        if not op.decomposes(*deduction.args):
            return value
        for annotation in (*deduction.args, out):
            self.require_dims(op, annotation)
        self.check(deduction.requirements)
        args = map(self.argument, value.args, deduction.args)
        return op.decompose(self.emit, *args)

    def argument(self, arg: Expr, annotation: Annotation | None) -> Any:
        """An argument as `decompose` takes it: tensors are variables or constants."""
        match annotation:
            case None:
                return None
            case TupleType(fields=fields):
                items = (
                    arg.fields
                    if isinstance(arg, Tuple)
                    else [self.emit(TupleGetItem(arg, i)) for i in range(len(fields))]
                )
                return list(items)
            case _:
                return arg
