"""ONNX's element types and tensors as numpy's."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from relaxpy.errors import Span, UsageError
from relaxpy.frontend.dtypes import taken
from relaxpy.frontend.onnx.element_types import NAMES, NUMBERS, PACKED
from relaxpy.ir import DType

MOST_BYTES = 1 << 34
"""A constant is no larger."""
MOST_DIMS = 64
"""It has no more dimensions."""


def dtype_of(number: int, span: Span | None = None) -> DType:
    """The dtype of ONNX's number. UsageError (`onnx-dtype`) for those that there are no tensors of."""
    name = NAMES.get(number, f"number {number}")
    return taken(name, "onnx-dtype", "tensors", "convert the model to float32 or int8", span)


def array_of(tensor: Any, folder: Path | None = None, span: Span | None = None) -> np.ndarray:
    """A TensorProto as an array; external data is mapped from files below `folder`. Integers that share bytes are of
    the dtypes of ml_dtypes. UsageError (`onnx-file`) for one that is damaged."""
    if NAMES.get(tensor.data_type) in PACKED:
        return _unpacked(tensor, folder, span)
    dtype = dtype_of(tensor.data_type, span)
    shape = tuple(tensor.dims)
    if len(shape) > MOST_DIMS:
        raise _damaged(tensor, f"has {len(shape)} dimensions", span)
    if tensor.HasField("segment"):
        raise _damaged(tensor, "is a segment of another one", span)
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize > MOST_BYTES:
        raise _damaged(tensor, f"has the shape {list(shape)}", span)
    if tensor.data_location == 1:
        raw = _external(tensor, folder, count * dtype.itemsize, span)
    elif tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        return _listed(tensor, dtype, shape, span)
    if raw.size != count * dtype.itemsize:
        raise _damaged(tensor, f"has {raw.size} bytes for the shape {list(shape)} of {dtype}", span)
    return raw.view(dtype.numpy).reshape(shape)


def _unpacked(tensor: Any, folder: Path | None, span: Span | None) -> np.ndarray:
    """A tensor of integers that share bytes."""
    import onnx

    name = NAMES[tensor.data_type]
    bits, shape = PACKED[name], tuple(tensor.dims)
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count > MOST_BYTES:
        raise _damaged(tensor, f"has the shape {list(shape)}", span)
    whole = onnx.TensorProto()
    whole.CopyFrom(tensor)
    whole.data_type = NUMBERS["uint8"]
    whole.dims[:] = [-(-count * bits // 8)]
    packed = array_of(whole, folder, span)
    parts = [packed >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    numbers = np.stack(parts, -1).reshape(-1)[:count].astype(np.int8)
    if name.startswith("int"):
        numbers = (numbers << (8 - bits)).astype(np.int8) >> (8 - bits)
    return numbers.astype(np.dtype(getattr(ml_dtypes, name))).reshape(shape)


def _listed(tensor: Any, dtype: DType, shape: tuple[int, ...], span: Span | None) -> np.ndarray:
    """The data of a tensor that is in one of the lists of numbers."""
    field = {
        "float32": "float_data", "int64": "int64_data", "float64": "double_data", "uint64": "uint64_data",
        "uint32": "uint64_data",
    }.get(dtype, "int32_data")  # fmt: skip
    values = getattr(tensor, field)
    if len(values) != math.prod(shape):
        raise _damaged(tensor, f"has {len(values)} elements for the shape {list(shape)}", span)
    if dtype.is_narrow:
        bits = np.array(values, np.int64).astype(f"uint{dtype.bits}")
        return bits.view(dtype.numpy).reshape(shape)
    return np.array(values).astype(dtype.numpy).reshape(shape)


def _external(tensor: Any, folder: Path | None, size: int, span: Span | None) -> np.ndarray:
    """The bytes of a tensor in another file, mapped."""
    entries = {each.key: each.value for each in tensor.external_data}
    if len(entries) < len(tensor.external_data):
        raise _damaged(tensor, "says twice where its data is", span)
    location = entries.get("location", "")
    if folder is None:
        raise _damaged(tensor, f"is in the file {location!r}, and the model has no folder", span)
    file = _below(folder, location)
    if file is None:
        raise _damaged(
            tensor, f"is in {location!r}, which is no file below the model's folder", span
        )
    offset, length = (
        _number(entries.get(*each)) for each in (("offset", "0"), ("length", str(size)))
    )
    if offset is None or length is None:
        raise _damaged(tensor, "has no number as its offset or length", span)
    if length != size or offset + length > file.stat().st_size:
        raise _damaged(tensor, f"has {size} bytes, which are not in {location!r}", span)
    if not size:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r", offset, (length,))


def _below(folder: Path, location: str) -> Path | None:
    """The file below the folder, links resolved; None: there is none."""
    try:
        file = Path(os.path.realpath(folder / location))
        return file if file.is_relative_to(os.path.realpath(folder)) and file.is_file() else None
    except (OSError, ValueError):  # no name of a file
        return None


def _number(text: Any) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else None


def _damaged(tensor: Any, problem: str, span: Span | None) -> UsageError:
    return UsageError("onnx-file", f"the tensor {tensor.name!r} {problem}", span=span)
