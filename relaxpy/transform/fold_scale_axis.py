"""FoldScaleAxis: fold multiplications by constants into the weights of convolutions and matrix products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from relaxpy.analysis.called_operators import calls_in, calls_operator
from relaxpy.analysis.in_place import state, updated
from relaxpy.analysis.scaling import (
    RULES,
    Rule,
    Scale,
    Scales,
    Site,
    known,
    operands,
    with_operands,
)
from relaxpy.analysis.use_def import UseDef, use_def
from relaxpy.analysis.weights import memory_of
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Binding, Call, Constant, Expr, Function, TupleGetItem, Var, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.op.binary import Add, Divide, Multiply, Subtract
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.linear_algebra import Linear
from relaxpy.op.norm import BatchNorm
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.rebuild import Rebuilder

MODERATE = 2.0**32
"""A scale that passes through other operators is 0, or from 1 / MODERATE to MODERATE: the values between do not leave
the range of a float32 that the program's own stay well inside of."""
SMALL = 4096
"""A constant of so many elements may be stored twice."""
STEPS = 1000
"""The most calls that are looked at for one scale."""


@dataclass(frozen=True)
class FoldScaleAxis(Pass):
    """Fold multiplications and divisions by constants, of one number or one for each index of some axes, into weights
    (Relay's `FoldScaleAxis`, §4.6). A scale moves *backward*, to what computes the value, or *forward*, to all that
    read it, through the operators of the table in `relaxpy.analysis.scaling`, until constants absorb it: the weight of
    a convolution, a transposed convolution, a linear layer or a matrix product, a bias, another scale. If one path ends
    elsewhere, the multiplication stays. A constant that is added to a sum of products moves into the constant that was
    added before it, or the bias.

    Batch normalisation at inference, with constant statistics and weights, becomes a scale and a shift first (TVM:
    `DecomposeOpsForInference` and `FoldBatchnormToConv2D`); its moving statistics are returned unchanged.

    **What stays equal.** Results differ by a few roundings of the terms that a product adds, as those of another order
    of additions do. A scale is finite; it is above 0 where an order decides (relu, maxima); no weight becomes infinite
    or loses digits in the range of subnormal numbers. NaN and infinities in the data give the same NaN and infinities.
    Only the sign of a zero, and values that leave the dtype's range in one form and not in the other, may differ.
    Rounding weights of float16 and bfloat16 would lose more than rounding a result: these are scaled by powers of two
    only, and normalised in float32. Shifts do not move forward: subtracting a mean from the data is more exact than
    subtracting its product with the weight from the result.

    Before:
        @R.function
        def main(x: R.Tensor(("n", 1, 8), dtype="float32")) -> R.Tensor(("n", 1, 8), dtype="float32"):
            n = T.int64()
            with R.dataflow():
                y = R.nn.conv1d(x, R.const([[[3.0]]], dtype="float32"))
                normal = R.nn.batch_norm(
                    y,
                    R.const([4.0], dtype="float32"),
                    R.const([1.0], dtype="float32"),
                    R.const([5.0], dtype="float32"),
                    R.const([4.0], dtype="float32"),
                    axis=1,
                    epsilon=0.0,
                    training=False,
                )
                a = normal[0]
                b = R.nn.relu(a)
                z = R.multiply(b, R.const(0.5, dtype="float32"))
                R.output(z)
            return z
    After:
        @R.function
        def main(x: R.Tensor(("n", 1, 8), dtype="float32")) -> R.Tensor(("n", 1, 8), dtype="float32"):
            n = T.int64()
            with R.dataflow():
                y = R.nn.conv1d(x, R.const([[[3.0]]], dtype="float32"))
                a = R.add(y, R.const([[-4.5]], dtype="float32"))
                b = R.nn.relu(a)
                R.output(b)
            return b
    """

    name: ClassVar[str] = "fold-scale-axis"
    level: ClassVar[int] = 3

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        def change(_: str, function: Function) -> Function:
            if calls_operator(function, BatchNorm):
                function = _Normaliser(mod, function).function(function)
            if not calls_operator(function, Multiply, Divide, Add, Subtract):
                return function
            folder = _Folder(mod, function)
            if not folder.fold():
                return function
            return with_outputs(_Writer(mod, folder.calls, folder.gone).function(function))

        return mod.map_graph_functions(change)


