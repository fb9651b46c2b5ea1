"""A file of named, checksummed sections: how executables and weights are stored.

    magic        8 bytes
    version      u32
    header size  u32       bytes from the beginning to the first section, padded
    file size    u64
    count        u32, and 4 bytes of zeros
    table        count × (name 16 bytes, offset u64, length u64, stored u64, sha256 32 bytes)
    sha256       of all the above
    sections     each at a multiple of 64 bytes; `stored` is `length` with its padding, which the checksum covers too

Little-endian. Every byte of the file is under a checksum, and `open_container` checks them all before anything is
mapped or interpreted: a damaged library would end the process in the loader. Files are written beside their place and
moved there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relaxpy.errors import ExecutableError
from relaxpy.files import moved_to, open_regular

MAGIC = b"RELAXPY\n"
VERSION = 12
ALIGNMENT = 64

_HEAD = struct.Struct("<8sIIQI4x")
_ENTRY = struct.Struct("<16sQQQ32s")
_DIGEST = 32
_MOST_SECTIONS = 64
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Section:
    """The position of a section in its file."""

    name: str
    offset: int
    length: int
    stored: int
    digest: bytes


Data: TypeAlias = "bytes | Sequence[bytes | NDArray[np.uint8]]"
"""The bytes of a section, in one or more pieces."""


def write_container(path: Path, sections: Mapping[str, Data]) -> dict[str, str]:
    """Writes a file. The same sections give the same bytes. Returns the checksum of each section in hexadecimal.

    Raises: ExecutableError (`file-write`) if the file cannot be written. No partial file is left then.
    """
    header = _pad(_HEAD.size + _ENTRY.size * len(sections) + _DIGEST)
    entries: list[Section] = []
    offset = header
    for name, data in sections.items():
        length = sum(len(piece) for piece in _pieces(data))
        stored = _pad(length)
        digest = hashlib.sha256()
        for piece in _pieces(data):
            digest.update(piece)
        digest.update(bytes(stored - length))
        entries.append(Section(name, offset, length, stored, digest.digest()))
        offset += stored
    head = _HEAD.pack(MAGIC, VERSION, header, offset, len(entries))
    for entry in entries:
        head += _ENTRY.pack(
            entry.name.encode(), entry.offset, entry.length, entry.stored, entry.digest
        )
    head = head.ljust(header - _DIGEST, b"\0")
    head += hashlib.sha256(head).digest()
    try:
        _write_beside(_destination(path), head, entries, sections)
    except OSError as error:
        raise ExecutableError(
            "file-write", f"cannot write {path}: {error.strerror or error}"
        ) from error
    return {entry.name: entry.digest.hex() for entry in entries}


def _destination(path: Path) -> Path:
    """The regular file to write, with links resolved. A device or a pipe is not replaced by a file.

    Raises: OSError if the path exists and is not a regular file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file")
    return path


def _write_beside(
    path: Path, head: bytes, entries: Sequence[Section], sections: Mapping[str, Data]
) -> None:
    """Writes a temporary file and moves it into place, so that readers see either the old file or the new one."""
    with moved_to(path) as beside, beside.open("xb") as file:
        file.write(head)
        for entry in entries:
            for piece in _pieces(sections[entry.name]):
                file.write(piece)
            file.write(bytes(entry.stored - entry.length))


def _pieces(data: Data) -> Sequence[memoryview]:
    pieces: Sequence[Any] = [data] if isinstance(data, bytes) else data
    return [memoryview(piece) for piece in pieces]


