"""Random numbers: keys and bits, equal to JAX's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.operators_elementwise import constant
from relaxpy.frontend.jax.random import drawn, halves, joined, keys_of, words_of
from relaxpy.frontend.jax.table import primitive
from relaxpy.ir import Expr


@primitive("threefry2x32")
def threefry2x32(at: Site, *words: Any, **_: Any) -> Any:
    key, count = joined(at, *words[:2]), joined(at, *words[2:])
    return list(halves(at, at.emit(op.threefry(key, count))))


@primitive("random_wrap")
def random_wrap(at: Site, words: Expr, **_: Any) -> Any:
    return keys_of(at, words)


@primitive("random_unwrap")
def random_unwrap(at: Site, key: Expr, **_: Any) -> Any:
    return words_of(at, key)


@primitive("random_seed")
def random_seed(at: Site, seed: Expr, **_: Any) -> Any:
    """A seed of 32 bits is the low word; one of 64 bits is the key."""
    return _seeded(at, seed)


def _seeded(at: Site, seed: Expr) -> Any:
    dtype = at.dtype_of(seed)
    return at.cast(seed if dtype.bits == 64 else at.cast(seed, "uint32"), "uint64")


@primitive("random_split")
def random_split(at: Site, key: Expr, shape: Sequence[Any], **_: Any) -> Any:
    return drawn(at, key, at.dims(shape))


@primitive("random_fold_in")
def random_fold_in(at: Site, key: Expr, data: Expr, **_: Any) -> Any:
    return op.threefry(key, _seeded(at, data))


@primitive("random_bits")
def random_bits(at: Site, key: Expr, bit_width: int, shape: Sequence[Any], **_: Any) -> Any:
    found = at.emit(drawn(at, key, at.dims(shape)))
    if bit_width == 64:
        return found
    high, low = halves(at, found)
    return at.cast(at.emit(op.bitwise_xor(high, low)), f"uint{bit_width}")


@primitive("random_clone")
def random_clone(at: Site, key: Expr, **_: Any) -> Any:
    return key


@primitive("random_shift_key", "random_zero")
def zero_key(at: Site, *_: Any, **__: Any) -> Any:
    return op.broadcast_to(constant(0, at.dtype), at.shape)
