"""Constants as text. Small ones are Python literals; large ones their bytes, compressed, in base 64."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.errors import ScriptError
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant

MAX_LITERAL = 16
"""Elements up to which a constant is printed as nested lists."""


def print_constant(constant: Constant) -> str:
    """`R.const(…)`, or `R.const_data(…)` where literals would be long or would not give the same bits."""
    data = constant.data
    dtype = DType(data.dtype)
    if 0 < data.size <= MAX_LITERAL:
        text = f'R.const({_literal(data.tolist(), data)}, "{dtype}")'
        if _same_bits(data, dtype):
            return text
    return f'R.const_data("{_encode(data)}", {list(data.shape)}, "{dtype}")'


def _same_bits(data: np.ndarray, dtype: DType) -> bool:
    """Would the literals be read back as the same bits? Not so for NaNs with a payload."""
    again = np.array(_shortest(data), dtype=dtype.numpy)
    return again.shape == data.shape and again.tobytes() == data.tobytes()


def _shortest(data: np.ndarray) -> Any:
    """Nested lists of Python numbers, floats as short as their precision allows."""
    if data.dtype.kind in "iub":
        return data.tolist()
    if data.ndim == 0:
        if np.isnan(data):
            return math.nan
        value, short = float(data), float(str(data[()]))
        same = np.array(short, data.dtype).tobytes() == data.tobytes()
        return short if same else value
    return [_shortest(np.asarray(item)) for item in data]


def _literal(values: Any, data: np.ndarray) -> str:
    def text(value: Any) -> str:
        if isinstance(value, list):
            return "[" + ", ".join(map(text, value)) + "]"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(value)

    return text(values if data.dtype.kind in "iub" else _shortest(data))


def _encode(data: np.ndarray) -> str:
    raw = np.ascontiguousarray(data)
    little = (
        raw.astype(raw.dtype.newbyteorder("<"), copy=False) if raw.dtype.isbuiltin == 1 else raw
    )
    return base64.b64encode(zlib.compress(little.tobytes(), 6)).decode()


def decode_constant(text: str, shape: Sequence[int], dtype: str) -> np.ndarray:
    """The array that `R.const_data` means. Raises `ScriptError` where the text is damaged."""
    try:
        size = math.prod(shape) * DType(dtype).itemsize
        unpack = zlib.decompressobj()
        raw = unpack.decompress(base64.b64decode(text, validate=True), size + 1)
        if len(raw) != size or min(shape, default=0) < 0:
            raise ValueError(f"{size} bytes are expected")
        return np.frombuffer(raw, DType(dtype).numpy).reshape(tuple(shape))
    except (binascii.Error, zlib.error, ValueError, OverflowError) as error:
        problem = str(error)
    raise ScriptError(
        "bad-value",
        f"the data of this constant is damaged: {problem}",
        help="R.const_data is what the printer writes; write R.const([…], dtype) by hand",
    )
