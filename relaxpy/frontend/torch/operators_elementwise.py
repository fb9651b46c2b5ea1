"""Operators on each element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Constant, Dim, Expr, PrimType, PrimValue
from relaxpy.ir.dim import dim_op, product
from relaxpy.op.loop import while_loop

_UNARY: dict[str, Callable[..., Any]] = {
    "abs": op.abs, "acos": op.acos, "acosh": op.acosh, "asin": op.asin, "asinh": op.asinh,
    "atan": op.atan, "atanh": op.atanh, "bitwise_not": op.bitwise_not, "ceil": op.ceil,
    "cos": op.cos, "cosh": op.cosh, "digamma": op.digamma, "erf": op.erf,
    "erfc": op.erfc, "erfinv": op.erfinv, "lgamma": op.lgamma, "exp": op.exp, "floor": op.floor,
    "expm1": op.expm1, "log": op.log, "log10": op.log10,
    "log1p": op.log1p, "log2": op.log2, "neg": op.negative, "relu": op.nn.relu, "round": op.round, "rsqrt": op.rsqrt,
    "sigmoid": op.sigmoid, "silu": op.nn.silu, "sin": op.sin, "sinh": op.sinh, "sqrt": op.sqrt,
    "tan": op.tan, "tanh": op.tanh, "trunc": op.trunc,
    "i0": op.bessel_i0, "special_i0e": op.bessel_i0e, "special_i1": op.bessel_i1, "special_i1e": op.bessel_i1e,
    "special_erfcx": op.erfcx, "special_ndtri": op.ndtri, "special_log_ndtr": op.log_ndtr,
}  # fmt: skip
"""Functions of one tensor: the argument is converted to the dtype of the result first."""


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda at, x: function(at.cast(x, at.dtype))


for _name, _function in _UNARY.items():
    operator(f"{_name}.default")(_unary(_function))


@operator("clone.default", "alias.default", "lift_fresh_copy.default", "detach.default")
def clone(at: Site, x: Expr, *rest: Any) -> Expr:
    return x


@operator("_to_copy.default")
def to_copy(at: Site, x: Expr, *rest: Any) -> Expr:
    return at.cast(x, at.dtype)


@operator("isnan.default")
def isnan(at: Site, x: Expr) -> Any:
    return op.isnan(numbers(at, x))


@operator("isinf.default")
def isinf(at: Site, x: Expr) -> Any:
    return op.isinf(numbers(at, x))


def numbers(at: Site, x: Expr) -> Expr:
    """A tensor whose bools are numbers."""
    return at.cast(x, "int8") if at.dtype_of(x).is_bool else x


@operator("gelu.default")
def gelu(at: Site, x: Expr, approximate: str) -> Any:
    return op.nn.gelu_tanh(x) if approximate == "tanh" else op.nn.gelu(x)


@operator("leaky_relu.default")
def leaky_relu(at: Site, x: Expr, slope: float) -> Any:
    return op.nn.leakyrelu(x, alpha=float(slope))


@operator("rrelu_with_noise_functional.default")
def rrelu(
    at: Site, x: Expr, noise: Expr, low: float, high: float, training: bool, *rest: Any
) -> Any:
    if training:
        raise at.fail(
            "torch-operator", "rrelu draws its slopes in training", "call model.eval() first"
        )
    return op.nn.leakyrelu(x, alpha=(float(low) + float(high)) / 2), noise


def _greatest_common_divisor(at: Site, a: Any, b: Any) -> Any:
    """Euclid's algorithm, on all elements at once."""
    zero = op.full((), 0, at.dtype)

    def test(_: Any, b: Any) -> Any:
        return at.emit(op.any(at.emit(op.not_equal(b, zero))))

    def step(a: Any, b: Any) -> list[Any]:
        done = at.emit(op.equal(b, zero))
        return [at.emit(op.where(done, a, b)), at.emit(op.floor_mod(a, b))]

    given = [
        at.emit(op.abs(at.emit(op.broadcast_to(each, at.shape)))) for each in promoted(at, a, b)
    ]
    return while_loop(at.importer.builder, test, step, given, span=at.span)[0]


operator("gcd.default")(_greatest_common_divisor)


