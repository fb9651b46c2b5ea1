"""Memory of interpreted programs, filled with invalid values so that reads of uninitialised elements are detected."""

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
    """An uninitialised tensor; with a storage, at `offset` bytes in it."""
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
    """Raises the error of the virtual machine if there is not enough memory for the values created inside."""
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
"""A number of bytes that no process has. For larger ones numpy raises other errors, since it cannot count them."""


def unset(shape: Sequence[int], dtype: DType | None) -> np.ndarray:
    """Uninitialised memory: filled with NaN, or with a conspicuous number."""
    kind = dtype or DType("float32")
    with memory_for(TensorType(tuple(shape), kind)):
        return np.full(
            tuple(shape), np.nan if kind.is_float else 0 if kind.is_bool else 77, kind.numpy
        )
