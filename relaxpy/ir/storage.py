"""Tensors whose elements share bytes (int4, uint4), as the bytes that they are in memory.

Elements are in row-major order, two to a byte, the first one in the low bits, as ONNX has them. So a row begins with a
byte of its own only if rows are even.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from relaxpy.half_bytes import as_bytes
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, product


def is_packed(annotation: object) -> bool:
    """Is it the annotation of a tensor whose elements share bytes?"""
    dtype = annotation.dtype if isinstance(annotation, TensorType) else None
    return dtype is not None and dtype.is_packed


def byte_dims(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The dimensions of the bytes of a packed tensor: rows of bytes, if rows are known to be even, else one row of all
    bytes."""
    if dims and (dims[-1] % 2).value == 0:
        return (*dims[:-1], dims[-1] // 2)
    return ((product(dims) + 1) // 2,)


def in_memory(annotation: Annotation) -> Annotation:
    """The annotation of the bytes of a packed tensor of known dimensions; others as they are."""
    if not isinstance(annotation, TensorType) or not is_packed(annotation):
        return annotation
    assert annotation.dims is not None
    return TensorType(byte_dims(annotation.dims), "uint8", vdevice=annotation.vdevice)


def as_whole_type(annotation: TensorType) -> TensorType:
    """The annotation with elements of whole bytes, of the same numbers."""
    assert annotation.dtype is not None
    return dataclasses.replace(annotation, dtype=annotation.dtype.unpacked)


def packed_array(array: np.ndarray) -> np.ndarray:
    """The bytes of a packed constant."""
    dims = byte_dims(tuple(map(Dim.of, array.shape)))
    return as_bytes(array).reshape([dim.value or 0 for dim in dims])
