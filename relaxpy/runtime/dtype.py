"""Element types of the runtime: name, DLPack code, width, numpy type.

The table is the runtime's own, so that it loads without the compiler. Types that numpy lacks come from `ml_dtypes`,
which is imported on first use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from relaxpy import half_bytes
from relaxpy.errors import RuntimeCheckError
from relaxpy.half_bytes import SHARED


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """The properties of an element type that the runtime needs."""

    name: str
    code: int
    """DLPack type code."""
    bits: int
    itemsize: int
    """Bytes per element; 1 for one that shares its byte."""


# DLPack codes: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, 7.. the float8 family (dlpack.h, DLDataTypeCode).
_TABLE: dict[str, tuple[int, int]] = {
    "bool": (6, 8),
    "int4": (0, 4), "uint4": (1, 4),
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64),
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8), "float8_e4m3": (8, 8), "float8_e4m3b11fnuz": (9, 8), "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
}  # fmt: skip

INFO = {
    name: DTypeInfo(name, code, bits, max(bits // 8, 1)) for name, (code, bits) in _TABLE.items()
}
BY_CODE = {(info.code, info.bits): info.name for info in INFO.values()}
_COMPLEX = 5
"""DLPack's code of complex numbers, which no tensor here has."""


def not_passed(code: int, bits: int, lanes: int) -> str:
    """The message for memory of a DLPack type that tensors do not have."""
    if code == _COMPLEX and lanes == 1:
        return (
            f"complex{bits} has no counterpart here: pass real and imaginary parts as two tensors"
        )
    return f"DLPack type {code}:{bits}x{lanes} cannot be passed"


_NUMPY_NAMES = frozenset(
    name for name, (code, bits) in _TABLE.items() if code in (0, 1, 2, 6) and bits >= 8
)
NATIVE = {np.dtype(name): name for name in _NUMPY_NAMES}
"""numpy's own types, in this machine's byte order. A look-up takes a third of the time of `from_numpy`."""


def info(name: str) -> DTypeInfo:
    """The entry of `name`.

    Raises: RuntimeCheckError (`dtype`) for a type that tensors of the runtime cannot have.
    """
    found = INFO.get(name)
    if found is None:
        raise RuntimeCheckError("dtype", f"the runtime does not support the dtype {name!r}")
    return found


@cache
def to_numpy(name: str) -> np.dtype[Any]:
    """The numpy type of `name`; from `ml_dtypes` where numpy has none."""
    info(name)
    if name in _NUMPY_NAMES:
        return np.dtype(name)
    import ml_dtypes  # slow to import, and rarely needed

    return np.dtype(getattr(ml_dtypes, name))


@cache
def from_numpy(dtype: np.dtype[Any]) -> str:
    """The name of a numpy type, for either byte order.

    Raises: RuntimeCheckError (`dtype`) for strings, objects, records, complex numbers.
    """
    name = dtype.name
    if name not in INFO:
        raise RuntimeCheckError("dtype", f"arrays of the numpy dtype {dtype} are not supported")
    return name


def nbytes(name: str, shape: Sequence[int]) -> int:
    """The bytes of a tensor in memory."""
    count = math.prod(shape)
    return -(-count // 2) if name in SHARED else count * info(name).itemsize


def from_bytes(memory: np.ndarray, name: str, shape: Sequence[int]) -> np.ndarray:
    """The array that a tensor's memory, as uint8, is: a view, if elements have bytes of their own."""
    return half_bytes.from_bytes(memory, to_numpy(name), shape)
