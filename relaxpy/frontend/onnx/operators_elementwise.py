"""Elementwise functions: arithmetic, comparisons, bits, casts, activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any
from typing import cast as typed

import numpy as np

from relaxpy import op
from relaxpy.frontend.onnx.arrays import dtype_of
from relaxpy.frontend.onnx.element_types import NAMES, NUMBERS, STORED
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.table import operator
from relaxpy.frontend.onnx.values import Absent
from relaxpy.ir import Constant, DType, Expr


def constant(value: Any, dtype: DType | str) -> Constant:
    """A number as a tensor without dimensions."""
    return Constant(np.asarray(value).astype(DType(dtype).numpy))


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, **_: Any) -> Any:
        return function(x)

    return rule


for _name, _function in {
    "Abs": op.abs, "Acos": op.acos, "Acosh": op.acosh, "Asin": op.asin, "Asinh": op.asinh, "Atan": op.atan,
    "Atanh": op.atanh, "Ceil": op.ceil, "Cos": op.cos, "Cosh": op.cosh, "Erf": op.erf, "Exp": op.exp,
    "Floor": op.floor, "Log": op.log, "Neg": op.negative, "Not": op.logical_not, "Relu": op.nn.relu,
    "Round": op.round, "Sigmoid": op.sigmoid, "Sign": op.sign, "Sin": op.sin, "Sinh": op.sinh, "Sqrt": op.sqrt,
    "Tan": op.tan, "Tanh": op.tanh, "IsNaN": op.isnan, "BitwiseNot": op.bitwise_not,
}.items():  # fmt: skip
    operator(_name)(_unary(_function))


@operator("Identity")
def identity(at: Site, x: Any, **_: Any) -> Any:
    return Absent() if x is None else x


@operator("Reciprocal")
def reciprocal(at: Site, x: Expr, **_: Any) -> Any:
    return op.divide(constant(1, at.dtype_of(x)), x)


# Two tensors


def aligned(at: Site, a: Expr, b: Expr, axis: int | None, broadcast: int) -> Expr:
    """The second tensor of an operator before version 7, whose first axis is the first one's `axis`."""
    if not broadcast or axis is None:
        return b
    last = at.ndim(a) - at.axis(axis, at.ndim(a)) - at.ndim(b)
    return at.emit(op.reshape(b, [*at.shape_of(b), *[1] * last])) if last > 0 else b


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        at: Site, a: Expr, b: Expr, axis: int | None = None, broadcast: int = 0, **_: Any
    ) -> Any:
        return function(a, aligned(at, a, b, axis, broadcast))

    return rule


for _name, _function in {
    "Add": op.add, "Sub": op.subtract, "Mul": op.multiply, "Div": op.divide, "And": op.logical_and,
    "Or": op.logical_or, "Xor": op.logical_xor, "Equal": op.equal, "Less": op.less, "Greater": op.greater,
    "LessOrEqual": op.less_equal, "GreaterOrEqual": op.greater_equal, "BitwiseAnd": op.bitwise_and,
    "BitwiseOr": op.bitwise_or, "BitwiseXor": op.bitwise_xor, "PRelu": None,
}.items():  # fmt: skip
    if _function is not None:
        operator(_name)(_binary(_function))


@operator("PRelu")
def prelu(at: Site, x: Expr, slope: Expr, **_: Any) -> Any:
    if at.version < 7 and at.ndim(slope) == 1:
        slope = aligned(at, x, slope, 1, 1)
    zero = constant(0, at.dtype_of(x))
    return op.where(op.less(x, zero), op.multiply(x, slope), x)


@operator("Pow")
def power(at: Site, a: Expr, b: Expr, axis: int | None = None, broadcast: int = 0, **_: Any) -> Any:
    """The exponent may be of another dtype; the result is of the base's."""
    b = aligned(at, a, b, axis, broadcast)
    dtype = at.dtype_of(a)
    found = at.known(b)
    if (
        found is not None
        and found.size == 1
        and float(found.reshape(-1)[0]) == 2
        and at.ndim(b) <= at.ndim(a)
    ):
        return op.multiply(a, a)
    if dtype.is_int and at.dtype_of(b).is_float:
        return at.cast(at.emit(op.power(at.cast(a, at.dtype_of(b)), b)), dtype)
    return op.power(a, at.cast(b, dtype))