class _Normaliser(Rebuilder):
    """Writes batch normalisations by constants as a multiplication and an addition. They are bound where their result
    is first read."""

    def __init__(self, mod: IRModule, function: Function) -> None:
        super().__init__(mod)
        self.uses_of: UseDef = use_def(function)
        self.held: dict[Var, Call] = {}
        self.done: dict[Var, Expr] = {}

    def binding(self, binding: Binding) -> None:
        if self.is_constant(binding):
            call = expect(Call, self.use(binding.value))
            self.held[binding.var] = call
            return
        super().binding(binding)
        match binding.value:
            case TupleGetItem(tuple=Var() as normal, index=0) if normal in self.held:
                self.done.setdefault(normal, self.bindings[-1].var)
            case _:
                pass

    def is_constant(self, binding: Binding) -> bool:
        """Is this a normalisation, along an axis of known size, by constants of which only fields are used?"""
        match binding:
            case VarBinding(value=Call(op=BatchNorm(training=False) as op, args=(x, *numbers))):
                if not all(isinstance(number, Constant) for number in numbers):
                    return False
            case _:
                return False
        kind = known(x.annotation) if isinstance(x, Var) else None
        if kind is None or kind.dims[op.axis].value is None:
            return False
        users = self.uses_of.users(binding.var)
        return all(
            isinstance(user, VarBinding) and isinstance(user.value, TupleGetItem) for user in users
        )

    def value(self, value: Expr) -> Expr:
        match value:
            case TupleGetItem(tuple=Var() as normal, index=index) if normal in self.held:
                call = self.held[normal]
            case _:
                return value
        if index > 0:
            return call.args[index + 2]
        return self.done.get(normal) or self.normalised(call)

    def normalised(self, call: Call) -> Expr:
        """Emit the first result of a normalisation."""
        op, (x, *numbers) = expect(BatchNorm, call.op), call.args
        arrays = [number.data for number in numbers if isinstance(number, Constant)]
        gamma, beta, mean, variance = (array.astype("float64") for array in arrays)
        with np.errstate(all="ignore"):
            factor = 1 / np.sqrt(variance + op.epsilon)
            factor = factor * gamma if op.scale else factor
            summand = (beta if op.center else 0) - mean * factor
        kind = expect(TensorType, deduce(x, self.mod))
        shape, dtype = (-1, *(1,) * (kind.ndim - 1 - op.axis % kind.ndim)), DType(arrays[0].dtype)
        wide = DType("float32") if dtype.is_narrow else dtype
        if wide != dtype:
            x = self.emit(Astype(wide)(x), "wide")
        by, shift = (
            Constant.shared(each.astype(wide.numpy).reshape(shape)) for each in (factor, summand)
        )
        found = Add()(self.emit(Multiply()(x, by), "scaled"), shift)
        return found if wide == dtype else Astype(dtype)(self.emit(found, "normal"))


class _Plan:
    """The calls that change if a scale moves."""

    def __init__(self) -> None:
        self.calls: dict[Var, Call] = {}
        self.scales: dict[Var, Scale] = {}
        """The values that are computed scaled."""


