"""GGUF files: metadata, and tensors that are mapped and not read.

    magic "GGUF", u32 version, u64 number of tensors, u64 number of fields
    fields       name, u32 type, value; a string is a u64 length and UTF-8; an array is a u32 type, a u64 length, values
    tensors      name, u32 rank, u64 sizes (the innermost first), u32 type, u64 offset
    data         at the next multiple of `general.alignment`; offsets count from here

The package gguf trusts its files; here everything is checked against the file's size before it is used.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.checkpoints.gguf_blocks import OTHERS, TYPES, GgufRows
from relaxpy.checkpoints.stored import Coded, Floats, Stored, row_count
from relaxpy.errors import UsageError
from relaxpy.files import open_regular
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.safetensors import lfs_problem
from relaxpy.runtime.tensor import Array

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_AXES = 4
_MOST_SIZE = 1 << 48
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""The types of fields that are numbers, as `struct` has them."""
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, eq=False)
class GgufFile:
    """The content of a file."""

    path: Path
    fields: dict[str, Any]
    """The metadata: numbers, strings, and lists of one or the other."""
    tensors: dict[str, Stored]
    """By the names of the file, their axes with the outermost first."""
    files: tuple[Path, ...]
    """The file, or all parts that it is one of."""


def is_gguf(path: Path) -> bool:
    """Does a file begin like a GGUF file? Those that cannot be opened do not."""
    try:
        with open_regular(path) as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_gguf(path: Path) -> GgufFile:
    """Reads a file's header and maps its tensors; those of all parts, if it is one of several, with the metadata of the
    first.

    Raises: UsageError (`bad-checkpoint`) for a file that cannot be read, is damaged, or has what is not supported, and
    for parts that are missing or do not belong together.
    """
    found = _Reader(path).file()
    count = found.fields.get("split.count")
    return found if count in (None, 0, 1) else _whole(found, count)


_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
"""The name of one of several parts, which are counted from 1."""
_MOST_PARTS = 99_999


def parts_of(name: str) -> list[str]:
    """The names of all parts of the file that one of them is a part of; the name itself of a file in one part."""
    found = _PART.fullmatch(name)
    if found is None:
        return [name]
    return [f"{found[1]}-{n:05d}-of-{found[3]}.gguf" for n in range(1, int(found[3]) + 1)]


