"""Memory that interpreted programs allocate: filled with nonsense, so that what nobody has written stands out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from relaxpy.errors import PassError, RuntimeCheckError
from relaxpy.ir.annotation import (
    Annotation,
    TensorType,
)
from relaxpy.ir.dim import product
from relaxpy.ir.dtype import DType
from relaxpy.runtime.tensor import require_countable
from relaxpy.testing.values import (
    Value,
)


def allocate(
    shape: Sequence[int], dtype: DType, offset: int = 0, storage: Value = None
) -> np.ndarray:
    """A tensor that nobody has written; if a storage is given, `offset` bytes behind its start."""
    fresh = unset(shape, dtype)
    if storage is None:
        return fresh
    end = offset + fresh.nbytes
    if end > len(storage):
        raise PassError(
            "interpret",
            f"a tensor of {fresh.nbytes} bytes from {offset} in a storage of {len(storage)}",
        )
    tensor = storage[offset:end].view(dtype.numpy).reshape(fresh.shape)
    tensor[...] = fresh
    return tensor


@contextmanager
def memory_for(made: Annotation) -> Iterator[None]:
    """Raise the error of the virtual machine where there is not the memory for what is made inside."""
    known = isinstance(made, TensorType) and made.dtype is not None and made.dims is not None
    dims = (made.dims or ()) if isinstance(made, TensorType) else ()
    nbytes = product(dims).value if known else None
    if nbytes is not None and isinstance(made, TensorType) and made.dtype is not None:
        nbytes *= made.dtype.itemsize
        if nbytes == 0:
            require_countable([dim.value or 0 for dim in dims], str(made.dtype))
        if nbytes > _ADDRESSES:
            raise RuntimeCheckError("out-of-memory", f"cannot allocate {nbytes} bytes")
    try:
        yield
    except MemoryError:
        asked = "memory" if nbytes is None else f"{nbytes} bytes"
        raise RuntimeCheckError("out-of-memory", f"cannot allocate {asked}") from None


_ADDRESSES = 1 << 48
"""Bytes that no process has: numpy raises other errors where it cannot count them."""


def unset(shape: Sequence[int], dtype: DType | None) -> np.ndarray:
    """Memory that nobody has written: NaN, or a number that stands out."""
    kind = dtype or DType("float32")
    with memory_for(TensorType(tuple(shape), kind)):
        return np.full(
            tuple(shape), np.nan if kind.is_float else 0 if kind.is_bool else 77, kind.numpy
        )
