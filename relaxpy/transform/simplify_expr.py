"""SimplifyExpr: replace expressions by simpler ones that compute the same bits, by a table."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, TypeAlias

import numpy as np

from relaxpy.analysis.called_operators import bindings_in
from relaxpy.analysis.escape import escaping
from relaxpy.analysis.in_place import state
from relaxpy.analysis.removable import Removable
from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    ShapeExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.op import Operator
from relaxpy.ir.visitor import used_vars
from relaxpy.op.base import OPS, Op
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.join import Concat
from relaxpy.op.manipulate import BroadcastTo, ExpandDims, Squeeze
from relaxpy.op.row_major import Flatten, Reshape
from relaxpy.shape.bounds import assuming, bounds_of
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.rebuild import Rebuilder

ANY, FLOATS, INTS, BOOLS, SIGNED = "any", "floats", "ints", "bools", "signed"
_ROUNDINGS = ("floor", "ceil", "round", "trunc")
FORMULAS: tuple[tuple[str, str, str], ...] = (
    # A neutral constant. What is added to a float is -0.0: 0.0 would make 0.0 of -0.0.
    ("multiply(x, 1)", "x", ANY),
    ("divide(x, 1)", "x", ANY),
    ("subtract(x, 0)", "x", ANY),
    ("add(x, 0)", "x", INTS),
    ("add(x, -0.0)", "x", FLOATS),
    ("bitwise_or(x, 0)", "x", INTS),
    ("bitwise_xor(x, 0)", "x", INTS),
    ("left_shift(x, 0)", "x", INTS),
    ("right_shift(x, 0)", "x", INTS),
    # The same twice.
    ("maximum(x, x)", "x", ANY),
    ("minimum(x, x)", "x", ANY),
    ("bitwise_and(x, x)", "x", INTS),
    ("bitwise_or(x, x)", "x", INTS),
    ("logical_and(x, x)", "x", BOOLS),
    ("logical_or(x, x)", "x", BOOLS),
    ("where(y, x, x)", "x", ANY),
    ("negative(negative(x))", "x", ANY),
    ("bitwise_not(bitwise_not(x))", "x", INTS),
    ("logical_not(logical_not(x))", "x", BOOLS),
    ("abs(abs(x))", "abs(x)", ANY),
    ("nn.relu(nn.relu(x))", "nn.relu(x)", ANY),
    ("sign(sign(x))", "sign(x)", ANY),
    *(
        (f"{outer}({inner}(x))", f"{inner}(x)", FLOATS)
        for outer, inner in itertools.product(_ROUNDINGS, _ROUNDINGS)
    ),
    # Signs.
    ("abs(negative(x))", "abs(x)", SIGNED),
    ("square(negative(x))", "square(x)", ANY),
    ("square(abs(x))", "square(x)", ANY),
    ("multiply(x, -1)", "negative(x)", ANY),
    ("add(x, negative(y))", "subtract(x, y)", ANY),
    ("subtract(x, negative(y))", "add(x, y)", ANY),
    ("multiply(negative(x), negative(y))", "multiply(x, y)", ANY),
    ("divide(negative(x), negative(y))", "divide(x, y)", FLOATS),
    # Conditions.
    ("logical_not(equal(x, y))", "not_equal(x, y)", ANY),
    ("logical_not(not_equal(x, y))", "equal(x, y)", ANY),
    ("logical_not(less(x, y))", "greater_equal(x, y)", INTS),
    ("logical_not(greater(x, y))", "less_equal(x, y)", INTS),
    ("logical_not(less_equal(x, y))", "greater(x, y)", INTS),
    ("logical_not(greater_equal(x, y))", "less(x, y)", INTS),
    ("where(logical_not(y), x, z)", "where(y, z, x)", ANY),
)
"""Expression, a simpler one with the same bits, and the dtypes of its variables (of `x`, for `y` a condition) for which
that is so: of NaN, infinities, -0.0, and integers that overflow, too."""


@dataclass(frozen=True)
class SimplifyExpr(Pass):
    """Replace expressions by simpler ones that compute the same bits (Relay's `SimplifyExpr`): those of the table
    `FORMULAS`, chains of reshapes, broadcasts and conversions that lose nothing on the way, a concatenation of one
    tensor. What only rounds alike is not in the table. An expression stays if its shape would be another (`x * 1` where
    1 has more rows), if it is checked when the program runs, and where it is the function's result and would be an
    argument.

    Before:
        @R.function
        def main(
            x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("n", 4), "float32")
        ) -> R.Tensor(("n", 2, 2), "float32"):
            n = T.int64()
            a = R.multiply(x, R.const(1.0, "float32"))
            b = R.negative(y)
            c = R.add(a, b)
            d = R.abs(c)
            e = R.reshape(d, (n * 4,))
            f = R.reshape(e, (n, 2, 2))
            return f
    After:
        @R.function
        def main(
            x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("n", 4), "float32")
        ) -> R.Tensor(("n", 2, 2), "float32"):
            n = T.int64()
            b = R.negative(y)
            c = R.subtract(x, y)
            d = R.abs(c)
            e = R.reshape(d, (n * 4,))
            f = R.reshape(d, (n, 2, 2))
            return f
    """

    name: ClassVar[str] = "simplify-expr"
    level: ClassVar[int] = 3
    formulas: tuple[tuple[str, str, str], ...] = FORMULAS

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        rules = _rules(self.formulas)

        def change(_: str, function: Function) -> Function:
            with assuming(bounds_of(function)):
                if not _Simplifier(mod, function, rules).finds_any(function):
                    return function
                found = _Simplifier(mod, function, rules).function(function)
            return function if found is function else with_outputs(found)

        return mod.map_graph_functions(change)


Formula: TypeAlias = "str | float | tuple[str, tuple[Formula, ...]]"
"""A variable, a number, or an operator with its operands."""


@cache
def formula_of(text: str) -> Formula:
    """Read a formula such as `add(x, nn.relu(-0.0))`."""
    return _read(ast.parse(text, mode="eval").body)


def _read(node: ast.expr) -> Formula:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Call(func=func, args=args):
            return ast.unparse(func), tuple(map(_read, args))
        case _:
            return float(ast.literal_eval(node))


_Rule: TypeAlias = tuple[Formula, Formula, str]
_COMMUTE = ("add", "multiply", "maximum", "minimum", "equal", "not_equal", "bitwise_and", "bitwise_or",
            "bitwise_xor", "logical_and", "logical_or")  # fmt: skip


@cache
def _rules(formulas: tuple[tuple[str, str, str], ...]) -> Mapping[str, Sequence[_Rule]]:
    """The formulas by the operator that they begin with."""
    found: dict[str, list[_Rule]] = {}
    for before, after, dtypes in formulas:
        old = formula_of(before)
        assert isinstance(old, tuple)
        found.setdefault(old[0], []).append((old, formula_of(after), dtypes))
    return found


def is_of(dtype: DType, dtypes: str) -> bool:
    """Is a dtype one of these?"""
    match dtypes:
        case "floats":
            return dtype.is_float
        case "ints":
            return dtype.is_int
        case "bools":
            return dtype.is_bool
        case "signed":
            return not dtype.is_bool and not dtype.startswith("u")
        case _:
            return True


class _Simplifier(Rebuilder):
    def __init__(
        self, mod: IRModule, function: Function, rules: Mapping[str, Sequence[_Rule]]
    ) -> None:
        super().__init__(mod)
        self.rules = rules
        self.pure = function.pure
        self.kept = state(function)
        """Memory of the caller: a pass neither adds nor removes uses of it."""
        self.returned = escaping(function)
        self.removable = Removable(mod)
        self.values: dict[Var, Call] = {}
        """The calls so far."""

    def binding(self, binding: Binding) -> None:
        new = None
        if (
            isinstance(binding, VarBinding)
            and isinstance(binding.value, Call)
            and self.has_rules(binding.value.op)
        ):
            value = expect(Call, self.use(binding.value))
            new = self.simpler(binding, value)
        if isinstance(new, (Var, Constant)):
            self.vars[binding.var] = new
            return
        if new is not None:
            binding = VarBinding(binding.var, new, span=binding.span)
        super().binding(binding)
        (*_, last) = self.bindings
        if isinstance(last.value, Call):
            self.values[last.var] = last.value

    def finds_any(self, function: Function) -> bool:
        """Is there a simpler form of a call? To rebuild a function takes longer."""
        for binding in bindings_in(function):
            call = binding.value
            if not isinstance(call, Call):
                continue
            try:
                if self.has_rules(call.op) and self.simplest(call) is not None:
                    return True
            except DeduceError:
                return True  # of a call that is to be left alone
            self.values[binding.var] = call
        return False

    def has_rules(self, op: Operator | Expr) -> bool:
        return isinstance(op, Op) and (op.name in self.rules or isinstance(op, _CHANGED))

    def simpler(self, binding: Binding, call: Call) -> Expr | None:
        """A simpler expression for the value of a binding; None if there is none."""
        try:
            found = self.simplest(call)
            if found is None or not self.removable(binding):
                return None
            kind, new = deduce(call, self.mod), deduce(found, self.mod)
        except DeduceError:
            return None
        if not isinstance(kind, TensorType):
            return None
        both = (accepts(kind, new, None, equal), accepts(new, kind, None, equal))
        if both != (Verdict.YES, Verdict.YES):
            return None
        is_alias = not isinstance(found, Call)
        if is_alias and (not self.pure or binding.var in self.returned):
            return None
        return found if self.kept.isdisjoint(used_vars(found)) else None

    def simplest(self, call: Call) -> Expr | None:
        """What is left after as many steps as there are."""
        found: Expr | None = None
        while isinstance(call.op, Op):
            new = self.by_formula(call) or self.by_function(call)
            if new is None:
                return found
            found = new
            if not isinstance(new, Call):
                return found
            call = new
        return found

    def by_function(self, call: Call) -> Expr | None:
        found = (change(self, call) for kinds, change in _CHANGES if isinstance(call.op, kinds))
        return next((each for each in found if each is not None), None)

    # Formulas

    def by_formula(self, call: Call) -> Expr | None:
        if not isinstance(call.op, Op):
            return None
        for old, new, dtypes in self.rules.get(call.op.name, ()):
            holes: dict[str, Expr] = {}
            if not self.matches(old, call, holes):
                continue
            kind = deduce(holes["x"], self.mod)
            if (
                isinstance(kind, TensorType)
                and kind.dtype is not None
                and is_of(kind.dtype, dtypes)
            ):
                return self.written(new, holes, kind.dtype)
        return None

    def matches(self, formula: Formula, expr: Expr, holes: dict[str, Expr]) -> bool:
        """Is the expression of this form? Fills in the variables."""
        match formula:
            case str():
                return _same(holes.setdefault(formula, expr), expr)
            case (name, parts):
                call = self.values.get(expr) if isinstance(expr, Var) else expr
                if (
                    not isinstance(call, Call)
                    or not isinstance(call.op, Op)
                    or call.op.name != name
                ):
                    return False
                if len(call.args) != len(parts) or call.op != type(call.op)():
                    return False
                orders = [call.args, call.args[::-1]] if name in _COMMUTE else [call.args]
                for args in orders:
                    trial = dict(holes)
                    if all(self.matches(p, arg, trial) for p, arg in zip(parts, args, strict=True)):
                        holes.update(trial)
                        return True
                return False
            case number:
                return _is_number(expr, number)

    def written(self, formula: Formula, holes: Mapping[str, Expr], dtype: DType) -> Expr:
        match formula:
            case str():
                return holes[formula]
            case (name, parts):
                return OPS[name]()(*(self.written(part, holes, dtype) for part in parts))
            case number:
                return Constant(np.asarray(number, dtype.numpy))

    # Chains of one kind

    def source(self, call: Call, kinds: tuple[type[Op], ...]) -> Call | None:
        """The call that computes the first argument, if it is one of these operators."""
        (first, *_) = call.args
        made = self.values.get(first) if isinstance(first, Var) else None
        return made if made is not None and isinstance(made.op, kinds) else None

    def reshaped_twice(self, call: Call) -> Expr | None:
        """`reshape(reshape(x, s), t)` → `reshape(x, t)`, where both have all elements in the same order. Axes that are
        only added stay named: patterns of attention's masks read them."""
        inner = self.source(call, RESHAPES)
        kind = None if inner is None else deduce(call, self.mod)
        if inner is None or not isinstance(kind, TensorType) or kind.dims is None:
            return None
        x = inner.args[0]
        if isinstance(call.op, ExpandDims) and isinstance(inner.op, ExpandDims):
            added = call.op.places(kind.ndim)
            rest = [axis for axis in range(kind.ndim) if axis not in added]
            added = sorted((*added, *(rest[axis] for axis in inner.op.places(len(rest)))))
            return ExpandDims(tuple(added))(x)
        return Reshape()(x, ShapeExpr(kind.dims))

    def broadcast_twice(self, call: Call) -> Expr | None:
        inner = self.source(call, (BroadcastTo,))
        return None if inner is None else BroadcastTo()(inner.args[0], *call.args[1:])

    def converted_twice(self, call: Call) -> Expr | None:
        """`astype(astype(x, wide), t)` → `astype(x, t)`, if all values of x are values of the wide dtype."""
        inner = self.source(call, (Astype,))
        if inner is None:
            return None
        x, middle, kind = (deduce(e, self.mod) for e in (inner.args[0], inner, call))
        if not (
            isinstance(x, TensorType)
            and isinstance(middle, TensorType)
            and isinstance(kind, TensorType)
        ):
            return None
        if not (x.dtype and middle.dtype and kind.dtype) or not holds(middle.dtype, x.dtype):
            return None
        return inner.args[0] if x.dtype == kind.dtype else Astype(kind.dtype)(inner.args[0])

    def joined_alone(self, call: Call) -> Expr | None:
        match call:
            case Call(op=Concat(axis=int()), args=(Tuple(fields=(x,)),)):
                return x
            case _:
                return None


