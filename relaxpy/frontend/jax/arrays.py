"""JAX's dtypes and arrays as numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy.errors import Span, UsageError
from relaxpy.frontend.dtypes import taken
from relaxpy.ir import DType

KEY, GENERATOR = DType("uint64"), "fry"
"""A key of random numbers is one number here: its first word is the high half. The generator that is taken."""


def is_key(aval: Any) -> bool:
    """Is it an array of keys of random numbers?"""
    import jax

    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def dtype_of(aval: Any, span: Span | None = None) -> DType:
    """The dtype of a value of JAX. UsageError (`jax-dtype`) for complex numbers, keys of other generators than
    threefry, and others that there are no tensors of."""
    if is_key(aval):
        name = aval.dtype._impl.tag
        if name != GENERATOR:
            raise UsageError(
                "jax-dtype",
                f"random keys of the generator {name} are not supported",
                span=span,
                help='make the key with jax.random.key(seed, impl="threefry2x32")',
            )
        return KEY
    return taken(
        str(aval.dtype), "jax-dtype", "arrays", "convert it with .astype(jax.numpy.float32)", span
    )


def array_of(value: Any) -> np.ndarray:
    """An array of JAX or numpy as numpy's, in the same memory where it is on the CPU; a key as its words. Numbers of 64
    bits are of 32, unless JAX has 64."""
    import jax

    if isinstance(value, jax.Array) and is_key(value):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def memory(array: np.ndarray) -> Any:
    """Equal for arrays that are the same memory."""
    place = array.__array_interface__["data"][0]
    return place if array.size else id(array), array.shape, array.strides, array.dtype


def packed_keys(words: np.ndarray) -> np.ndarray:
    """The words of keys, (…, 2) uint32, as keys."""
    wide = words.astype(np.uint64)
    return (wide[..., 0] << np.uint64(32)) | wide[..., 1]