@operator("lcm.default")
def lcm(at: Site, a: Any, b: Any) -> Any:
    a, b = promoted(at, a, b)
    divisor = at.emit(_greatest_common_divisor(at, a, b))
    return op.abs(op.multiply(at.emit(op.floor_divide(a, divisor)), b))


@operator("sign.default", "sgn.default")
def sign(at: Site, x: Expr) -> Any:
    if not at.dtype.is_float:
        return x if at.dtype.is_bool else op.sign(x)
    return op.where(op.isnan(x), number(at, 0), op.sign(x))  # torch has no sign for a NaN


@operator("reciprocal.default")
def reciprocal(at: Site, x: Expr) -> Any:
    return op.divide(number(at, 1), at.cast(x, at.dtype))


@operator("round.decimals")
def round_decimals(at: Site, x: Expr, decimals: int) -> Any:
    if not at.dtype.is_float or not decimals:
        return op.round(x)
    scale = 10.0 ** abs(decimals)
    wide = at.cast(x, "float64" if at.dtype == "float64" else "float32")
    if decimals > 0:
        return op.divide(op.round(op.multiply(wide, scale)), scale)
    return op.multiply(op.round(op.divide(wide, scale)), scale)


@operator("elu.default")
def elu(at: Site, x: Expr, alpha: float, scale: float, input_scale: float) -> Any:
    below = op.multiply(op.expm1(_times(at, x, input_scale)), float(alpha * scale))
    return op.where(op.greater(x, 0.0), _times(at, x, scale), below)


def _times(at: Site, x: Any, factor: Any) -> Any:
    if factor == 1:
        return x
    return op.multiply(x, number(at, factor) if isinstance(factor, Expr) else factor)


@operator("hardtanh.default")
def hardtanh(at: Site, x: Expr, low: Any, high: Any) -> Any:
    return clamp(at, x, low, high)


@operator("clamp.default", "clamp.Tensor")
def clamp(at: Site, x: Expr, low: Any, high: Any) -> Any:
    x = at.cast(x, at.dtype)
    if low is not None:
        x = maximum(at, x, low)
    return x if high is None else minimum(at, x, high)


def promoted(at: Site, *values: Any) -> list[Any]:
    """Operands in the dtype of the result."""
    return [number(at, each) for each in values]


def common(at: Site, *values: Any) -> list[Any]:
    """Operands in the dtype that torch computes in, for results of another dtype such as bool."""
    import torch

    from relaxpy.frontend.torch.arrays import dtype_of

    known = [arg.meta["val"] if hasattr(arg, "meta") else arg for arg in at.node.args]
    dtype = dtype_of(torch.result_type(known[0], known[1]))
    return [
        at.cast(each, dtype) if isinstance(each, Expr) else op.full((), each, dtype)
        for each in values
    ]