@operator("Mod")
def mod(at: Site, a: Expr, b: Expr, fmod: int = 0, **_: Any) -> Any:
    return op.mod(a, b) if fmod else op.floor_mod(a, b)


def _variadic(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, *xs: Expr, **_: Any) -> Any:
        return reduce(lambda a, b: at.emit(function(a, b)), xs)

    return rule


operator("Sum")(_variadic(op.add))
operator("Max")(_variadic(op.maximum))
operator("Min")(_variadic(op.minimum))


@operator("Mean")
def mean(at: Site, *xs: Expr, **_: Any) -> Any:
    total = _variadic(op.add)(at, *xs)
    return op.divide(total, constant(len(xs), at.dtype_of(total)))


@operator("BitShift")
def bit_shift(at: Site, x: Expr, y: Expr, direction: str, **_: Any) -> Any:
    return op.left_shift(x, y) if direction == "LEFT" else op.right_shift(x, y)


@operator("Where")
def where(at: Site, condition: Expr, x: Expr, y: Expr, **_: Any) -> Any:
    return op.where(condition, x, y)


@operator("IsInf")
def is_inf(at: Site, x: Expr, detect_negative: int = 1, detect_positive: int = 1, **_: Any) -> Any:
    if not detect_negative and not detect_positive:
        return op.zeros(at.shape_of(x), "bool")
    if detect_negative and detect_positive:
        return op.isinf(x)
    infinity = constant(np.inf if detect_positive else -np.inf, at.dtype_of(x))
    return op.equal(x, infinity)


# Dtypes


def converted(at: Site, x: Expr, dtype: DType, saturate: bool = True) -> Any:
    """A cast as ONNX means it: floats beyond the range of a float of 8 bits are its largest number, or with `saturate`
    false infinite or NaN."""
    given = at.dtype_of(x)
    if given == dtype:
        return x
    if dtype.startswith("float8") and given.is_float and saturate:
        import ml_dtypes

        most = float(typed("Any", ml_dtypes.finfo(dtype.numpy)).max)
        wide = at.cast(x, "float32")
        x = at.emit(op.clip(wide, -most, most))
        if not given.startswith("float8"):
            x = at.emit(op.where(op.isnan(wide), wide, x))
    return at.cast(x, dtype)


@operator("Cast")
def cast(at: Site, x: Expr, to: Any, saturate: int = 1, **_: Any) -> Any:
    if isinstance(to, str):  # version 1
        to = NUMBERS.get({"FLOAT": "float32", "DOUBLE": "float64"}.get(to, to.lower()), 0)
    stored = NAMES.get(to, "")
    if stored not in STORED:
        return converted(at, x, dtype_of(to, at.span), bool(saturate))
    found = at.emit(op.astype(x, stored))
    at.importer.packed[found] = stored
    return found


@operator("CastLike")
def cast_like(at: Site, x: Expr, like: Expr, saturate: int = 1, **_: Any) -> Any:
    return converted(at, x, at.dtype_of(like), bool(saturate))


@operator("BitCast")
def bit_cast(at: Site, x: Expr, to: int, **_: Any) -> Any:
    return op.bitcast(x, dtype_of(to, at.span))


# Activations


@operator("Elu")
def elu(at: Site, x: Expr, alpha: float = 1.0, **_: Any) -> Any:
    dtype = at.dtype_of(x)
    below = op.multiply(op.expm1(x), constant(alpha, dtype))
    return op.where(op.less(x, constant(0, dtype)), below, x)


