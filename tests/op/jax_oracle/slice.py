"""Regular parts in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _strided_slice(op: Any, x: Any, axes: Any, begin: Any, end: Any, strides: Any = None) -> Any:
    index: list[Any] = [slice(None)] * x.ndim
    for a, first, last, step in zip(axes, begin, end, strides or (1,) * len(axes), strict=True):
        index[a] = slice(first, None if op.assume_inbound and last == -1 else last, step)
    return x[tuple(index)]


def _dynamic_strided_slice(_: Any, x: Any, begin: Any, end: Any, strides: Any) -> Any:
    ends = zip(begin.tolist(), end.tolist(), strides.tolist(), strict=True)
    return x[tuple(slice(*place) for place in ends)]


def _slice_scatter(op: Any, x: Any, src: Any, start: Any, end: Any, step: Any) -> Any:
    return x.at[(slice(None),) * (op.axis % x.ndim) + (slice(start, end, step),)].set(src)


JAX: dict[str, Callable[..., Any]] = {
    "strided_slice": _strided_slice,
    "dynamic_strided_slice": _dynamic_strided_slice,
    "slice_scatter": _slice_scatter,
}
