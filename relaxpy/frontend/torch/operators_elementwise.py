"""Operators on each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import DType, Expr

_UNARY: dict[str, Callable[..., Any]] = {
    "abs": op.abs, "acos": op.acos, "acosh": op.acosh, "asin": op.asin, "asinh": op.asinh,
    "atan": op.atan, "atanh": op.atanh, "bitwise_not": op.bitwise_not, "ceil": op.ceil,
    "cos": op.cos, "cosh": op.cosh, "erf": op.erf, "exp": op.exp, "floor": op.floor,
    "log": op.log, "neg": op.negative, "relu": op.nn.relu, "round": op.round, "rsqrt": op.rsqrt,
    "sigmoid": op.sigmoid, "sign": op.sign, "silu": op.nn.silu, "sin": op.sin, "sinh": op.sinh,
    "sqrt": op.sqrt, "tan": op.tan, "tanh": op.tanh, "trunc": op.trunc,
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
    return op.isnan(x)


@operator("isinf.default")
def isinf(at: Site, x: Expr) -> Any:
    return op.isinf(x)


@operator("gelu.default")
def gelu(at: Site, x: Expr, approximate: str) -> Any:
    return op.nn.gelu_tanh(x) if approximate == "tanh" else op.nn.gelu(x)


@operator("leaky_relu.default")
def leaky_relu(at: Site, x: Expr, slope: float) -> Any:
    return op.nn.leakyrelu(x, alpha=float(slope))


@operator("clamp.default")
def clamp(at: Site, x: Expr, low: Any, high: Any) -> Any:
    x = at.cast(x, at.dtype)
    if low is not None:
        x = op.maximum(x, low)
    return x if high is None else op.minimum(x, high)


def promoted(at: Site, *values: Any) -> list[Any]:
    """Operands in the dtype of the result."""
    return [at.cast(each, at.dtype) for each in values]


def common(at: Site, *values: Any) -> list[Any]:
    """Operands in the dtype that torch computes in, for results of another dtype such as bool."""
    import torch

    from relaxpy.frontend.torch.arrays import dtype_of

    known = [arg.meta["val"] if hasattr(arg, "meta") else arg for arg in at.node.args]
    dtype = dtype_of(torch.result_type(known[0], known[1]))
    return [at.cast(each, dtype) for each in values]


@operator("add.Tensor", "add.Scalar")
def add(at: Site, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = promoted(at, x, y)
    return op.add(x, y if alpha == 1 else op.multiply(y, alpha))


@operator("sub.Tensor", "sub.Scalar")
def sub(at: Site, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = promoted(at, x, y)
    return op.subtract(x, y if alpha == 1 else op.multiply(y, alpha))


@operator("mul.Tensor", "mul.Scalar")
def mul(at: Site, x: Any, y: Any) -> Any:
    if at.dtype == DType("bool"):
        return op.logical_and(x, y)
    return op.multiply(*promoted(at, x, y))


@operator("div.Tensor", "div.Scalar")
def div(at: Site, x: Any, y: Any) -> Any:
    return op.divide(*promoted(at, x, y))


@operator("maximum.default")
def maximum(at: Site, x: Any, y: Any) -> Any:
    return op.maximum(*promoted(at, x, y))


@operator("minimum.default")
def minimum(at: Site, x: Any, y: Any) -> Any:
    return op.minimum(*promoted(at, x, y))


@operator("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(at: Site, x: Any, y: Any) -> Any:
    return op.power(*promoted(at, x, y))


_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": op.equal, "ne": op.not_equal, "lt": op.less, "le": op.less_equal, "gt": op.greater,
    "ge": op.greater_equal,
}  # fmt: skip


def _comparison(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda at, x, y: function(*common(at, x, y))


for _name, _function in _COMPARISONS.items():
    operator(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_function))

_BITS: dict[str, Callable[..., Any]] = {
    "and": op.bitwise_and, "or": op.bitwise_or, "xor": op.bitwise_xor,
}  # fmt: skip


def _bits(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda at, x, y: function(*promoted(at, x, y))


for _name, _function in _BITS.items():
    operator(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar")(_bits(_function))


def _truth(at: Site, x: Expr) -> Any:
    return at.cast(x, "bool")


@operator("logical_and.default")
def logical_and(at: Site, x: Expr, y: Expr) -> Any:
    return op.logical_and(_truth(at, x), _truth(at, y))


@operator("logical_or.default")
def logical_or(at: Site, x: Expr, y: Expr) -> Any:
    return op.logical_or(_truth(at, x), _truth(at, y))


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
    """A number as a 0-d tensor of the result's dtype; a tensor in that dtype."""
    return at.cast(value, at.dtype) if isinstance(value, Expr) else op.full((), value, at.dtype)


@operator("dropout.default")
def dropout(at: Site, x: Expr, p: float, train: bool) -> Any:
    if train and p > 0:
        raise at.fail(
            "torch-operator",
            "dropout in training mode draws random numbers",
            "call module.eval() before the import",
        )
    return x
