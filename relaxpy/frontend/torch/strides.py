"""How the tensors of torch lie in memory: as axes in some order without gaps, or in another way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layout:
    """The strides of a tensor."""

    order: tuple[int, ...] | None = None
    """Its axes from the one with the largest stride to the one with the smallest; None: as they are."""
    strides: tuple[Any, ...] | None = None
    """Its strides, ints and torch's expressions of sizes, if there are gaps or items that share memory."""


def layout_of(value: Any) -> Layout:
    """The layout of a (fake) tensor. Of sizes that vary their values in the trace say which stride is larger; that the
    tensor has no gaps is so for all sizes."""
    strides = value.stride()
    if _is_dense(value.shape, strides, range(value.ndim)):
        return Layout()
    order = tuple(sorted(range(value.ndim), key=lambda axis: -hint_of(strides[axis])))
    if _is_dense(value.shape, strides, order):
        return Layout(order)
    return Layout(None, tuple(_expr(each) for each in strides))


def _is_dense(shape: Sequence[Any], strides: Sequence[Any], order: Sequence[int]) -> bool:
    """Do the axes, from the slowest to the fastest, lie without gaps?"""
    wanted: Any = 1
    sizes = [_expr(each) for each in shape]
    if any(size == 0 for size in sizes):
        return True
    for axis in reversed(order):
        if sizes[axis] != 1 and _without_least(_expr(strides[axis])) != _without_least(wanted):
            return False
        wanted = wanted * sizes[axis]
    return True


def hint_of(value: Any) -> int:
    """The value of a size in the trace."""
    from torch.fx.experimental.symbolic_shapes import optimization_hint

    return optimization_hint(value, fallback=1 << 20)


def _without_least(value: Any) -> Any:
    """An expression of sizes that are at least 1, as torch has them in strides: of `max(1, size)` the size."""
    if isinstance(value, int):
        return value
    from torch.utils._sympy.functions import Max

    return value.replace(
        lambda e: isinstance(e, Max) and e.args[0] == 1, lambda e: e.args[-1]
    ).expand()


def _expr(value: Any) -> Any:
    """An int, or sympy's expression of a size."""
    return value if isinstance(value, int) else value.node.expr.expand()
