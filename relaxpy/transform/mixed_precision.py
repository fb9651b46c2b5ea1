"""MixedPrecision: compute products in a narrower float, and what needs float32 in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, get_args

import numpy as np

from relaxpy.analysis.weights import trailing_weights
from relaxpy.errors import UsageError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, PrimType, TensorType, TupleType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    DataflowVar,
    Expr,
    Function,
    PrimValue,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    leaves_of,
)
from relaxpy.ir.module import IRModule
from relaxpy.op.base import OPS, Mixed, Op
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.function import unknown
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dead_code_elimination import DeadCodeElimination
from relaxpy.transform.rebuild import Rebuilder

NARROW = ("bfloat16", "float16")
"""The dtypes to compute in."""
_WIDE = DType("float32")
_Known = dict[Expr, tuple[Expr, list[Binding]]]
"""Variables, their narrow values, and the block that binds those."""


@dataclass(frozen=True)
class MixedPrecision(Pass):
    """Compute in `dtype` what is faster there and exact enough, and the rest in float32. Each operator says in its own
    class (`Op.mixed`) whether it is computed in the narrow dtype always (products, convolutions), if its arguments are
    narrow already (`follow`: what moves data, and simple functions of elements), or never (sums, norms, softmax,
    losses). `table` overrides it by the operator's name. Products add in float32 whatever their dtype.

    Parameters, results and calls of functions keep their dtypes, and values of other dtypes than float32 are not
    touched. Constants are converted here, those weights that the caller packs by their packers. A constant that would
    overflow, such as the -1e9 of a mask in float16, keeps its operator in float32. (TVM: `ToMixedPrecision`.) Raises
    UsageError (code `mixed-precision`) for another dtype, and for a table with an unknown operator or word.

    Before:
        @R.function
        def main(
            x: R.Tensor(("n", 2), dtype="float32"), w: R.Tensor((2, 2), dtype="float32")
        ) -> R.Tensor(("n", 2), dtype="float32"):
            n = T.int64()
            with R.dataflow():
                y = R.matmul(x, w)
                z = R.nn.relu(y)
                p = R.nn.softmax(z)
                R.output(p)
            return p
    After:
        @R.function
        def main(
            x: R.Tensor(("n", 2), dtype="float32"), w: R.Tensor((2, 2), dtype="float32")
        ) -> R.Tensor(("n", 2), dtype="float32"):
            n = T.int64()
            with R.dataflow():
                x_bfloat16 = R.astype(x, dtype="bfloat16")
                w_bfloat16 = R.astype(w, dtype="bfloat16")
                y_bfloat16 = R.matmul(x_bfloat16, w_bfloat16)
                z_bfloat16 = R.nn.relu(y_bfloat16)
                z = R.astype(z_bfloat16, dtype="float32")
                p = R.nn.softmax(z)
                R.output(p)
            return p
    """

    name: ClassVar[str] = "mixed-precision"
    dtype: str = "bfloat16"
    """The narrow dtype: bfloat16, or float16, whose largest number is 65504."""
    table: Mapping[str, Mixed] = field(default_factory=dict[str, Mixed])
    """`always`, `follow` or `never`, for operators of which the model needs something else than their classes say."""

    def __post_init__(self) -> None:
        if DType(self.dtype) not in NARROW:
            raise UsageError(
                "mixed-precision",
                f"mixed precision is in {' or '.join(NARROW)}, got {self.dtype!r}",
            )
        object.__setattr__(self, "dtype", DType(self.dtype))
        for name, word in self.table.items():
            if name not in OPS:
                raise UsageError(
                    "mixed-precision", f"no operator is named {name!r}{unknown(name, 'R.')}"
                )
            if word not in get_args(Mixed):
                raise UsageError(
                    "mixed-precision",
                    f"{name} is computed in {self.dtype} {', '.join(get_args(Mixed))}, got {word!r}",
                )

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        found = _Narrower(mod, self).run()
        return mod if found is mod else DeadCodeElimination().run(found, ctx)


class _Narrower(Rebuilder):
    def __init__(self, mod: IRModule, step: MixedPrecision) -> None:
        super().__init__(mod)
        self.table, self.dtype = step.table, DType(step.dtype)
        self._exact: _Known = {}
        """The float32 variables that are narrow ones converted, and those."""
        self._rounded: _Known = {}
        """Other float32 variables, and the narrow ones that they were rounded to."""
        self._fields: dict[Var, tuple[Expr, ...]] = {}
        """The variables of tuples with such fields, and the fields."""
        self._weights: set[Var] = set()
        self._constants: dict[int, tuple[Constant, Constant]] = {}
        """Constants by identity, and what they were rounded to: a weight of several functions is rounded once."""
        self._made: Expr | tuple[Expr, ...] | None = None
        """The narrow value of the variable that is being bound, or the fields of its tuple."""
        self._name = ""

    def function(self, function: Function) -> Function:
        self._weights.update(trailing_weights(function))
        return super().function(function)

    def seq(self, seq: SeqExpr, function: Function | None = None) -> SeqExpr:
        # What is bound in a branch is not visible after it.
        outer = self._exact, self._rounded, self._fields
        self._exact, self._rounded, self._fields = (dict(known) for known in outer)  # type: ignore[assignment]
        found = super().seq(seq, function)
        self._exact, self._rounded, self._fields = outer
        return found

    def binding(self, binding: Binding) -> None:
        self._made, self._name = None, f"{binding.var.name}_{self.dtype}"
        super().binding(binding)

    def define(self, var: Var, annotation: Annotation, value: Expr) -> Var:
        found = super().define(var, annotation, value)
        if isinstance(self._made, tuple):
            self._fields[found] = self._made
        elif self._made is not None:
            self._exact[found] = self._made, self.bindings
        return found

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=Astype(dtype="float32"), args=(inner,)) if self._is(inner, self.dtype):
                self._made = inner  # the user's own conversion
            case Call(op=Op() as op):
                return self._call(value, op)
            case Var():
                self._made = self._find(self._exact, value) or self._fields.get(value)
            case TupleGetItem(tuple=Var() as whole, index=index) if whole in self._fields:
                item = self._fields[whole][index]
                self._made = self._find(self._exact, item)
                return item
            case _:
                pass
        return value

    def _call(self, call: Call, op: Op) -> Expr:
        policy = self.table.get(op.name, op.mixed)
        wide = [x for x in leaves_of(call.args) if self._is(x, _WIDE)]
        if policy == "never" or not wide or not all(map(self._may_change, leaves_of(call.args))):
            return call
        if policy == "follow" and not self._follow(wide):
            return call
        before = deduce(call, self.mod)
        narrow = dataclasses.replace(call, args=tuple(map(self._narrow, call.args)))
        after = deduce(narrow, self.mod)
        return narrow if after == before else self._widened(narrow, after)

    def _widened(self, narrow: Call, after: Annotation) -> Expr:
        """The result of a narrow call, converted to the dtypes that it had before."""
        if not isinstance(after, TupleType):
            self._made = self.emit(narrow, self._name, after)
            return Astype(_WIDE)(self._made)
        whole, fields = self.emit(narrow, self._name, after), list[Expr]()
        for index in range(len(after.fields)):
            item: Expr = self.emit(TupleGetItem(whole, index), f"{self._name}_{index}")
            if self._is(item, self.dtype):
                narrowed, item = item, self.emit(Astype(_WIDE)(item))
                self._exact[item] = narrowed, self.bindings
            fields.append(item)
        self._made = tuple(fields)
        return Tuple(self._made)

    def _narrow(self, expr: Expr) -> Expr:
        """An argument in the narrow dtype, if it is float32."""
        if isinstance(expr, Tuple):
            return dataclasses.replace(expr, fields=tuple(map(self._narrow, expr.fields)))
        if not self._is(expr, _WIDE):
            return expr
        if isinstance(expr, PrimValue):
            return PrimValue(expr.value, self.dtype, span=expr.span)
        if isinstance(expr, Constant):
            return self._constant(expr)
        found = self._find(self._exact, expr) or self._find(self._rounded, expr)
        if found is None:
            expr = expect(Var, expr)
            found = self.emit(Astype(self.dtype)(expr), f"{expr.name}_{self.dtype}")
            self._rounded[expr] = found, self.bindings
        return found

    def _constant(self, constant: Constant) -> Constant:
        if id(constant) not in self._constants:
            data = constant.data.astype(self.dtype.numpy)
            self._constants[id(constant)] = constant, Constant.shared(data, span=constant.span)
        return self._constants[id(constant)][1]

    def _follow(self, wide: Sequence[Expr]) -> bool:
        """Does an operator of these arguments lose no more than the rounding of a weight if they are narrow?"""
        found = [self._find(self._exact, x) is not None for x in wide]
        free = (isinstance(x, PrimValue | Constant) or x in self._weights for x in wide)
        return any(found) and all(a or b for a, b in zip(found, free, strict=True))

    def _holds(self, data: np.ndarray) -> bool:
        """Do all finite numbers stay finite?"""
        with np.errstate(over="ignore"):
            return not np.any(np.isfinite(data) & ~np.isfinite(data.astype(self.dtype.numpy)))

    def _find(self, known: _Known, expr: Expr) -> Expr | None:
        """The narrow value of a variable, if it is visible here."""
        found, block = known.get(expr, (None, None)) if isinstance(expr, Var) else (None, None)
        visible = not isinstance(found, DataflowVar) or block is self.bindings
        return found if visible else None

    def _may_change(self, expr: Expr) -> bool:
        """Is an argument known well enough, in no float dtype of the user's choice, and small enough?"""
        if isinstance(expr, Constant) and self._is(expr, _WIDE):
            return self._holds(expr.data)
        if isinstance(expr, PrimValue) and isinstance(expr.value, float):
            return self._holds(np.array(expr.value, np.float32))
        match deduce(expr, self.mod):
            case TensorType(dtype=None):
                return False
            case TensorType(dtype=dtype) | PrimType(dtype=dtype) if dtype is not None:
                return not dtype.is_float or dtype in (_WIDE, self.dtype)
            case TupleType():
                return False  # a variable: its fields are not at hand
            case _:
                return True

    def _is(self, expr: Expr, dtype: DType) -> bool:
        """Is it a tensor or a scalar of this dtype?"""
        found = deduce(expr, self.mod)
        return isinstance(found, TensorType | PrimType) and found.dtype == dtype