@operator("Celu")
def celu(at: Site, x: Expr, alpha: float = 1.0, **_: Any) -> Any:
    dtype = at.dtype_of(x)
    factor = constant(alpha, dtype)
    below = op.multiply(op.expm1(op.divide(x, factor)), factor)
    return op.where(op.less(x, constant(0, dtype)), below, x)


@operator("Selu")
def selu(
    at: Site,
    x: Expr,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    **_: Any,
) -> Any:
    dtype = at.dtype_of(x)
    below = op.multiply(op.expm1(x), constant(alpha, dtype))
    found = op.where(op.less_equal(x, constant(0, dtype)), below, x)
    return op.multiply(found, constant(gamma, dtype))


@operator("LeakyRelu")
def leaky_relu(at: Site, x: Expr, alpha: float = 0.01, **_: Any) -> Any:
    return op.nn.leakyrelu(x, alpha)


@operator("ThresholdedRelu")
def thresholded_relu(at: Site, x: Expr, alpha: float = 1.0, **_: Any) -> Any:
    dtype = at.dtype_of(x)
    return op.where(op.greater(x, constant(alpha, dtype)), x, constant(0, dtype))


@operator("HardSigmoid")
def hard_sigmoid(at: Site, x: Expr, alpha: float = 0.2, beta: float = 0.5, **_: Any) -> Any:
    dtype = at.dtype_of(x)
    line = op.add(op.multiply(x, constant(alpha, dtype)), constant(beta, dtype))
    return op.minimum(op.maximum(line, constant(0, dtype)), constant(1, dtype))


@operator("HardSwish")
def hard_swish(at: Site, x: Expr, **_: Any) -> Any:
    return op.multiply(x, hard_sigmoid(at, x, 1 / 6, 0.5))


@operator("Swish")
def swish(at: Site, x: Expr, alpha: float = 1.0, **_: Any) -> Any:
    if alpha == 1.0:
        return op.nn.silu(x)
    return op.multiply(x, op.sigmoid(op.multiply(x, constant(alpha, at.dtype_of(x)))))


@operator("Softplus")
def softplus(at: Site, x: Expr, **_: Any) -> Any:
    return op.log_add_exp(x, constant(0, at.dtype_of(x)))


@operator("Softsign")
def softsign(at: Site, x: Expr, **_: Any) -> Any:
    return op.divide(x, op.add(op.abs(x), constant(1, at.dtype_of(x))))


@operator("Mish")
def mish(at: Site, x: Expr, **_: Any) -> Any:
    return op.multiply(x, op.tanh(softplus(at, x)))


@operator("Gelu")
def gelu(at: Site, x: Expr, approximate: str = "none", **_: Any) -> Any:
    return op.nn.gelu_tanh(x) if approximate == "tanh" else op.nn.gelu(x)


@operator("Shrink")
def shrink(at: Site, x: Expr, bias: float = 0.0, lambd: float = 0.5, **_: Any) -> Any:
    dtype = at.dtype_of(x)
    move, zero = constant(bias, dtype), constant(0, dtype)
    low = op.where(op.less(x, constant(-lambd, dtype)), op.add(x, move), zero)
    return op.where(op.greater(x, constant(lambd, dtype)), op.subtract(x, move), low)


@operator("Clip")
def clip(
    at: Site, x: Expr, low: Any = None, high: Any = None, min: Any = None, max: Any = None, **_: Any
) -> Any:
    """The bounds are attributes before version 11; the upper one wins."""
    dtype = at.dtype_of(x)
    low = constant(min, dtype) if low is None and min is not None else low
    high = constant(max, dtype) if high is None and max is not None else high
    known = [
        found for each in (low, high) if each is not None and (found := at.known(each)) is not None
    ]
    if dtype.is_float and len(known) == 2 and known[0] <= known[1]:
        return op.clip(x, *(float(each.reshape(-1)[0]) for each in known))
    if low is not None:
        x = at.emit(op.maximum(x, at.emit(op.reshape(low, ()))))
    return x if high is None else op.minimum(x, op.reshape(high, ()))