def _whole(found: GgufFile, count: object) -> GgufFile:
    """All parts of a file that says that it is one of so many."""
    path = found.path
    if type(count) is not int or not 1 < count <= _MOST_PARTS:
        raise bad(path, f"split.count is {count!r}")
    name = _PART.fullmatch(path.name)
    if name is None or int(name[3]) != count or not 1 <= int(name[2]) <= count:
        raise bad(
            path,
            f"it is one of {count} parts, and its name does not end with -00001-of-{count:05d}.gguf, say",
            help="give the parts the names that they had",
        )
    places = [path.with_name(part) for part in parts_of(path.name)]
    missing = [place.name for place in places if not place.is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise bad(path, f"its folder lacks the parts {', '.join(missing[:3])}{more}")
    tensors: dict[str, Stored] = {}
    parts = [found if place == path else _Reader(place).file() for place in places]
    for number, part in enumerate(parts):
        says = part.fields.get("split.no"), part.fields.get("split.count")
        if says != (number, count):
            raise bad(part.path, f"it says that it is part {says[0]} of {says[1]}, counted from 0")
        if both := tensors.keys() & part.tensors.keys():
            raise bad(part.path, f"an earlier part has {sorted(both)[0]}, too")
        tensors |= part.tensors
    total = parts[0].fields.get("split.tensors.count")
    if total not in (None, len(tensors)):
        raise bad(path, f"its parts have {len(tensors)} tensors together, not {total}")
    return GgufFile(path, parts[0].fields, tensors, tuple(places))


def bad(path: Path, reason: str, help: str | None = None) -> UsageError:
    """The error for a file that cannot be read."""
    return UsageError("bad-checkpoint", f"{path} cannot be read as GGUF: {reason}", help=help)


def tensor_bytes(
    name: str, shape: tuple[int, ...], kind: int, bad: Callable[..., UsageError]
) -> int:
    """The size in bytes of a tensor of a type by its number. Raises: what `bad` makes of a reason, and of a `help`."""
    if kind not in TYPES:
        known = OTHERS.get(kind, f"number {kind}")
        raise bad(
            f"tensor {name} is of type {known}, which is not supported",
            help=f"supported are {', '.join(each for each, _ in TYPES.values())}",
        )
    title, form = TYPES[kind]
    if isinstance(form, str):
        return math.prod(shape) * dtypes.info(form).itemsize
    if shape[-1] % form.size:
        raise bad(
            f"tensor {name}, {title}, has rows of {shape[-1]}, and blocks have {form.size} weights"
        )
    return math.prod(shape) // form.size * form.nbytes


def stored_tensor(
    shape: tuple[int, ...], kind: int, data: Array, floats: type[Floats] = Floats
) -> Stored:
    """A tensor over its bytes."""
    title, form = TYPES[kind]
    if isinstance(form, str):
        array = data.view(dtypes.to_numpy(form)).reshape(shape)
        return floats(shape, title, data.nbytes, array=array)
    width = shape[-1] // form.size * form.nbytes
    rows = GgufRows(form, data.reshape(row_count(shape), width))
    return Coded(shape, title, data.nbytes, rows=rows, form=form.kept, codes=form.kept)


class _Reader:
    """Reads a header from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        try:
            with open_regular(path) as file:
                self.size = os.fstat(file.fileno()).st_size
                start = file.read(8)
                if not start.startswith(MAGIC):
                    raise self.bad(lfs_problem(start) or "it does not begin with GGUF")
                self.memory: Array = np.asarray(np.memmap(file, np.uint8, "r"))
        except OSError as error:
            raise self.bad(error.strerror or str(error)) from error
        self.view = memoryview(self.memory.data)

    def file(self) -> GgufFile:
        """All of the file."""
        self.at = 4
        version, count, fields = self.numbers("<IQQ", "its header")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            order = " in big-endian order" if swapped in _VERSIONS else ""
            raise self.bad(
                f"it is version {swapped if order else version}{order}; 2 and 3 are supported"
            )
        found = self.fields(fields)
        infos = self.tensors(count)
        align = found.get("general.alignment", 32)
        if type(align) is not int or align < 1 or align & (align - 1) or align > 1 << 20:
            raise self.bad(f"general.alignment is {align!r}, not a power of two")
        start = -(-self.at // align) * align
        return GgufFile(self.path, found, self.placed(infos, start, align), (self.path,))

    def fields(self, count: int) -> dict[str, Any]:
        """The metadata."""
        found: dict[str, Any] = {}
        for number in range(count):
            name = self.string(f"the name of field {number}")
            (kind,) = self.numbers("<I", name)
            if name in found:
                raise self.bad(f"it has the field {name} twice")
            found[name] = self.array(name) if kind == _ARRAY else self.value(kind, name)
        return found

    def value(self, kind: int, name: str) -> Any:
        """A number or a string."""
        if kind == _STRING:
            return self.string(name)
        if kind not in _SCALARS:
            raise self.bad(f"{name} is of an unknown type, {kind}")
        return self.numbers(f"<{_SCALARS[kind]}", name)[0]

    def array(self, name: str) -> list[Any]:
        """The values of an array."""
        kind, count = self.numbers("<IQ", name)
        if kind in _SCALARS:
            size = struct.calcsize(f"<{_SCALARS[kind]}")
            if count > (self.size - self.at) // size:
                raise self.ends(name)
            return list(self.numbers(f"<{count}{_SCALARS[kind]}", name))
        if kind != _STRING:
            what = "arrays" if kind == _ARRAY else f"an unknown type, {kind}"
            raise self.bad(f"{name} is an array of {what}")
        if count > (self.size - self.at) // 8:
            raise self.ends(name)
        return [self.string(name) for _ in range(count)]

    def tensors(self, count: int) -> list[tuple[str, tuple[int, ...], int, int]]:
        """Name, shape, type and offset of each tensor."""
        found: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for number in range(count):
            name = self.string(f"the name of tensor {number}")
            (rank,) = self.numbers("<I", name)
            if not 1 <= rank <= _MOST_AXES:
                raise self.bad(
                    f"tensor {name} has {rank} axes; from 1 to {_MOST_AXES} are possible"
                )
            *sizes, kind, offset = self.numbers(f"<{rank}QIQ", f"tensor {name}")
            if math.prod(sizes) > _MOST_SIZE or max(sizes) > _MOST_SIZE:
                raise self.bad(f"tensor {name} has sizes {tuple(reversed(sizes))}")
            if name in found:
                raise self.bad(f"it has the tensor {name} twice")
            found[name] = name, tuple(reversed(sizes)), kind, offset
        return [*found.values()]

    def placed(
        self, infos: list[tuple[str, tuple[int, ...], int, int]], start: int, align: int
    ) -> dict[str, Stored]:
        """The tensors over the mapped data."""
        found: dict[str, Stored] = {}
        ends: list[tuple[int, int, str]] = []
        for name, shape, kind, offset in infos:
            if offset % align:
                raise self.bad(f"tensor {name} is at {offset}, not at a multiple of {align}")
            begin, size = start + offset, tensor_bytes(name, shape, kind, self.bad)
            if begin + size > self.size:
                raise self.bad(
                    f"tensor {name} ends {begin + size - self.size} bytes after the file: it is truncated"
                )
            found[name] = stored_tensor(shape, kind, self.memory[begin : begin + size])
            ends.append((begin, begin + size, name))
        ends.sort()
        for (_, end, first), (begin, _, second) in itertools.pairwise(ends):
            if begin < end:
                raise self.bad(f"tensors {first} and {second} overlap")
        return found

    def string(self, of: str) -> str:
        """A length and UTF-8."""
        begin = self.at + 8
        if begin > self.size:
            raise self.ends(of)
        end = begin + _LENGTH.unpack_from(self.view, self.at)[0]
        if end > self.size:
            raise self.ends(of)
        self.at = end
        try:
            return str(self.view[begin:end], "utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"{of} has a string that is not UTF-8, at byte {begin}") from None

    def numbers(self, form: str, of: str) -> tuple[Any, ...]:
        """The numbers of a `struct` format."""
        begin, self.at = self.at, self.at + struct.calcsize(form)
        if self.at > self.size:
            raise self.ends(of)
        return struct.unpack_from(form, self.view, begin)

    def ends(self, of: str) -> UsageError:
        return self.bad(f"it ends inside of {of}: it is truncated")

    def bad(self, reason: str, help: str | None = None) -> UsageError:
        return UsageError(
            "bad-checkpoint", f"{self.path} cannot be read as GGUF: {reason}", help=help
        )
