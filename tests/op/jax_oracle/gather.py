"""Reading at places in jax, where a negative place counts from the end and one that is out of range is clipped on
request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _take(op: Any, x: Any, indices: Any) -> Any:
    axis = op.axis or 0
    if x.shape[axis] == 0:
        return NotImplemented
    if op.mode == "nan":  # jax counts negative places from the end in this mode
        indices = jnp.where(indices < 0, x.shape[axis], indices)
    modes = {"fast": "clip", "clip": "clip", "wrap": "wrap", "nan": "fill"}
    return jnp.take(x, indices, axis=axis, mode=modes[op.mode])


def _at(x: Any, index: tuple[Any, ...]) -> Any:
    if 0 in x.shape[: len(index)]:
        return NotImplemented
    return x.at[index].get(mode="clip")


def _gather_elements(op: Any, x: Any, indices: Any) -> Any:
    places = list(jnp.indices(indices.shape))
    places[op.axis] = indices
    return _at(x, tuple(places))


def _gather_nd(op: Any, x: Any, indices: Any) -> Any:
    def one(data: Any, vectors: Any) -> Any:
        named = tuple(jnp.moveaxis(vectors, -1, 0))
        return (
            _at(data, named) if named else jnp.broadcast_to(data, vectors.shape[:-1] + data.shape)
        )

    function: Any = one
    for _ in range(op.batch_dims):
        function = jax.vmap(function)
    return function(x, indices)


JAX: dict[str, Callable[..., Any]] = {
    "take": _take,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "index_tensor": lambda _, x, indices: _at(x, tuple(indices)),
}
