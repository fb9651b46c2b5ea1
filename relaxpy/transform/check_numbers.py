"""CheckNumbers: stop at the first operator that makes a NaN or an infinity of finite numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import Binding, Call, Constant, Expr, StringImm, Var, leaves_of
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.op.call import call_pure_packed
from relaxpy.op.deduce import deduce
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class CheckNumbers(Pass):
    """Check the result of every operator that computes floats: if it has a NaN or an infinity, and the floats that the
    operator was given have none, the call ends with the error `not-a-number`, which names the variable and its line. So
    a network that overflows float16 is found at its first layer that does. Masks with infinities, and what is computed
    of them, are no errors. It is for debugging: nothing is fused across a check, and every result is read.

    Before:
        @R.function
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
            y = R.exp(x)
            return y
    After:
        @R.function
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
            n = T.int64()
            y_unchecked: R.Tensor((n,), dtype="float32") = R.exp(x)
            y: R.Tensor((n,), dtype="float32") = R.call_pure_packed(
                "relaxpy.check_made_finite", y_unchecked, "y", x, ty_args=R.Tensor((n,), dtype="float32")
            )
            return y
    """

    name: ClassVar[str] = "check-numbers"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return _Checker(mod).run()


class _Checker(Rebuilder):
    _name = ""

    def binding(self, binding: Binding) -> None:
        self._name = binding.var.name
        super().binding(binding)

    def value(self, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Op) or value.op.legalize is None:
            return value
        found = deduce(value, self.mod)
        if not isinstance(found, TensorType) or found.dtype is None or not found.dtype.is_float:
            return value
        given = [arg for arg in leaves_of(value.args) if self._is_float_tensor(arg)]
        made = self.emit(value, f"{self._name}_unchecked", found)
        return call_pure_packed(
            "relaxpy.check_made_finite", made, StringImm(self._name), *given, ty_args=found
        )

    def _is_float_tensor(self, expr: Expr) -> bool:
        found = deduce(expr, self.mod) if isinstance(expr, Var | Constant) else None
        return isinstance(found, TensorType) and found.dtype is not None and found.dtype.is_float
