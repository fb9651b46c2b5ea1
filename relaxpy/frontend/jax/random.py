"""Threefry 2x32, JAX's generator of random bits (Salmon et al., 2011), in operators of integers.

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

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(at: Site, key: tuple[Any, Any], counts: tuple[Any, Any]) -> tuple[Any, Any]:
    """20 rounds: two words for each pair of words of counts. All are uint32."""
    keys = [*key, at.emit(op.bitwise_xor(op.bitwise_xor(*key), _word(_PARITY)))]
    x, y = (at.emit(op.add(count, word)) for count, word in zip(counts, key, strict=True))
    for i in range(5):
        for shift in _ROTATIONS[i % 2]:
            x = at.emit(op.add(x, y))
            y = op.bitwise_or(op.left_shift(y, _word(shift)), op.right_shift(y, _word(32 - shift)))
            y = at.emit(op.bitwise_xor(x, y))
        x = at.emit(op.add(x, keys[(i + 1) % 3]))
        y = at.emit(op.add(op.add(y, keys[(i + 2) % 3]), _word(i + 1)))
    return x, y


def _word(value: int) -> Any:
    return constant(value, "uint32")


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


def drawn(at: Site, key: Expr, shape: Sequence[Dim]) -> tuple[Any, Any]:
    """Two words for each element of a shape, for each of the keys: (*keys, *shape)."""
    places = at.emit(op.arange(0, product(tuple(shape)), 1, dtype="int64"))
    places = at.cast(at.emit(op.reshape(places, shape)), KEY)
    column = [*at.shape_of(key), *[1] * len(shape)]
    words = halves(at, at.emit(op.reshape(key, column)) if shape else key)
    return threefry(at, words, halves(at, places))