class _Folder:
    """Finds what is folded: `calls` are the new values of variables, `gone` those that are others now."""

    def __init__(self, mod: IRModule, function: Function) -> None:
        self.mod = mod
        self.function = function
        self.uses = use_def(function)
        self.calls: dict[Var, Call] = {}
        self.gone: dict[Var, Var] = {}
        self.kept = state(function) | updated(function.body)
        """Memory that a call updates, of which uses stay as they are."""
        self.names: dict[Var, list[Var]] = {}
        """The variables that are another one now, by that one."""
        memory = (
            memory_of(arg)
            for call in calls_in(function)
            for arg in operands(call)
            if isinstance(arg, Constant) and arg.data.size > SMALL
        )
        self.left = STEPS
        self.twice = {key for key, count in Counter(memory).items() if count > 1}
        """Large weights that are read at several places: a scaled one would be stored beside them."""

    def fold(self) -> bool:
        """Fold all that can be; return whether anything was."""
        found, before = True, 0
        while found:
            self.fold_each()
            found, before = len(self.gone) > before, len(self.gone)
        return before > 0

    def fold_each(self) -> None:
        for var, definition in self.uses.definitions.items():
            if var in self.gone:
                continue
            if not isinstance(definition, VarBinding) or not isinstance(definition.value, Call):
                continue
            self.fold_shift(var)
            source = self.scaled(var)
            if source is None:
                continue
            x, scale = source
            for moved in (self.back, partial(self.forth, var)):
                self.left, plan = STEPS, _Plan()
                if moved(x, scale, plan):
                    self.calls.update(plan.calls)
                    self.rename(var, x)
                    break

    def rename(self, var: Var, x: Var) -> None:
        self.gone[var] = x
        self.names.setdefault(x, []).extend((var, *self.names.pop(var, ())))

    # What is known of the program, with what is folded already

    def current(self, var: Var, plan: _Plan) -> Call | None:
        """The call that computes a variable."""
        found = plan.calls.get(var) or self.calls.get(var)
        if found is not None:
            return found
        definition = self.uses.definitions.get(var)
        value = definition.value if isinstance(definition, VarBinding) else None
        return value if isinstance(value, Call) and isinstance(value.op, Op) else None

    def operands(self, call: Call) -> list[Expr]:
        """The operands of a call; a variable that is gone is another."""
        return [self.now(each) if isinstance(each, Var) else each for each in operands(call)]

    def now(self, var: Var) -> Var:
        while var in self.gone:
            var = self.gone[var]
        return var

    def users(self, var: Var) -> list[object]:
        """Those who read a variable, also by the names of variables that are this one now."""
        names = (var, *self.names.get(var, ()))
        found = [user for name in names for user in self.uses.users(name)]
        return [u for u in found if not (isinstance(u, VarBinding) and u.var in self.gone)]

    def site(self, call: Call) -> Site | None:
        """The call for its rule; None if the shape of the result is not known, or if it is no float."""
        result = known(deduce(call, self.mod))
        if result is None or not result.dtype.is_float:
            return None
        kinds = [known(deduce(each, self.mod)) for each in self.operands(call)]
        return Site(call.op, kinds, result)

    def scaled(self, var: Var) -> tuple[Var, Scale] | None:
        """The variable that this one is times a constant of no larger shape."""
        call = self.current(var, _Plan())
        if call is None or not isinstance(call.op, (Multiply, Divide)):
            return None
        match self.operands(call), call.op:
            case [Var() as x, Constant(data=data)], Divide():
                with np.errstate(all="ignore"):
                    scale = 1 / data.astype("float64")
            case (
                ([Var() as x, Constant(data=data)] | [Constant(data=data), Var() as x]),
                Multiply(),
            ):
                scale = data.astype("float64")
            case _:
                return None
        kind = known(x.annotation)
        if kind is None or not kind.dtype.is_float or not np.isfinite(scale).all():
            return None
        fitted = _fitted(scale, kind)
        return None if fitted is None else (x, fitted)

    # Moving a scale

    def back(self, expr: Expr, scale: Scale, plan: _Plan) -> bool:
        """Can a value that one call alone reads be computed with the scale?"""
        if not isinstance(expr, Var):
            return False
        if expr in plan.scales:
            return np.array_equal(plan.scales[expr], scale)
        kind = known(expr.annotation)
        fitted = None if kind is None else _fitted(scale, kind)
        if fitted is None or expr in self.kept or len(self.users(expr)) != 1:
            return False
        call = self.current(expr, plan)
        rule = _rule(call)
        if call is None or rule is None or not self.may_pass(rule, fitted):
            return False
        site = self.site(call)
        if site is None:
            return False
        ways = rule.backward(site, fitted)
        given = self.operands(call)
        for way in sorted(
            ways, key=lambda way: not all(isinstance(given[i], Constant) for i in way)
        ):
            trial = self.trial(plan)
            new = self.rescaled(call, way, trial, only_constants=rule.weighs)
            if new is not None:
                plan.calls, plan.scales = trial.calls, trial.scales
                plan.calls[expr], plan.scales[expr] = new, scale
                return True
        return False

    def forth(self, var: Var, x: Var, scale: Scale, plan: _Plan) -> bool:
        """Can all that read `var`, which is `x` with a scale, read `x`?"""
        plan.scales[var] = scale
        in_order = self.function.pure and x not in self.kept  # nothing changes x meanwhile
        return in_order and self.readers(var, scale, plan)

    def readers(self, var: Var, scale: Scale, plan: _Plan) -> bool:
        """Can all that read `var`, which has lost this factor, make up for it?"""
        users = self.users(var)
        if not users or var in self.kept:
            return False
        return all(
            isinstance(user, VarBinding) and self.reader(user.var, var, scale, plan)
            for user in users
        )

    def reader(self, user: Var, var: Var, scale: Scale, plan: _Plan) -> bool:
        """Can the call that computes `user` make up for it?"""
        call = self.current(user, plan)
        rule = _rule(call)
        if call is None or rule is None or user in plan.scales or not self.may_pass(rule, scale):
            return False
        given, site = self.operands(call), self.site(call)
        places = [i for i, each in enumerate(given) if each is var]
        if len(places) != 1 or site is None:
            return False
        for own, others in rule.forward(site, places[0], scale):
            trial = self.trial(plan)
            new = self.rescaled(call, others, trial, only_constants=rule.weighs)
            if new is None:
                continue
            trial.calls[user] = new
            if own is not None:
                trial.scales[user] = own
                if not self.readers(user, own, trial):
                    continue
            plan.calls, plan.scales = trial.calls, trial.scales
            return True
        return False

    def trial(self, plan: _Plan) -> _Plan:
        """A plan to go on with, which may be given up."""
        trial = _Plan()
        trial.calls, trial.scales = dict(plan.calls), dict(plan.scales)
        return trial

    def may_pass(self, rule: Rule, scale: Scale) -> bool:
        """May the scale pass through an operator?"""
        self.left -= 1
        if self.left < 0 or (rule.positive and not (scale > 0).all()):
            return False
        size = np.abs(scale[scale != 0])
        return rule.weighs or bool(((size <= MODERATE) & (size >= 1 / MODERATE)).all())

    def rescaled(
        self, call: Call, scales: Scales, plan: _Plan, *, only_constants: bool
    ) -> Call | None:
        """The call with these operands scaled; None if one cannot be."""
        new = self.operands(call)
        result = known(deduce(call, self.mod))
        for index, scale in scales.items():
            match new[index]:
                case Constant() as constant:
                    if memory_of(constant) in self.twice or result is None:
                        return None
                    found = _product(constant, scale)
                    if found is None:
                        return None
                    new[index] = found
                case Var() as var:
                    once = sum(each is var for each in new) == 1 or len(scales) == len(new)
                    if only_constants or not once or not self.back(var, scale, plan):
                        return None
                case _:
                    return None
        return with_operands(call, new)

    # Moving a shift

    def fold_shift(self, var: Var) -> None:
        """Move a constant that is added to a sum of products into the constant that was added before."""
        plan = _Plan()
        call = self.current(var, plan)
        if call is None or var in self.gone or not isinstance(call.op, (Add, Subtract)):
            return
        sign = -1 if isinstance(call.op, Subtract) else 1
        match self.operands(call):
            case [Var() as x, Constant(data=shift)]:
                pass
            case [Constant(data=shift), Var() as x] if sign == 1:
                pass
            case _:
                return
        kind, before = known(x.annotation), self.current(x, plan)
        if kind is None or kind.dtype.is_narrow or not kind.dtype.is_float or before is None:
            return
        fitted = _fitted(shift.astype("float64") * sign, kind)
        if fitted is None or len(self.users(x)) != 1 or x in self.kept:
            return
        found = self.shifted(before, fitted, plan)
        if found is not None:
            self.calls[x] = found
            self.rename(var, x)

    def shifted(self, call: Call, shift: np.ndarray, plan: _Plan) -> Call | None:
        """The sum with a constant more in the one that it has; None if it has none, or adds to no products."""
        given = self.operands(call)
        match given, call.op:
            case [Var() as x, Constant()], Add():
                index = 1
            case [Constant(), Var() as x], Add():
                index = 0
            case [_, _, Constant()], Linear():
                x, index = None, 2
            case _:
                return None
        if x is not None:
            made = self.current(x, plan)
            rule = _rule(made)
            if rule is None or not rule.weighs:
                return None
        constant = expect(Constant, given[index])
        total = constant.data.astype("float64") + shift
        new = total.astype(constant.data.dtype)
        if total.size > max(constant.data.size, shift.size) or not np.isfinite(new).all():
            return None
        given[index] = Constant.shared(_plain(new, constant.data.ndim), span=constant.span)
        return with_operands(call, given)


