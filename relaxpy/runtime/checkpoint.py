"""Tensors of safetensors files, mapped into memory and not read.

    u64          length of the header in bytes, little-endian
    header       JSON: name → {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, without "__metadata__"
    data         offsets count from here

The package safetensors copies each tensor that it returns, and packing wants to read every byte once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.container import open_regular
from relaxpy.runtime.tensor import Array

WEIGHTS_FILE = "model.safetensors"
_LONGEST_HEADER = 100_000_000
"""The format's own limit in bytes."""
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of a checkpoint, or a part of one, and whether it is transposed at load."""

    name: str
    transpose: bool = False
    rows: tuple[int, int, int] | None = None
    """Of a tensor that several parameters are joined in: the first row, the one after the last, and the number of all
    rows, as transposed. None: the whole tensor."""

    def read(self, tensor: Any) -> Any:
        """The part of the tensor that the source names, without a copy. A tensor of another number of rows is returned
        whole: its shape is not the wanted one."""
        found = tensor.T if self.transpose else tensor
        if self.rows is None or found.shape[:1] != self.rows[2:]:
            return found
        return found[self.rows[0] : self.rows[1]]


def weight_files(place: str | os.PathLike[str]) -> list[Path]:
    """The files of a checkpoint: a single file, or in a directory `model.safetensors` or the shards in its index.

    Raises: UsageError (`bad-checkpoint`) if one is missing.
    """
    directory = Path(place)
    if not directory.is_dir():
        return [directory]
    whole, index = directory / WEIGHTS_FILE, directory / f"{WEIGHTS_FILE}.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        raise UsageError("bad-checkpoint", f"{directory} has no {WEIGHTS_FILE}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            "bad-checkpoint", f"{index} is not a valid index of tensors: {error}"
        ) from None
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise UsageError("bad-checkpoint", f"{directory} lacks {', '.join(missing)}")
    return [directory / name for name in names]


def map_tensors(files: Sequence[Path]) -> dict[str, Array]:
    """All tensors of safetensors files, by name: read-only arrays over the mapped files.

    Raises: UsageError (`bad-checkpoint`) for a file that cannot be read, is truncated or damaged, and for a name that
    two files have.
    """
    found: dict[str, Array] = {}
    for path in files:
        tensors = _map_file(path)
        if both := found.keys() & tensors.keys():
            raise UsageError("bad-checkpoint", f"{path} has {sorted(both)[0]} again")
        found |= tensors
    return found


def _map_file(path: Path) -> dict[str, Array]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise _bad(path, f"its header has {length} bytes, the file {size}")
            header = json.loads(file.read(length))
            start = 8 + length
            memory: Any = np.zeros(0, np.uint8)
            if size > start:
                memory = np.asarray(np.memmap(file, np.uint8, "r", start, (size - start,)))
    except OSError as error:
        raise _bad(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise _bad(path, "its header is no object")
    return {
        name: _tensor(path, name, entry, memory)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _tensor(path: Path, name: str, entry: Any, memory: Array) -> Array:
    try:
        dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
        begin, end = entry["data_offsets"]
        known = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        known, dtype, shape, begin, end = False, "", (), 0, 0
    if not known:
        raise _bad(path, f"it describes {name} as {json.dumps(entry)[:80]}")
    itemsize = dtypes.info(dtype).itemsize
    if end - begin != math.prod(shape) * itemsize:
        raise _bad(path, f"{name}, {dtype} {tuple(shape)}, has {end - begin} bytes")
    if end > len(memory):
        raise _bad(path, f"{name} ends {end - len(memory)} bytes after the file: it is truncated")
    part = memory[begin:end]
    return part.view(dtypes.to_numpy(dtype)).reshape(shape)


def _bad(path: Path, reason: str) -> UsageError:
    return UsageError("bad-checkpoint", f"{path} cannot be read as safetensors: {reason}")
