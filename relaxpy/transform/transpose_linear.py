"""TransposeLinear: turn linear layers with constant weights into matrix products."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.expr import Call, Constant
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter, Visitor
from relaxpy.op.linear_algebra import Linear, Matmul
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class TransposeLinear(Pass):
    """Replace `linear(x, w)` with a constant matrix w, (out, in) as torch stores it, by `matmul(x, w.T)`. Passes that
    combine or match matrix products then apply, and the weight is transposed once, when building. A weight that
    anything else reads too (tied embeddings) stays as it is: it would be stored twice.

    Before:
        @R.function
        def main(x: R.Tensor(("n", 2), dtype="float32")) -> R.Tensor(("n", 1), dtype="float32"):
            y = R.linear(x, R.const([[1.0, 2.0]], "float32"))
            return y
    After:
        @R.function
        def main(x: R.Tensor(("n", 2), dtype="float32")) -> R.Tensor(("n", 1), dtype="float32"):
            y = R.matmul(x, R.const([[1.0], [2.0]], "float32"))
            return y
    """

    name: ClassVar[str] = "transpose-linear"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        uses = _Uses()
        for function in mod.graph_functions.values():
            uses.visit(function)
        if uses.linear.keys() <= uses.others:
            return mod
        rewriter = _Transposer(uses)
        return mod.map_graph_functions(lambda _, f: rewriter.rewrite_Function(f))


def _weight(call: Call) -> Constant | None:
    """The constant matrix of a linear layer without bias."""
    if not isinstance(call.op, Linear) or len(call.args) != 2:
        return None
    weight = call.args[1]
    return weight if isinstance(weight, Constant) and weight.data.ndim == 2 else None


def _key(constant: Constant) -> tuple[Any, ...]:
    """What tells the memory of two constants apart: bound parameters share theirs between functions."""
    data = constant.data
    return data.ctypes.data, data.shape, data.strides, data.dtype


class _Uses(Visitor):
    """Collects the constants that are weights of linear layers, and those that anything else reads."""

    def __init__(self) -> None:
        self.linear: dict[tuple[Any, ...], Constant] = {}
        self.others: set[tuple[Any, ...]] = set()

    def visit_Call(self, node: Call) -> None:
        weight = _weight(node)
        if weight is None:
            self.generic(node)
            return
        self.linear[_key(weight)] = weight
        self.visit(node.args[0])

    def visit_Constant(self, node: Constant) -> None:
        self.others.add(_key(node))


class _Transposer(Rewriter):
    def __init__(self, uses: _Uses) -> None:
        super().__init__()
        self.uses = uses
        self.made: dict[tuple[Any, ...], Constant] = {}

    def rewrite_Call(self, node: Call) -> Any:
        weight = _weight(node)
        if weight is None or (key := _key(weight)) in self.uses.others:
            return super().rewrite_Call(node)
        if key not in self.made:
            turned = np.ascontiguousarray(weight.data.T)
            self.made[key] = Constant.shared(turned, span=weight.span)
        assert isinstance(node.op, Linear)
        args = (self.rewrite(node.args[0]), self.made[key])
        return dataclasses.replace(node, op=Matmul(node.op.out_dtype), args=args)