class _Writer(Rebuilder):
    """Writes the function with what was folded."""

    def __init__(self, mod: IRModule, calls: Mapping[Var, Call], gone: Mapping[Var, Var]) -> None:
        super().__init__(mod)
        self.calls, self.gone = calls, gone

    def binding(self, binding: Binding) -> None:
        var = binding.var
        if var in self.gone:
            self.vars[var] = self.use(self.gone[var])
            return
        if var in self.calls:
            binding = VarBinding(var, self.calls[var], span=binding.span)
        super().binding(binding)


def _rule(call: Call | None) -> Rule | None:
    """How a scale passes through a call, if it does."""
    return RULES.get(type(call.op)) if call is not None and isinstance(call.op, Op) else None


def _fitted(scale: np.ndarray, kind: TensorType) -> np.ndarray | None:
    """The array with the tensor's rank; None if its sizes are neither 1 nor the tensor's."""
    dims = kind.dims or ()
    more = scale.ndim - len(dims)
    if any(size != 1 for size in scale.shape[: max(more, 0)]):
        return None
    fitted = scale.reshape((*(1,) * -more, *scale.shape[max(more, 0) :]))
    fits = all(size == 1 or dim == size for size, dim in zip(fitted.shape, dims, strict=True))
    return fitted if fits else None


