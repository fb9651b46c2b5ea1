"""CastWeights: take float weights in the dtype in which a checkpoint stores them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from relaxpy.analysis.weights import trailing_weights
from relaxpy.errors import UsageError
from relaxpy.ir.accessors import known_dtype
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr, Function, Var
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Visitor
from relaxpy.op.datatype import Astype
from relaxpy.op.gather import Take
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class CastWeights(Pass):
    """Declare the float weights of all functions, their parameters after the first `num_input`, in the dtype in which a
    checkpoint stores them, and convert them where they are read. A bfloat16 checkpoint then runs in float32 without a
    float32 copy of it. Rows that `take` reads of a weight are converted after they are read. Before `QuantizeWeights`,
    weights are quantised from the stored numbers.

    Before:
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((3, 4), dtype="float32")
        ) -> R.Tensor(("n", 3), dtype="float32"):
            R.func_attr({"num_input": 1})
            y = R.linear(x, w)
            return y
    After:
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((3, 4), dtype="bfloat16")
        ) -> R.Tensor(("n", 3), dtype="float32"):
            R.func_attr({"num_input": 1})
            w_float32: R.Tensor((3, 4), dtype="float32") = R.astype(w, dtype="float32")
            y = R.linear(x, w_float32)
            return y
    """

    name: ClassVar[str] = "cast-weights"
    stored: str = "bfloat16"
    """The dtype of the checkpoint: float32, bfloat16 or float16."""
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    """The dtypes of weights that are stored in another one, by name."""

    def __post_init__(self) -> None:
        for dtype in (self.stored, *self.others.values()):
            if dtype not in _FLOATS:
                raise UsageError(
                    "weight-scheme",
                    f"weights are stored as {', '.join(_FLOATS)}, got {dtype!r}",
                    help="QuantizeWeights makes integers of them",
                )

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return _Caster(mod, self).run()

    def stored_as(self, name: str) -> DType:
        """The dtype in which the checkpoint has a weight."""
        return DType(self.others.get(name, self.stored))


_FLOATS = ("float32", "bfloat16", "float16")


class _Caster(Rebuilder):
    def __init__(self, mod: IRModule, step: CastWeights) -> None:
        super().__init__(mod)
        self.step = step
        self._weights: dict[Var, Var] = {}
        """The weights of the current function, as they were declared and as they are stored."""
        self._read: dict[Var, Var] = {}
        """The variables that weights are converted into, and the stored weights."""

    def run(self) -> IRModule:
        return self.mod.map_graph_functions(lambda _, function: self.cast(function))

    def cast(self, function: Function) -> Function:
        """A function of the module with its weights as they are stored."""
        self._weights = {
            weight: Var(
                weight.name,
                dataclasses.replace(weight.annotation, dtype=self.step.stored_as(weight.name)),
                span=weight.span,
            )
            for weight in trailing_weights(function)
            if isinstance(weight.annotation, TensorType)
            and str(weight.annotation.dtype) in _FLOATS
            and weight.annotation.dtype != self.step.stored_as(weight.name)
        }
        if not self._weights:
            return function
        new = self.function(function)
        params = tuple(self._weights.get(param, param) for param in function.params)
        return dataclasses.replace(new, params=params)

    def start(self, function: Function) -> None:
        """Convert the weights that anything but `take` reads."""
        self.vars |= self._weights
        self._read = {}
        elsewhere = _Elsewhere()
        elsewhere.visit(function.body)
        for declared, stored in self._weights.items():
            if declared in elsewhere.found:
                self.vars[declared] = converted = self._converted(stored, declared)
                self._read[converted] = stored

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=Take(), args=(Var() as table, *rest)):
                stored = self._read.get(table, table)
            case _:
                return value
        declared = next((d for d, each in self._weights.items() if each is stored), None)
        if declared is None:
            return value
        rows = self.emit(dataclasses.replace(value, args=(stored, *rest)), "rows")
        return Call(Astype(known_dtype(declared.annotation)), (rows,), span=value.span)

    def _converted(self, stored: Var, declared: Var) -> Var:
        dtype = known_dtype(declared.annotation)
        call = Call(Astype(dtype), (stored,), span=declared.span)
        return self.emit(call, f"{declared.name}_{dtype}", declared.annotation)


class _Elsewhere(Visitor):
    """Collects the variables that anything but `take` reads."""

    def __init__(self) -> None:
        self.found: set[Var] = set()

    def visit_Call(self, node: Call) -> None:
        for arg in node.args[isinstance(node.op, Take) :]:
            self.visit(arg)

    def visit_Var(self, node: Var) -> None:
        self.found.add(node)

    visit_DataflowVar = visit_Var
