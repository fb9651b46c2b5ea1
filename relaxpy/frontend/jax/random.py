"""Keys of random numbers, and the bits that JAX draws with them.

A key is one number of 64 bits, its first word the high half, so arrays of keys are moved as any arrays are. Bits of a
shape are a function of the key and of each element's place in row-major order ("partitionable" in JAX).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.jax.arrays import KEY
from relaxpy.frontend.jax.operators_elementwise import constant
from relaxpy.frontend.site import Site
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import product


def halves(at: Site, key: Expr) -> tuple[Any, Any]:
    """The two words of keys or other numbers of 64 bits."""
    high = at.emit(op.right_shift(key, constant(32, KEY)))
    return at.cast(high, "uint32"), at.cast(key, "uint32")


def joined(at: Site, high: Expr, low: Expr) -> Any:
    """Two words as one number."""
    high, low = at.cast(high, KEY), at.cast(low, KEY)
    return at.emit(op.bitwise_or(op.left_shift(high, constant(32, KEY)), low))


def keys_of(at: Site, words: Expr) -> Any:
    """Words, (…, 2), as keys."""
    last = at.ndim(words) - 1
    parts = (at.emit(op.strided_slice(words, [last], [k], [k + 1])) for k in (0, 1))
    return joined(at, *(at.emit(op.squeeze(each, [last])) for each in parts))


def words_of(at: Site, key: Expr) -> Any:
    """Keys as their words, (…, 2)."""
    return at.emit(op.stack(list(halves(at, key)), axis=at.ndim(key)))


def drawn(at: Site, key: Expr, shape: Sequence[Dim]) -> Any:
    """A number of 64 bits for each element of a shape, for each of the keys: (*keys, *shape)."""
    places = at.emit(op.arange(0, product(tuple(shape)), 1, dtype="int64"))
    places = at.cast(at.emit(op.reshape(places, shape)), KEY)
    column = [*at.shape_of(key), *[1] * len(shape)]
    return op.threefry(at.emit(op.reshape(key, column)) if shape else key, places)