def _pad(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Container:
    """A file whose checksums have been verified."""

    path: Path
    sections: dict[str, Section]

    def read(self, name: str) -> bytes:
        """A section's bytes. Raises: ExecutableError (`file-damaged`, `file-read`)."""
        section = self.sections.get(name)
        if section is None:
            raise ExecutableError("file-damaged", f"{self.path} has no section {name!r}")
        try:
            with open_regular(self.path) as file:
                file.seek(section.offset)
                data = file.read(section.length)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        # The file may have been replaced since it was checked.
        if hashlib.sha256(data + bytes(section.stored - section.length)).digest() != section.digest:
            raise ExecutableError(
                "file-damaged", f"{self.path}: section {name!r} changed while it was read"
            )
        return data

    def map(self, name: str) -> NDArray[np.uint8]:
        """A section mapped into memory, read-only. Pages are read when they are first accessed."""
        section = self.sections.get(name)
        if section is None:
            raise ExecutableError("file-damaged", f"{self.path} has no section {name!r}")
        if section.length == 0:
            return np.zeros(0, np.uint8)
        try:
            with open_regular(self.path) as file:
                return np.memmap(file, np.uint8, "r", section.offset, (section.length,))
        except (OSError, ValueError) as error:  # ValueError: it has become shorter
            raise ExecutableError("file-read", f"cannot map {self.path}: {error}") from error


@dataclass(frozen=True, slots=True)
class MemoryContainer:
    """Sections in memory, without checksums. The caller must make sure that the memory is intact."""

    memory: NDArray[np.uint8]
    places: Mapping[str, tuple[int, int]]
    """Section → its start and end."""

    @staticmethod
    def pieces(sections: Mapping[str, Data]) -> list[memoryview]:
        """The sections as consecutive pieces: a line of JSON with their positions, then each section at a multiple of
        64 bytes."""
        places: dict[str, tuple[int, int]] = {}
        pieces: list[memoryview] = []
        end = 0
        for name, data in sections.items():
            padding = _pad(end) - end
            begin = end + padding
            pieces += [memoryview(bytes(padding)), *_pieces(data)]
            end = begin + sum(len(piece) for piece in _pieces(data))
            places[name] = (begin, end)
        line = json.dumps(places).encode()
        return [memoryview(line.ljust(_pad(len(line) + 1) - 1) + b"\n"), *pieces]

    @classmethod
    def of(cls, memory: memoryview) -> MemoryContainer:
        """The sections in the output of `pieces`, read-only, without a copy. Raises ValueError for any other bytes."""
        line, _, _ = bytes(memory[: 1 << 16]).partition(b"\n")
        return cls(np.frombuffer(memory[len(line) + 1 :].toreadonly(), np.uint8), json.loads(line))

    def read(self, name: str) -> bytes:
        """A section's bytes."""
        return self.map(name).tobytes()

    def map(self, name: str) -> NDArray[np.uint8]:
        """A section without a copy."""
        begin, end = self.places[name]
        return self.memory[begin:end]


def open_container(path: Path, what: str = "an executable") -> Container:
    """Opens a file and verifies all its checksums.

    Raises: ExecutableError: `file-read` (missing, no permission), `file-format` (not ours), `file-version`,
    `file-truncated`, `file-damaged` (names the section).
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEAD.size)
            if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
                raise ExecutableError("file-format", f"{path} is not {what} of relaxpy")
            if len(head) < _HEAD.size:
                raise _truncated(path, size, "its header")
            _, version, header, total, count = _HEAD.unpack(head)
            if version != VERSION:
                raise ExecutableError(
                    "file-version",
                    f"{path} has format version {version}, this relaxpy reads {VERSION}",
                    help="build it again with this version",
                )
            if count > _MOST_SECTIONS or header != _pad(_HEAD.size + _ENTRY.size * count + _DIGEST):
                raise ExecutableError("file-damaged", f"{path} is damaged: its header is not valid")
            head += file.read(header - len(head))
            if len(head) < header:
                raise _truncated(path, size, f"{header} bytes of header")
            if hashlib.sha256(head[:-_DIGEST]).digest() != head[-_DIGEST:]:
                raise ExecutableError(
                    "file-damaged", f"{path} is damaged: the checksum of its header is wrong"
                )
            if size < total:
                raise _truncated(path, size, f"{total} bytes")
            if size > total:
                raise ExecutableError(
                    "file-damaged", f"{path} is damaged: {size - total} bytes follow its end"
                )
            sections = _table(path, head, count, header, total)
            for section in sections.values():
                _check(file, path, section)
    except OSError as error:
        raise _unreadable(path, error) from error
    return Container(path, sections)


def _table(path: Path, head: bytes, count: int, header: int, total: int) -> dict[str, Section]:
    """The table of sections. They must be contiguous and fill the file.

    Raises: ExecutableError (`file-damaged`) for any other table.
    """
    sections: dict[str, Section] = {}
    end = header
    for index in range(count):
        name, offset, length, stored, digest = _ENTRY.unpack_from(
            head, _HEAD.size + index * _ENTRY.size
        )
        text = name.rstrip(b"\0").decode("ascii", "replace")
        if text in sections or offset != end or stored != _pad(length):
            raise ExecutableError(
                "file-damaged",
                f"{path} is damaged: its table of sections is not valid at {text!r}",
            )
        sections[text] = Section(text, offset, length, stored, digest)
        end += stored
    if end != total:
        raise ExecutableError(
            "file-damaged", f"{path} is damaged: its sections end at {end}, the file at {total}"
        )
    return sections


def _check(file: BinaryIO, path: Path, section: Section) -> None:
    """Reads a section and verifies its checksum."""
    digest = hashlib.sha256()
    left = section.stored
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise _truncated(
                path, section.offset + section.stored - left, f"section {section.name!r}"
            )
        digest.update(chunk)
        left -= len(chunk)
    if digest.digest() != section.digest:
        raise ExecutableError(
            "file-damaged", f"{path} is damaged: the checksum of section {section.name!r} is wrong"
        )


def _truncated(path: Path, size: int, wanted: str) -> ExecutableError:
    return ExecutableError(
        "file-truncated",
        f"{path} is truncated: it ends after {size} bytes, before the end of {wanted}",
        help="copy it again",
    )


def _unreadable(path: Path, error: OSError) -> ExecutableError:
    return ExecutableError("file-read", f"cannot read {path}: {error.strerror or error}")
