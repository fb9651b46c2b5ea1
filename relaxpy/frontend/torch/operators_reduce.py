"""Sums, means, extrema over axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Expr


def axes_of(axes: Any) -> Any:
    """Torch's axes: None and [] are all."""
    if isinstance(axes, (list, tuple)):
        return list(axes) or None
    return axes


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, axes: Any = None, keep: bool = False, *rest: Any) -> Any:
        x = at.cast(x, at.dtype)
        return function(x, axis=axes_of(axes), keepdims=bool(keep)) if at.ndim(x) else x

    return rule


operator("sum.dim_IntList")(_reduction(op.sum))
operator("mean.dim")(_reduction(op.mean))
operator("amax.default")(_reduction(op.max))
operator("amin.default")(_reduction(op.min))


@operator("sum.default")
def total(at: Site, x: Expr, *rest: Any) -> Any:
    return op.sum(at.cast(x, at.dtype))


@operator("mean.default")
def mean(at: Site, x: Expr, *rest: Any) -> Any:
    return op.mean(at.cast(x, at.dtype))


@operator("any.default", "any.dim", "any.dims")
def any_of(at: Site, x: Expr, axes: Any = None, keep: bool = False) -> Any:
    x = at.cast(x, "bool")
    return op.any(x, axis=axes_of(axes), keepdims=keep) if at.ndim(x) else x


@operator("argmax.default")
def argmax(at: Site, x: Expr, axis: int | None, keep: bool) -> Any:
    return op.argmax(x, axis=axis, keepdims=keep)


@operator("cumsum.default")
def cumsum(at: Site, x: Expr, axis: int, *rest: Any) -> Any:
    x = at.cast(x, at.dtype)
    return op.cumsum(x, axis=axis) if at.ndim(x) else x