RESHAPES = (Reshape, Flatten, ExpandDims, Squeeze)
_CHANGES: tuple[tuple[tuple[type[Op], ...], Callable[[_Simplifier, Call], Expr | None]], ...] = (
    (RESHAPES, _Simplifier.reshaped_twice),
    ((BroadcastTo,), _Simplifier.broadcast_twice),
    ((Astype,), _Simplifier.converted_twice),
    ((Concat,), _Simplifier.joined_alone),
)
_CHANGED = tuple(kind for kinds, _ in _CHANGES for kind in kinds)


def holds(wide: DType, narrow: DType) -> bool:
    """Is every value of one dtype a value of another?"""
    if narrow.is_bool or wide == narrow:
        return True
    if wide.is_bool:
        return False
    if wide.is_float and narrow.is_float:
        return wide.bits > narrow.bits
    (low, high), (least, most) = wide.limits, narrow.limits
    return wide.is_int and narrow.is_int and low <= least and high >= most


def _same(a: Expr, b: Expr) -> bool:
    if isinstance(a, Constant) and isinstance(b, Constant):
        return a.data is b.data
    return a is b


def _is_number(expr: Expr, number: float) -> bool:
    """Is it a constant whose elements all are this number, with its sign?"""
    if not isinstance(expr, Constant) or expr.data.dtype == bool:
        return False
    values = expr.data.astype("float64") if DType(expr.data.dtype).is_float else expr.data
    signed = (
        number != 0 or values.dtype.kind != "f" or (np.signbit(values) == np.signbit(number)).all()
    )
    return bool(signed and (values == number).all())
