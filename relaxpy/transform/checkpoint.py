"""Checkpoint: make a function a stage whose values are recomputed for a gradient instead of being kept."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.errors import PassError
from relaxpy.ir.annotation import TensorType, TupleType
from relaxpy.ir.expr import Binding, Call, Expr, Function, Tuple, TupleGetItem, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.base import OPS, Op
from relaxpy.op.deduce import deduce
from relaxpy.op.gradient import EndCheckpoint, StartCheckpoint
from relaxpy.op.rule import has_gradient
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class Checkpoint(Pass):
    """Mark the inputs and outputs of a function (`R.grad.start_checkpoint`, `end_checkpoint`): its gradient, and that
    of each function that calls it, keeps the inputs, and the results of the operators that `policy` names, and
    recomputes the rest (Chen et al., 2016; `jax.checkpoint`).

    Before:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4, 4), dtype="float32")):
                with R.dataflow():
                    y = R.matmul(x, w)
                    z = R.tanh(y)
                    gv = R.exp(z)
                    R.output(gv)
                return gv
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4, 4), dtype="float32")):
                x1 = R.grad.start_checkpoint(x)
                w1 = R.grad.start_checkpoint(w)
                with R.dataflow():
                    y = R.matmul(x1, w1)
                    z = R.tanh(y)
                    gv = R.exp(z)
                    R.output(gv)
                gv1 = R.grad.end_checkpoint(gv)
                return gv1
    """

    name: ClassVar[str] = "checkpoint"
    function: str = "main"
    policy: tuple[str, ...] = ()
    """Names of operators whose results are kept: `("matmul", "linear")`."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        source = mod.graph_function(self.function)
        unknown = [name for name in self.policy if name not in OPS]
        if unknown:
            raise PassError(
                "gradient-argument",
                f"policy names operators whose results are kept; there is none called {unknown[0]!r}",
                span=source.span,
                help='write the names of docs/operators.md: policy=("matmul",)',
            )
        if not any(has_gradient(param.annotation) for param in source.params):
            raise PassError(
                "gradient-argument",
                "a checkpoint needs a parameter with a gradient: no parameter is a tensor of floats",
                span=source.span,
            )
        return mod.with_function(self.function, _Marker(mod, self.policy).function(source))


class _Marker(Rebuilder):
    def __init__(self, mod: IRModule, policy: tuple[str, ...]) -> None:
        super().__init__(mod)
        self.policy = policy

    def start(self, function: Function) -> None:
        for param in function.params:
            if has_gradient(param.annotation):
                self.vars[param] = self.marked(param, StartCheckpoint())

    def finish(self, function: Function, body: Expr) -> Expr:
        return self.marked(body, EndCheckpoint()) if has_gradient(function.ret) else body

    def marked(self, value: Expr, mark: Op) -> Expr:
        """A value with a mark on each tensor of floats in it."""
        annotation = deduce(value, self.mod)
        if not has_gradient(annotation):
            return value
        if not isinstance(annotation, TupleType):
            return self.emit(mark(value), value.name if isinstance(value, Var) else "lv")
        if isinstance(value, Tuple):
            fields = list(value.fields)
        else:
            count = len(annotation.fields or ())
            fields = [self.emit(TupleGetItem(value, i)) for i in range(count)]
        whole = Tuple(tuple(self.marked(field, mark) for field in fields))
        return self.emit(whole) if isinstance(value, Var) else whole

    def binding(self, binding: Binding) -> None:
        super().binding(binding)
        new = self.bindings[-1]
        value = new.value
        if (
            not isinstance(value, Call)
            or not isinstance(value.op, Op)
            or value.op.name not in self.policy
        ):
            return
        if isinstance(new.var.annotation, TensorType) and has_gradient(new.var.annotation):
            del self.bindings[-1]
            kept = self.emit(EndCheckpoint()(self.emit(value, new.var.name)), new.var.name)
            self.bindings.append(dataclasses.replace(new, value=StartCheckpoint()(kept)))
