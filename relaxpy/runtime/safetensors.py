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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.files import open_regular
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.tensor import Array

WEIGHTS_FILE = "model.safetensors"
_LONGEST_HEADER = 100_000_000
"""The format's own limit in bytes."""
_LONGEST_TEXT = 64 << 20
"""The largest configuration, index or template in bytes that is read."""
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_OTHER_LAYOUTS = "tf", "flax"
"""Values of the metadata's `format`: TensorFlow and Flax name their tensors otherwise, and turn matrices."""


@dataclass(frozen=True, eq=False, slots=True)
class Decoded:
    """A tensor that is computed from the bytes of a checkpoint, each time that it is read."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]
    """The tensor: an array of this shape and dtype."""

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return math.prod(self.shape) * dtypes.info(self.dtype).itemsize


class Tensors(Mapping[str, "Array | Decoded"]):
    """Tensors of a checkpoint by name, and the files that they are made from."""

    def __init__(
        self, found: Mapping[str, Array | Decoded], files: Sequence[Path], identity: str = ""
    ) -> None:
        self._found = found
        self.files = tuple(files)
        self.identity = identity
        """All that the tensors depend on beside the files' bytes, such as the code that decodes them."""

    def __getitem__(self, name: str) -> Array | Decoded:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of a checkpoint, or a part of one, or several that are joined."""

    name: str
    """The tensor's name; of several, what they are called in messages."""
    transpose: bool = False
    """Are the last two axes exchanged at load?"""
    rows: tuple[int, int, int] | None = None
    """Of a tensor that several parameters are joined in: the first row, the one after the last, and the number of all
    rows, as transposed. None: the whole tensor."""
    parts: tuple[str, ...] = ()
    """The names of several tensors of one shape, whose rows are joined. (): there is one, of the source's name."""
    count: int = 0
    """The number of equal parts that the rows are cut into, along a new first axis of experts, say. 0: none."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors that are read."""
        return self.parts or (self.name,)

    def without(self, prefix: str) -> Source:
        """The source with names that do not begin with the prefix."""
        parts = tuple(name.removeprefix(prefix) for name in self.parts)
        return replace(self, name=self.name.removeprefix(prefix), parts=parts)

    def read(self, tensor: Any) -> Any:
        """The part of the tensor that the source names, without a copy. A tensor of another number of rows is returned
        whole: its shape is not the wanted one."""
        if isinstance(tensor, Decoded):
            if not self.transpose and self.rows is None:
                return tensor
            like = self.read(np.broadcast_to(np.zeros((), np.bool_), tensor.shape))
            return Decoded(like.shape, tensor.dtype, lambda: self.read(tensor.read()))
        found = tensor.swapaxes(-1, -2) if self.transpose and tensor.ndim > 1 else tensor
        if self.rows is None or found.shape[:1] != self.rows[2:]:
            return found
        return found[self.rows[0] : self.rows[1]]

    def joined(self, tensors: Sequence[Any]) -> Any:
        """The parameter, from the tensors of `names`: `read` of one tensor; several are joined when they are read. Of
        those that cannot be joined, one is returned: its shape is not the wanted one."""
        first = tensors[0]
        if not self.parts:
            return self.read(first)
        for tensor in tensors:
            if tensor.shape != first.shape or str(tensor.dtype) != str(first.dtype):
                return tensor
        rows = len(tensors) * first.shape[0] if len(first.shape) == 2 else -1
        if rows < 0 or (self.count and rows % self.count):
            return first
        shape = (rows, first.shape[1])
        if self.count:
            shape = (self.count, rows // self.count, first.shape[1])

        def read() -> Array:
            arrays = [x.read() if isinstance(x, Decoded) else x for x in tensors]
            return np.concatenate(arrays).reshape(shape)

        return Decoded(shape, str(first.dtype), read)


def best_layout(layouts: Sequence[Mapping[str, Source]], names: Iterable[str]) -> dict[str, Source]:
    """Of several maps from parameters to tensors, the one of which most names are there; the first of equal ones."""
    there = set(names)

    def share(layout: Mapping[str, Source]) -> float:
        wanted = {name for source in layout.values() for name in source.names}
        return len(wanted & there) / max(len(wanted), 1)

    return dict(max(layouts, key=share))


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
        raise UsageError(
            "bad-checkpoint", f"{directory} has no {WEIGHTS_FILE}", help=_instead(directory)
        )
    names = shards_of(index)
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise UsageError(
            "bad-checkpoint",
            f"{directory} lacks {', '.join(missing)}",
            help=f"copy the files that {index.name} lists, all of them",
        )
    return [directory / name for name in names]


def shards_of(index: Path) -> list[str]:
    """The files that an index of shards names, sorted. Raises: UsageError (`bad-checkpoint`)."""
    found = read_json(index)
    try:
        names = sorted(set(found["weight_map"].values()))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            "bad-checkpoint", f"{index} is not a valid index of tensors: {error}"
        ) from None
    if strange := [name for name in names if not isinstance(name, str) or not _is_plain(name)]:
        raise UsageError(
            "bad-checkpoint", f"{index} names {strange[0]!r}, which is no file of its folder"
        )
    return names