@operator("add.Tensor", "add.Scalar")
def add(at: Site, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = promoted(at, x, y)
    if at.dtype.is_bool:
        return op.logical_or(x, y) if alpha else x
    return op.add(x, _times(at, y, alpha))


@operator("sub.Tensor", "sub.Scalar")
def sub(at: Site, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = promoted(at, x, y)
    return op.subtract(x, _times(at, y, alpha))


@operator("mul.Tensor", "mul.Scalar")
def mul(at: Site, x: Any, y: Any) -> Any:
    function = op.logical_and if at.dtype.is_bool else op.multiply
    return function(*promoted(at, x, y))


@operator("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(at: Site, x: Any, y: Any) -> Any:
    return op.divide(*promoted(at, x, y))


@operator("div.Tensor_mode", "div.Scalar_mode")
def div_mode(at: Site, x: Any, y: Any, mode: str | None) -> Any:
    x, y = promoted(at, x, y) if mode is None else _divided(at, x, y)
    if mode == "floor":
        return op.floor_divide(x, y)
    y = op.divide(x, y)
    return op.trunc(y) if mode == "trunc" and at.dtype.is_float else y


@operator("floor_divide.default", "floor_divide.Scalar")
def floor_divide(at: Site, x: Any, y: Any) -> Any:
    return op.floor_divide(*_divided(at, x, y))


@operator("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(at: Site, x: Any, y: Any) -> Any:
    return op.floor_mod(*_divided(at, x, y))


@operator("fmod.Tensor", "fmod.Scalar")
def fmod(at: Site, x: Any, y: Any) -> Any:
    return op.mod(*_divided(at, x, y))


def _divided(at: Site, x: Any, y: Any) -> list[Any]:
    """A dividend and a divisor in the dtype of the result; of integers, 0 is refused as a divisor of anything."""
    if at.dtype.is_int:
        elements = product(tuple(at.shape))
        if not isinstance(y, Expr):
            divides = dim_op("or", dim_op("eq", elements, 0), dim_op("ne", Dim.of(y), 0))
            at.check(divides, "the divisor is not 0")
        elif not isinstance(y, Constant) or not y.data.all():
            wrong = at.emit(op.equal(y, op.full((), 0, at.dtype_of(y))))
            refuse_where(at, wrong, "zero_divisors", dim_op("min", elements, 1))
    return promoted(at, x, y)


def refuse_where(at: Site, wrong: Expr, name: str, times: Any = 1) -> None:
    """Refuse the call if any element of `wrong` is True, by a number of this name that must be 0: their number, by
    `times`."""
    count = op.sum(op.astype(wrong, "int64"))
    if times != 1:
        count = op.multiply(at.emit(count), size_tensor(at, times))
    held = at.emit(op.tensor_to_scalar(at.emit(count, name)), name)
    at.match(held, PrimType("int64", 0), name)


@operator("atan2.default")
def atan2(at: Site, x: Any, y: Any) -> Any:
    return op.atan2(*promoted(at, x, y))


@operator("maximum.default")
def maximum(at: Site, x: Any, y: Any) -> Any:
    function = op.logical_or if at.dtype.is_bool else op.maximum
    return function(*promoted(at, x, y))


@operator("minimum.default")
def minimum(at: Site, x: Any, y: Any) -> Any:
    function = op.logical_and if at.dtype.is_bool else op.minimum
    return function(*promoted(at, x, y))


def _ignoring_nan(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Any, y: Any) -> Any:
        x, y = (at.emit(each) for each in promoted(at, x, y))
        if not at.dtype.is_float:
            return function(at, x, y)
        both = at.emit(op.where(op.isnan(y), x, function(at, x, y)))
        return op.where(op.isnan(x), y, both)

    return rule


operator("fmax.default")(_ignoring_nan(maximum))
operator("fmin.default")(_ignoring_nan(minimum))


@operator("nextafter.default")
def nextafter(at: Site, x: Any, y: Any) -> Any:
    return op.nextafter(*promoted(at, x, y))


@operator("angle.default")
def angle(at: Site, x: Expr) -> Any:
    """Of real numbers: 0, and π of negative ones."""
    x = at.emit(at.cast(x, at.dtype))
    half = op.where(op.less(x, number(at, 0.0)), number(at, math.pi), number(at, 0.0))
    return op.where(op.isnan(x), x, half)


@operator("view.dtype")
def view_dtype(at: Site, x: Expr, *rest: Any) -> Any:
    old = at.dtype_of(x)
    if old.bits != at.dtype.bits or old.is_bool or at.dtype.is_bool:
        raise at.fail(
            "torch-dtype", f"a view of {old} as {at.dtype}, of another width, is not supported"
        )
    return op.bitcast(x, at.dtype)


@operator("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(at: Site, x: Any, y: Any) -> Any:
    if y == 2 and not isinstance(y, Expr):
        return op.square(at.cast(x, at.dtype))
    if y == 0.5 and not isinstance(y, Expr):
        return op.sqrt(at.cast(x, at.dtype))
    if at.dtype.is_bool:  # x ** y: False only where x is False and y is True
        x, y = promoted(at, x, y)
        return op.logical_or(x, op.logical_not(y))
    return op.power(*promoted(at, x, y))


_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": op.equal, "ne": op.not_equal, "lt": op.less, "le": op.less_equal, "gt": op.greater,
    "ge": op.greater_equal,
}  # fmt: skip


def _comparison(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Any, y: Any) -> Any:
        return function(*(numbers(at, each) for each in common(at, x, y)))

    return rule


for _name, _function in _COMPARISONS.items():
    operator(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_function))

_BITS: dict[str, Callable[..., Any]] = {
    "and": op.bitwise_and, "or": op.bitwise_or, "xor": op.bitwise_xor,
}  # fmt: skip


def _bits(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda at, x, y: function(*promoted(at, x, y))


for _name, _function in _BITS.items():
    operator(*(f"bitwise_{_name}.{each}" for each in ("Tensor", "Scalar", "Scalar_Tensor")))(
        _bits(_function)
    )


@operator("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Tensor")
@operator("__lshift__.Scalar")
def left_shift(at: Site, x: Any, y: Any) -> Any:
    return op.left_shift(*promoted(at, x, y))


@operator("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Tensor")
@operator("__rshift__.Scalar")
def right_shift(at: Site, x: Any, y: Any) -> Any:
    return op.right_shift(*promoted(at, x, y))


def _truth(at: Site, x: Expr) -> Any:
    return at.cast(x, "bool")


@operator("logical_and.default")
def logical_and(at: Site, x: Expr, y: Expr) -> Any:
    return op.logical_and(_truth(at, x), _truth(at, y))


@operator("logical_or.default")
def logical_or(at: Site, x: Expr, y: Expr) -> Any:
    return op.logical_or(_truth(at, x), _truth(at, y))


@operator("logical_xor.default")
def logical_xor(at: Site, x: Expr, y: Expr) -> Any:
    return op.logical_xor(_truth(at, x), _truth(at, y))


@operator("logical_not.default")
def logical_not(at: Site, x: Expr) -> Any:
    return op.logical_not(_truth(at, x))


@operator("where.self")
def where(at: Site, condition: Expr, x: Expr, y: Expr) -> Any:
    return op.where(condition, *promoted(at, x, y))


@operator("where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where_scalar(at: Site, condition: Expr, x: Any, y: Any) -> Any:
    return op.where(condition, *(number(at, each) for each in (x, y)))


@operator("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(at: Site, x: Expr, mask: Expr, value: Any) -> Any:
    return op.where(mask, number(at, value), x)


def number(at: Site, value: Any) -> Any:
    """A number or size as a 0-d tensor of the result's dtype; a tensor in that dtype."""
    if isinstance(value, Dim):
        return size_tensor(at, value, at.dtype)
    return at.cast(value, at.dtype) if isinstance(value, Expr) else op.full((), value, at.dtype)


def size_tensor(at: Site, size: Any, dtype: Any = "int64") -> Any:
    """A size as a 0-d tensor."""
    known = Dim.of(size).value
    if known is not None:
        return op.full((), known, dtype)
    return at.cast(at.emit(op.scalar_to_tensor(PrimValue(size), dtype="int64")), dtype)


@operator("exp2.default")
def exp2(at: Site, x: Expr) -> Any:
    return op.power(number(at, 2), at.cast(x, at.dtype))


@operator("hypot.default")
def hypot(at: Site, x: Expr, y: Expr) -> Any:
    """In multiples of the larger one, so that squares neither overflow nor vanish."""
    x, y = (at.emit(op.abs(each)) for each in promoted(at, x, y))
    large, small = at.emit(op.maximum(x, y)), at.emit(op.minimum(x, y))
    part = op.where(op.equal(large, 0.0), number(at, 0), op.divide(small, large))
    found = op.multiply(large, op.sqrt(op.add(op.square(at.emit(part)), 1.0)))
    infinite = op.logical_or(op.isinf(x), op.isinf(y))
    return op.where(at.emit(infinite), number(at, math.inf), at.emit(found))


@operator("signbit.default")
def signbit(at: Site, x: Expr) -> Any:
    x = numbers(at, x)
    zero = op.full((), 0, at.dtype_of(x))
    if not at.dtype_of(x).is_float:
        return op.less(x, zero)
    one = op.full((), 1, at.dtype_of(x))
    return op.logical_or(op.less(x, zero), op.less(op.divide(one, x), zero))


@operator("copysign.Tensor", "copysign.Scalar")
def copysign(at: Site, x: Expr, y: Any) -> Any:
    x, y = promoted(at, x, y)
    x = at.emit(op.abs(x))
    return op.where(at.emit(signbit(at, at.emit(y))), op.negative(x), x)
