"""The constants of a text that TVM printed with `show_meta=True`.

TVM prints scalars as `R.const(…)` and every other constant as `metadata["ir.GenericConst"][0]`. The text begins with
`metadata = tvm.ir.load_json(…)`: a graph of nodes as JSON, in which tensors are base64 of TVM's binary format.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from typing import Any

import numpy as np

from relaxpy.errors import RelaxError, ScriptError
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant

_MAGIC = 0xDD5E40F096B4A13F
_HEADER = struct.Struct("<QQiiiBBH")
"""Magic number, a reserved word, device type and index, number of dimensions, dtype: code, bits, lanes."""
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
"""DLPack's type codes of dtypes that are named by code and bits."""
_CONSTANTS = frozenset({"ir.GenericConst", "relax.expr.Constant"})


def read_tvm_metadata(text: str) -> dict[str, list[Any]]:
    """Kind of node → its objects in order. Constants are `Constant`s, other objects are None.

    Raises `ScriptError` if the text is not TVM's format.
    """
    try:
        graph = json.loads(text)
        nodes, root = graph["nodes"], graph["nodes"][graph["root_index"]]
        pairs = root["data"]
        return {
            nodes[key]["data"]: [_object(nodes, i) for i in nodes[value]["data"]]
            for key, value in zip(pairs[::2], pairs[1::2], strict=True)
        }
    except RelaxError as error:
        problem = error.message
    except (ValueError, KeyError, IndexError, TypeError, RecursionError, struct.error) as error:
        problem = f"{type(error).__name__}: {error}"
    raise ScriptError(
        "bad-value",
        f"the metadata of this text is damaged: {problem}",
        help="print the module again, with show_meta=True",
    )


def _object(nodes: list[Any], index: int) -> Constant | None:
    node = nodes[index]
    if node["type"] not in _CONSTANTS:
        return None
    data = node["data"]
    return Constant(_tensor(nodes[data.get("value", data.get("data"))]["data"]))


def _tensor(text: str) -> np.ndarray:
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    magic, _, _, _, ndim, code, bits, lanes = _HEADER.unpack_from(raw)
    if magic != _MAGIC or not 0 <= ndim <= 64 or lanes != 1:
        raise ValueError("the header of a tensor is wrong")
    dtype = DType("bool" if code == 6 else f"{_KINDS[code]}{bits}")
    shape = struct.unpack_from(f"<{ndim}q", raw, _HEADER.size)
    start = _HEADER.size + 8 * ndim
    (size,) = struct.unpack_from("<q", raw, start)
    data = raw[start + 8 :]
    if min(shape, default=0) < 0 or len(data) != size or size != math.prod(shape) * dtype.itemsize:
        raise ValueError("the size of a tensor does not match its header")
    return np.frombuffer(data, dtype.numpy).reshape(shape)
