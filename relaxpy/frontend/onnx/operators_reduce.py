"""Reductions over axes, running reductions, softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaxpy import op
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_shape import axes_of
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Expr
from relaxpy.ir.dim import product


def _log_sum_exp(at: Site, x: Expr, axis: list[int], keepdims: bool) -> Any:
    dtype = at.dtype_of(x)
    most = at.emit(op.max(x, axis=axis, keepdims=True))
    most = at.emit(op.where(op.isfinite(most), most, constant(0, dtype)))
    total = at.emit(op.sum(at.emit(op.exp(op.subtract(x, most))), axis=axis, keepdims=True))
    found = at.emit(op.add(op.log(total), most))
    return found if keepdims else op.squeeze(found, axis)


def _plain(function: Callable[..., Any], before: Any = None, after: Any = None) -> Any:
    def rule(at: Site, x: Expr, axis: list[int], keepdims: bool) -> Any:
        x = x if before is None else at.emit(before(x))
        found = function(x, axis=axis, keepdims=keepdims)
        return found if after is None else after(at.emit(found))

    return rule


def _extreme(function: Callable[..., Any], on_bools: Callable[..., Any]) -> Any:
    def rule(at: Site, x: Expr, axis: list[int], keepdims: bool) -> Any:
        return (on_bools if at.dtype_of(x).is_bool else function)(x, axis=axis, keepdims=keepdims)

    return rule


def _mean(at: Site, x: Expr, axis: list[int], keepdims: bool) -> Any:
    dtype = at.dtype_of(x)
    if dtype.is_float:
        return op.mean(x, axis=axis, keepdims=keepdims)
    count = product(tuple(at.shape_of(x)[a] for a in axis))
    return op.divide(op.sum(x, axis=axis, keepdims=keepdims), at.number(count, dtype))


_NAMES = {
    "ReduceSum": _plain(op.sum),
    "ReduceProd": _plain(op.prod),
    "ReduceMax": _extreme(op.max, op.any),
    "ReduceMin": _extreme(op.min, op.all),
    "ReduceMean": _mean,
    "ReduceL1": _plain(op.sum, op.abs),
    "ReduceL2": _plain(op.sum, op.square, op.sqrt),
    "ReduceSumSquare": _plain(op.sum, op.square),
    "ReduceLogSum": _plain(op.sum, None, op.log),
    "ReduceLogSumExp": _log_sum_exp,
}


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        at: Site, x: Expr, given: Any = None, axes: Any = None, keepdims: int = 1,
        noop_with_empty_axes: int = 0, **_: Any,
    ) -> Any:  # fmt: skip
        rank = at.ndim(x)
        found = axes_of(at, given, axes, rank) or (
            [] if noop_with_empty_axes else list(range(rank))
        )
        return function(at, x, found, bool(keepdims))

    return rule


for _name, _function in _NAMES.items():
    operator(_name)(_reduction(_function))


def _running(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, axis: Expr, exclusive: int = 0, reverse: int = 0, **_: Any) -> Any:
        place = at.axis(at.number_of(axis, "the axis"), at.ndim(x))
        x = at.emit(op.flip(x, axis=place)) if reverse else x
        found = at.emit(function(x, axis=place, exclusive=bool(exclusive)))
        return op.flip(found, axis=place) if reverse else found

    return rule


operator("CumSum")(_running(op.cumsum))
operator("CumProd")(_running(op.cumprod))


def _along(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, axis: int = -1, **_: Any) -> Any:
        return at.emit(function(at, x, at.axis(axis, at.ndim(x))))

    return rule


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """Before version 13: over all axes from one on."""

    def rule(at: Site, x: Expr, axis: int = 1, **_: Any) -> Any:
        dims = at.shape_of(x)
        axis = at.axis(axis, len(dims))
        if axis == len(dims) - 1:
            return function(at, x, axis)
        rows = [product(tuple(dims[:axis])), product(tuple(dims[axis:]))]
        return op.reshape(at.emit(function(at, at.emit(op.reshape(x, rows)), 1)), dims)

    return rule


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, axis: int) -> Any:
        return function(x, axis=axis)

    return rule


def _hardmax(at: Site, x: Expr, axis: int) -> Any:
    first = at.emit(op.argmax(x, axis=axis, keepdims=True))
    row = at.emit(op.arange(0, at.shape_of(x)[axis], 1, dtype="int64"))
    row = at.emit(op.reshape(row, [-1, *[1] * (at.ndim(x) - axis - 1)]))
    return at.cast(at.emit(op.equal(at.cast(first, "int64"), row)), at.dtype_of(x))


for _name, _function in {
    "Softmax": _softmax(op.nn.softmax),
    "LogSoftmax": _softmax(op.nn.log_softmax),
    "Hardmax": _hardmax,
}.items():
    operator(_name)(_flat(_function))
    operator(_name, since=13)(_along(_function))


def softmax_of(version: int) -> Callable[..., Any]:
    """The rule of Softmax in an opset."""
    return (_along if version >= 13 else _flat)(_softmax(op.nn.softmax))


@operator("LpNormalization")
def lp_normalization(at: Site, x: Expr, axis: int = -1, p: int = 2, **_: Any) -> Any:
    axis = at.axis(axis, at.ndim(x))
    power = op.abs(x) if p == 1 else op.square(x)
    norm = at.emit(op.sum(at.emit(power), axis=[axis], keepdims=True))
    norm = norm if p == 1 else at.emit(op.sqrt(norm))
    zero = constant(0, at.dtype_of(x))
    return op.where(op.equal(norm, zero), zero, op.divide(x, norm))


@operator("MeanVarianceNormalization")
def mean_variance_normalization(at: Site, x: Expr, axes: Any = (0, 2, 3), **_: Any) -> Any:
    axis = [at.axis(a, at.ndim(x)) for a in axes]
    mean = at.emit(op.mean(x, axis=axis, keepdims=True))
    deviation = at.emit(op.sqrt(at.emit(op.variance(x, axis=axis, keepdims=True))))
    return op.divide(op.subtract(x, mean), op.add(deviation, constant(1e-9, at.dtype_of(x))))
