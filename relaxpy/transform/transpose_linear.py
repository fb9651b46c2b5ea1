"""TransposeLinear: turn linear layers with known weights into matrix products."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relaxpy.analysis.called_functions import called_functions
from relaxpy.analysis.weights import memory_of, packed_params
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import Call, Constant, Function, Var, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter, Visitor
from relaxpy.op.deduce import deduce
from relaxpy.op.linear_algebra import Linear, Matmul
from relaxpy.op.manipulate import PermuteDims
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.lifted_weights import weights_first


@dataclass(frozen=True)
class TransposeLinear(Pass):
    """Replace `linear(x, w)` with a constant matrix w, (out, in) as torch stores it, by `matmul(x, w.T)`. Passes that
    combine or match matrix products then apply, and the weight is transposed once, when building. A weight that the
    caller packs (`packed_params`) is transposed by its packer (`LiftPackers`). A weight that anything else reads too
    (tied embeddings) stays as it is: it would be stored twice.

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
    level: ClassVar[int] = 3

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        uses, called, packed = _Uses(), called_functions(mod), set[Var]()
        for name, function in mod.graph_functions.items():
            uses.visit(function.body)
            packed.update(packed_params(function) if name not in called else ())
        wanted = {
            key
            for key, weight in uses.linear.items()
            if key not in uses.others and (isinstance(weight, Constant) or weight in packed)
        }
        if not wanted:
            return mod
        transposer = _Transposer(wanted)
        return mod.map_graph_functions(lambda _, function: transposer.change(function))


def _weight(call: Call) -> Constant | Var | None:
    """The weight of a linear layer without bias: a constant matrix, or a variable."""
    if not isinstance(call.op, Linear) or len(call.args) != 2:
        return None
    match call.args[1]:
        case Constant() as weight if weight.data.ndim == 2:
            return weight
        case Var(annotation=TensorType(ndim=2)) as weight:
            return weight
        case _:
            return None


def _key(weight: Constant | Var) -> Hashable:
    """A variable, or the memory of a constant."""
    return weight if isinstance(weight, Var) else memory_of(weight)


class _Uses(Visitor):
    """Collects the weights of linear layers, and the constants and variables that anything else reads."""

    def __init__(self) -> None:
        self.linear: dict[Hashable, Constant | Var] = {}
        self.others: set[Hashable] = set()

    def visit_Call(self, node: Call) -> None:
        weight = _weight(node)
        if weight is None:
            self.generic(node)
            return
        self.linear[_key(weight)] = weight
        self.visit(node.args[0])

    def visit_Constant(self, node: Constant) -> None:
        self.others.add(_key(node))

    def visit_Var(self, node: Var) -> None:
        self.others.add(node)

    visit_DataflowVar = visit_Var


class _Transposer(Rewriter):
    def __init__(self, wanted: Collection[Hashable]) -> None:
        super().__init__()
        self.wanted = wanted
        self.made: dict[Hashable, Constant | Var] = {}
        """The transposed weights."""
        self.bindings: list[VarBinding] = []
        """Bindings of the transposed variables of the function."""

    def change(self, function: Function) -> Function:
        """The function with matrix products, and the transpositions of its packed weights before them."""
        self.bindings = []
        return weights_first(self.rewrite_Function(function), self.bindings)

    def rewrite_Call(self, node: Call) -> Any:
        weight = _weight(node)
        if weight is None or (key := _key(weight)) not in self.wanted:
            return super().rewrite_Call(node)
        if key not in self.made:
            self.made[key] = self.transposed(weight)
        args = (self.rewrite(node.args[0]), self.made[key])
        return dataclasses.replace(node, op=Matmul(expect(Linear, node.op).out_dtype), args=args)

    def transposed(self, weight: Constant | Var) -> Constant | Var:
        if isinstance(weight, Constant):
            return Constant.shared(np.ascontiguousarray(weight.data.T), span=weight.span)
        value = PermuteDims()(weight)
        var = Var(f"{weight.name}_transposed", deduce(value))
        self.bindings.append(VarBinding(var, value))
        return var
