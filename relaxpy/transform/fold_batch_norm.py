"""FoldBatchNorm: fold batch normalisation with constant statistics into the preceding convolution."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from relaxpy.analysis.called_operators import calls_operator
from relaxpy.analysis.use_def import Use, UseDef, use_def
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.op.binary import Add, Multiply
from relaxpy.op.conv import Convolution
from relaxpy.op.deduce import deduce
from relaxpy.op.norm import BatchNorm
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Replace batch normalisation at inference, with constant statistics and weights, by a scale and a shift per
    channel. The scale is folded into the weight of the preceding convolution if that weight is a constant used only
    there and the convolution's result has no other use. A constant bias between them becomes part of the shift.
    Otherwise the scale is a multiplication. The moving statistics are returned unchanged. Results differ by one or two
    roundings. (TVM: `DecomposeOpsForInference` and `FoldBatchnormToConv2D`.)

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
                z = normal[0]
                R.output(z)
            return z
    After:
        @R.function
        def main(x: R.Tensor(("n", 1, 8), dtype="float32")) -> R.Tensor(("n", 1, 8), dtype="float32"):
            n = T.int64()
            with R.dataflow():
                y = R.nn.conv1d(x, R.const([[[6.0]]], dtype="float32"))
                z = R.add(y, R.const([[-9.0]], dtype="float32"))
                R.output(z)
            return z
    """

    name: ClassVar[str] = "fold-batch-norm"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        def change(_: str, function: Function) -> Function:
            if not calls_operator(function, BatchNorm):
                return function
            return _Folder(mod, function).function(function)

        return mod.map_graph_functions(change)


class _Folder(Rebuilder):
    """Folded calls are not bound where they are visited, but where their result is first used."""

    def __init__(self, mod: IRModule, function: Function) -> None:
        super().__init__(mod)
        self.uses_of: UseDef = use_def(function)
        self.held: dict[Var, Call] = {}
        """Normalisations, convolutions and additions of biases to fold, with mapped arguments."""
        self.done: dict[Var, Expr] = {}
        """The results of the folded calls emitted so far."""

    def binding(self, binding: Binding) -> None:
        if self.is_folded(binding) or self.is_scaled(binding) or self.is_shifted(binding):
            call = self.use(binding.value)
            assert isinstance(call, Call)
            self.held[binding.var] = call
            return
        super().binding(binding)
        match binding.value:
            case TupleGetItem(tuple=Var() as normal, index=0) if normal in self.held:
                self.done.setdefault(normal, self.bindings[-1].var)
            case _:
                pass

    def is_folded(self, binding: Use) -> bool:
        """Is this a normalisation by constants of which only fields are used?"""
        match binding:
            case VarBinding(value=Call(op=BatchNorm(training=False) as op, args=(x, *numbers))):
                known = all(isinstance(number, Constant) for number in numbers)
            case _:
                return False
        if not known or not _is_known(x, op.axis):
            return False
        users = self.uses_of.users(binding.var)
        return all(
            isinstance(user, VarBinding) and isinstance(user.value, TupleGetItem) for user in users
        )

    def is_scaled(self, binding: Binding) -> bool:
        """Is this a convolution with a constant weight whose only use, perhaps after a bias, is a normalisation along
        its channels?"""
        match binding:
            case VarBinding(var=var, value=Call(op=Convolution() as op, args=(_, Constant()))):
                users = self.uses_of.users(var)
            case _:
                return False
        if any(layout.blocks for layout in op.layouts()):
            return False
        letters = op.layouts()[2].letters
        channel = letters.index("C")
        biased = _biased(users[0], channel, len(letters)) if len(users) == 1 else None
        if biased is not None:
            users = self.uses_of.users(biased)
        if op.out_dtype is not None or len(users) != 1 or not self.is_folded(users[0]):
            return False
        match users[0]:
            case VarBinding(value=Call(op=BatchNorm(axis=axis))):
                return channel == axis % len(letters)
            case _:
                return False

    def is_shifted(self, binding: Binding) -> bool:
        """Is this the addition of a bias to a convolution that is folded?"""
        value = getattr(binding, "value", None)
        return isinstance(value, Call) and any(
            isinstance(arg, Var) and isinstance(self.held[arg].op, Convolution)
            for arg in value.args
            if arg in self.held
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
        op, (x, *numbers) = call.op, call.args
        assert isinstance(op, BatchNorm)
        arrays = [number.data for number in numbers if isinstance(number, Constant)]
        gamma, beta, mean, variance = (array.astype("float64") for array in arrays)
        factor = 1 / np.sqrt(variance + op.epsilon)
        factor = factor * gamma if op.scale else factor
        x, bias = self.unbiased(x)
        summand = (beta if op.center else 0) + (bias - mean) * factor
        convolution = self.held.get(x) if isinstance(x, Var) else None
        of_x = deduce(x if convolution is None else convolution, self.mod)
        assert isinstance(of_x, TensorType)
        shape, dtype = (-1, *(1,) * (of_x.ndim - 1 - op.axis % of_x.ndim)), arrays[0].dtype
        if convolution is not None and isinstance(x, Var):
            product = self.emit(_scaled(convolution, factor), x.name)
        else:
            by = Constant.shared(factor.astype(dtype).reshape(shape))
            product = self.emit(Multiply()(x, by), "scaled")
        return Add()(product, Constant.shared(summand.astype(dtype).reshape(shape)))

    def unbiased(self, x: Expr) -> tuple[Expr, np.ndarray | int]:
        """A value without the bias that is to be folded, and that bias."""
        addition = self.held.get(x) if isinstance(x, Var) else None
        if addition is None or not isinstance(addition.op, Add):
            return x, 0
        a, b = addition.args
        x, bias = (b, a) if isinstance(a, Constant) else (a, b)
        assert isinstance(bias, Constant)
        return x, bias.data.astype("float64").reshape(-1)


def _biased(use: Use, channel: int, ndim: int) -> Var | None:
    """The sum, if a constant is added that has a number for each channel or one for all."""
    match use:
        case VarBinding(
            var=var,
            value=Call(op=Add(), args=(Constant(data=data), Var()) | (Var(), Constant(data=data))),
        ):
            shape = (*(1,) * (ndim - data.ndim), *data.shape)
            others = (*shape[:channel], *shape[channel + 1 :])
            return var if len(shape) == ndim and all(size == 1 for size in others) else None
        case _:
            return None


def _is_known(x: Expr, axis: int) -> bool:
    """Is the size of a tensor along an axis a known number?"""
    annotation = x.annotation if isinstance(x, Var) else None
    if not isinstance(annotation, TensorType) or annotation.dims is None:
        return False
    return annotation.dims[axis].value is not None


def _scaled(call: Call, factor: np.ndarray) -> Call:
    """Return the convolution with each output channel multiplied by a factor."""
    op, (data, weight) = call.op, call.args
    assert isinstance(op, Convolution)
    assert isinstance(weight, Constant)
    letters = op.layouts()[1].letters
    shape = [-1 if letter == "O" else 1 for letter in letters]
    scaled = (weight.data.astype("float64") * factor.reshape(shape)).astype(weight.data.dtype)
    return dataclasses.replace(call, args=(data, Constant.shared(scaled, span=weight.span)))
