"""The memory of arrays, for dtypes of which two elements share a byte as well: in row-major order, the first one in the
low bits, as ONNX has them. numpy keeps such elements in bytes of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

SHARED = frozenset(("int4", "uint4"))
"""Names of the dtypes of which two elements share a byte."""


def nbytes(dtype: np.dtype[Any], shape: Sequence[int]) -> int:
    """The bytes of a tensor in memory."""
    count = math.prod(shape)
    return -(-count // 2) if dtype.name in SHARED else count * dtype.itemsize


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a tensor in memory, as uint8: a view of a compact array, if elements have bytes of their own."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if array.dtype.name not in SHARED:
        return flat
    codes = np.append(flat & 15, np.zeros(flat.size % 2, np.uint8))
    return codes[::2] | codes[1::2] << 4


def from_bytes(memory: np.ndarray, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
    """The array that a tensor's memory, as uint8, is: a view, if elements have bytes of their own."""
    if dtype.name not in SHARED:
        return memory.view(dtype).reshape(shape)
    codes = np.stack([memory & 15, memory >> 4], -1).reshape(-1)[: math.prod(shape)]
    return codes.view(dtype).reshape(shape)
