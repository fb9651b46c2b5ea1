"""Operators on each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.table import primitive
from relaxpy.ir import Constant, DType, Expr

_UNARY: dict[str, Callable[..., Any]] = {
    "bessel_i0e": op.bessel_i0e, "bessel_i1e": op.bessel_i1e, "clz": op.count_leading_zeros,
    "digamma": op.digamma, "erfc": op.erfc, "lgamma": op.lgamma, "population_count": op.population_count,
    "acos": op.acos, "acosh": op.acosh, "asin": op.asin, "asinh": op.asinh, "atan": op.atan,
    "atanh": op.atanh, "ceil": op.ceil, "cos": op.cos, "cosh": op.cosh, "erf": op.erf,
    "erf_inv": op.erfinv, "exp": op.exp, "expm1": op.expm1, "floor": op.floor, "is_finite": op.isfinite,
    "log": op.log, "log1p": op.log1p, "logistic": op.sigmoid, "neg": op.negative, "not": op.bitwise_not,
    "rsqrt": op.rsqrt, "sin": op.sin, "sinh": op.sinh, "sqrt": op.sqrt, "square": op.square,
    "tan": op.tan, "tanh": op.tanh,
}  # fmt: skip

_BINARY: dict[str, Callable[..., Any]] = {
    "add": op.add, "add_any": op.add, "and": op.bitwise_and, "atan2": op.atan2, "div": op.divide,
    "eq": op.equal, "eq_to": op.equal, "ge": op.greater_equal, "gt": op.greater, "le": op.less_equal,
    "le_to": op.less_equal, "lt": op.less, "lt_to": op.less,
    "mul": op.multiply, "ne": op.not_equal, "nextafter": op.nextafter, "or": op.bitwise_or, "rem": op.mod,
    "shift_left": op.left_shift, "shift_right_arithmetic": op.right_shift, "sub": op.subtract,
    "xor": op.bitwise_xor,
}  # fmt: skip


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda at, *values, **_: function(*values)


for _name, _rule in (_UNARY | _BINARY).items():
    primitive(_name)(_function(_rule))


@primitive("abs")
def abs_(at: Site, x: Expr, **_: Any) -> Any:
    return op.abs(x) if at.dtype.is_signed else x


@primitive("sign")
def sign(at: Site, x: Expr, **_: Any) -> Any:
    if at.dtype.is_float:  # -0 and NaN are their own signs
        own = op.logical_or(op.isnan(x), op.equal(x, zero(at, x)))
        return op.where(at.emit(own), x, at.emit(op.sign(x)))
    if at.dtype.is_signed:
        return op.sign(x)
    return op.astype(op.not_equal(x, zero(at, x)), at.dtype)


def zero(at: Site, x: Expr) -> Any:
    return Constant(np.zeros((), at.dtype_of(x).numpy))


def constant(value: Any, dtype: DType | str) -> Constant:
    """A number as a constant without dimensions."""
    return Constant(np.array(value, DType(dtype).numpy))


@primitive("max")
def maximum(at: Site, x: Expr, y: Expr, **_: Any) -> Any:
    return op.logical_or(x, y) if at.dtype.is_bool else op.maximum(x, y)


@primitive("min")
def minimum(at: Site, x: Expr, y: Expr, **_: Any) -> Any:
    return op.logical_and(x, y) if at.dtype.is_bool else op.minimum(x, y)


@primitive("clamp")
def clamp(at: Site, low: Expr, x: Expr, high: Expr, **_: Any) -> Any:
    return minimum(at, at.emit(maximum(at, low, x)), high)


@primitive("round")
def round_(at: Site, x: Expr, rounding_method: Any, **_: Any) -> Any:
    if int(rounding_method) == 1:  # to nearest even
        return op.round(x)
    whole = op.trunc(x)  # halves away from zero
    far = op.greater_equal(op.abs(op.subtract(x, whole)), constant(0.5, at.dtype))
    return op.where(far, op.add(whole, op.sign(x)), whole)


@primitive("exp2")
def exp2(at: Site, x: Expr, **_: Any) -> Any:
    return op.power(constant(2, at.dtype), x)


@primitive("cbrt")
def cbrt(at: Site, x: Expr, **_: Any) -> Any:
    """The power 1/3 of the size with the sign of x, and a step of Newton's method."""
    wide = "float64" if at.dtype == "float64" else "float32"
    x = at.cast(x, wide)
    size = at.emit(op.abs(x))
    root = at.emit(op.power(size, constant(1 / 3, wide)))
    square = op.multiply(root, root)
    step = op.divide(
        op.subtract(op.multiply(square, root), size), op.multiply(square, constant(3, wide))
    )
    better = at.emit(op.subtract(root, step))
    plain = op.logical_or(op.equal(size, zero(at, size)), op.logical_not(op.isfinite(better)))
    found = op.where(plain, size, better)
    return op.where(op.less(x, zero(at, x)), op.negative(found), found)


@primitive("pow")
def power(at: Site, x: Expr, y: Expr, **_: Any) -> Any:
    return op.power(x, at.cast(y, at.dtype))


@primitive("integer_pow")
def integer_pow(at: Site, x: Expr, y: int, **_: Any) -> Any:
    """By repeated squares, as XLA does."""
    if y == 0:
        return op.ones(at.shape, at.dtype)
    found: Expr | None = None
    base, rest = x, abs(y)
    while rest:
        if rest & 1:
            found = base if found is None else at.emit(op.multiply(found, base))
        rest >>= 1
        base = at.emit(op.multiply(base, base)) if rest else base
    assert found is not None
    return found if y > 0 else op.divide(constant(1, at.dtype), found)


@primitive("shift_right_logical")
def shift_right_logical(at: Site, x: Expr, y: Expr, **_: Any) -> Any:
    dtype = at.dtype
    if not dtype.is_signed:
        return op.right_shift(x, y)
    unsigned = DType(f"u{dtype}")
    found = at.emit(op.right_shift(at.cast(x, unsigned), at.cast(y, unsigned)))
    return at.cast(found, dtype)


@primitive("select_n")
def select_n(at: Site, which: Expr, *cases: Any, **_: Any) -> Any:
    if len(cases) == 1:
        return cases[0]
    if at.dtype_of(which).is_bool:
        return op.where(which, cases[1], cases[0])
    found = cases[-1]
    for index, case in reversed(list(enumerate(cases[:-1]))):
        chosen = at.emit(op.less_equal(which, constant(index, at.dtype_of(which))))
        found = at.emit(op.where(chosen, case, found))
    return found


@primitive("bitcast_convert_type")
def bitcast_convert_type(at: Site, x: Expr, **_: Any) -> Any:
    return op.bitcast(x, at.dtype)


@primitive("convert_element_type")
def convert_element_type(at: Site, x: Expr, **_: Any) -> Any:
    return at.cast(x, at.dtype)


@primitive(
    "copy", "copy_p", "stop_gradient", "pvary", "mesh_cast", "reshard", "sharding_constraint", "reduced_vary_cast",
    "device_put", "layout_constraint", "optimization_barrier", "name", "to_edtype", "from_edtype",
)  # fmt: skip
def same(at: Site, *values: Any, **_: Any) -> Any:
    return list(values)


@primitive("reduce_precision")
def reduce_precision(at: Site, x: Expr, exponent_bits: int, mantissa_bits: int, **_: Any) -> Any:
    return op.reduce_precision(x, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits)