def _product(constant: Constant, scale: Scale) -> Constant | None:
    """The constant times a scale; None if digits would be lost: it overflows, or is rounded in the range of subnormal
    numbers more than beside the largest number that has the same scale, or is narrow and rounded at all."""
    data = constant.data
    dtype = DType(data.dtype)
    if not dtype.is_float or not np.isfinite(data).all():
        return None
    exact = data.astype("float64") * scale
    if exact.size > max(data.size, scale.size):
        return None
    with np.errstate(all="ignore"):
        new = exact.astype(dtype.numpy)
    if not np.isfinite(new.astype("float64")).all():
        return None
    if dtype.is_narrow:
        if (new.astype("float64") != exact).any():
            return None
    else:
        tiny = float(np.finfo(dtype.numpy).tiny)
        lost = (np.abs(exact) < tiny) & ((data != 0) & (scale != 0))
        wide = scale.reshape((*(1,) * (exact.ndim - scale.ndim), *scale.shape))
        axes = tuple(axis for axis, size in enumerate(wide.shape) if size == 1)
        largest = np.abs(exact).max(axis=axes, keepdims=True, initial=0.0)
        if (lost & (largest < tiny)).any():
            return None
    return Constant.shared(_plain(new, data.ndim), span=constant.span)


def _plain(array: np.ndarray, ndim: int) -> np.ndarray:
    """The array without leading axes of size 1 that one of this rank did not have."""
    while array.ndim > ndim and array.shape[0] == 1:
        array = array[0]
    return np.ascontiguousarray(array).reshape(array.shape)