def _instead(directory: Path) -> str:
    """Advice on the weights that a folder has instead."""
    names = sorted(os.listdir(directory))
    if pickled := [name for name in names if name.endswith((".bin", ".pth", ".pt"))]:
        return (
            f"{pickled[0]} is a pickle, a program, and is not read; transformers writes safetensors: "
            f"AutoModelForCausalLM.from_pretrained({str(directory)!r}).save_pretrained(…)"
        )
    if shards := [name for name in names if name.endswith(".safetensors")]:
        return f"it has {shards[0]}, but not the index of shards, {WEIGHTS_FILE}.index.json"
    return f"weights are in {WEIGHTS_FILE}, or in shards with {WEIGHTS_FILE}.index.json"


def read_json(path: Path) -> Any:
    """The value of a JSON file. Raises: UsageError (`bad-checkpoint`)."""
    return parse_json(read_text(path), path)


def parse_json(text: str, path: Path) -> Any:
    """The value of the text of a JSON file. Raises: UsageError (`bad-checkpoint`)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = lfs_problem(text[:8].encode())
        reason = f"cannot be read: {problem}" if problem else f"is not JSON: {error}"
        raise UsageError("bad-checkpoint", f"{path} {reason}") from None


def read_text(path: Path, most: int = _LONGEST_TEXT) -> str:
    """The text of a regular file of at most `most` bytes. Raises: UsageError (`bad-checkpoint`)."""
    try:
        with open_regular(path) as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # a ValueError: a name with a null byte
        reason = getattr(error, "strerror", None) or error
        raise UsageError("bad-checkpoint", f"{path} cannot be read: {reason}") from None
    if len(data) > most:
        raise UsageError("bad-checkpoint", f"{path} is larger than {most >> 20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            "bad-checkpoint", f"{path} is not text in UTF-8 (byte {error.start})"
        ) from None


def lfs_problem(start: bytes) -> str | None:
    """Why a file cannot be read, by its first eight bytes, if it is what a clone without Git LFS has."""
    if start != b"version ":
        return None
    return "it is a pointer of Git LFS, not the file (git lfs pull gets it)"


def _is_plain(name: str) -> bool:
    """Whether a name is that of a file in a folder: it does not lead to another one."""
    return Path(name).name == name and "\0" not in name


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
            start = file.read(8)
            if problem := lfs_problem(start):
                raise _bad(path, problem)
            length = int.from_bytes(start, "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise _bad(path, f"its header has {length} bytes, the file {size}")
            header = json.loads(file.read(length))
            begin = 8 + length
            memory: Any = np.zeros(0, np.uint8)
            if size > begin:
                memory = np.asarray(np.memmap(file, np.uint8, "r", begin, (size - begin,)))
    except OSError as error:
        raise _bad(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise _bad(path, "its header is no object")
    metadata: Any = header.get("__metadata__")
    if isinstance(metadata, dict) and metadata.get("format") in _OTHER_LAYOUTS:
        raise _bad(path, f"its tensors are as {metadata['format']} has them, not as PyTorch does")
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
