"""Reductions over axes, running reductions, sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.operators_elementwise import constant
from relaxpy.frontend.jax.table import primitive
from relaxpy.ir import Expr


def _reduction(function: Callable[..., Any], on_bools: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, axes: Sequence[int], **_: Any) -> Any:
        if not axes:
            return x
        kind = on_bools if at.dtype_of(x).is_bool else function
        return kind(x, axis=list(axes))

    return rule


primitive("reduce_sum")(_reduction(op.sum, op.any))
primitive("reduce_max")(_reduction(op.max, op.any))
primitive("reduce_min")(_reduction(op.min, op.all))
primitive("reduce_prod")(_reduction(op.prod, op.all))


def _halved(at: Site, x: Expr, axes: Sequence[int], function: Callable[..., Any]) -> Any:
    """Combine bits: those of each place are summed apart."""
    dtype = at.dtype_of(x)
    found = None
    for bit in range(dtype.bits):
        one = op.bitwise_and(op.right_shift(x, constant(bit, dtype)), constant(1, dtype))
        kept = at.cast(at.emit(function(at.emit(one), axis=list(axes))), dtype)
        placed = at.emit(op.left_shift(kept, constant(bit, dtype)))
        found = placed if found is None else at.emit(op.bitwise_or(found, placed))
    return found


@primitive("reduce_and")
def reduce_and(at: Site, x: Expr, axes: Sequence[int], **_: Any) -> Any:
    return op.all(x, axis=list(axes)) if at.dtype.is_bool else _halved(at, x, axes, op.min)


@primitive("reduce_or")
def reduce_or(at: Site, x: Expr, axes: Sequence[int], **_: Any) -> Any:
    return op.any(x, axis=list(axes)) if at.dtype.is_bool else _halved(at, x, axes, op.max)


@primitive("reduce_xor")
def reduce_xor(at: Site, x: Expr, axes: Sequence[int], **_: Any) -> Any:
    def odd(one: Any, axis: Any) -> Any:
        total = at.emit(op.sum(one, axis=axis))
        return op.bitwise_and(total, constant(1, at.dtype_of(total)))

    if at.dtype.is_bool:
        return op.astype(odd(at.cast(x, "int32"), list(axes)), "bool")
    return _halved(at, x, axes, odd)


@primitive("argmax")
def argmax(at: Site, x: Expr, axes: Sequence[int], **_: Any) -> Any:
    return op.argmax(_numbers(at, x), axis=axes[0])


@primitive("argmin")
def argmin(at: Site, x: Expr, axes: Sequence[int], **_: Any) -> Any:
    return op.argmin(_numbers(at, x), axis=axes[0])


def _numbers(at: Site, x: Expr) -> Expr:
    """A tensor whose bools are numbers."""
    return at.cast(x, "int8") if at.dtype_of(x).is_bool else x


def running(function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a running reduction."""

    def rule(at: Site, x: Expr, axis: int, reverse: bool, **_: Any) -> Any:
        x = _numbers(at, x)
        if reverse:
            x = at.emit(op.flip(x, axis=axis))
        found = function(x, axis=axis)
        return op.flip(at.emit(found), axis=axis) if reverse else found

    return rule


primitive("cumsum")(running(op.cumsum))
primitive("cumprod")(running(op.cumprod))
primitive("cummax")(running(op.cummax))
primitive("cummin")(running(op.cummin))
primitive("cumlogsumexp")(running(op.cumlogsumexp))


@primitive("sort")
def sort(at: Site, *xs: Any, dimension: int, num_keys: int, **_: Any) -> Any:
    """All in the order of the first `num_keys`: the last of them is sorted first, and stably."""
    if len(xs) == 1:
        return op.sort(xs[0], axis=dimension)
    found = list(xs)
    for key in reversed(range(num_keys)):
        order = at.emit(op.argsort(found[key], axis=dimension, dtype="int64"))
        found = [at.emit(op.gather_elements(each, order, axis=dimension)) for each in found]
    return found


@primitive("top_k")
def top_k(at: Site, x: Expr, k: Any, axis: int = -1, **_: Any) -> Any:
    axis %= at.ndim(x)
    (count,) = at.dims([k])
    found = []
    for each in (op.sort(x, axis=axis, descending=True), op.argsort(x, axis=axis, descending=True)):
        found.append(op.strided_slice(at.emit(each), [axis], [0], [count]))
    return found


@primitive("approx_top_k")
def approx_top_k(
    at: Site, x: Expr, k: Any, reduction_dimension: int, is_max_k: bool, **_: Any
) -> Any:
    """Exactly."""
    axis, (count,) = reduction_dimension % at.ndim(x), at.dims([k])
    return [
        op.strided_slice(at.emit(function(x, axis=axis, descending=is_max_k)), [axis], [0], [count])
        for function in (op.sort, op.argsort)
    ]
