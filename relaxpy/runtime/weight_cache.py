"""Packed weights on disk: written once for a checkpoint and the packers of an executable, and mapped afterwards.

    <cache>/weights/<key>       tensors, each at a multiple of 64 bytes; an index in JSON; a footer of 64 bytes: magic,
                                offset and length of the index, its SHA-256
    <cache>/weights/seen/…      for a checkpoint's file: its digest, with its size, times and inode of that time

The key is a digest of the checkpoint's bytes and of the packers. A file's digest is computed again only if its size,
its times or its inode changed. Files are written beside their place, flushed to disk, and moved there, so that any
number of processes may write the same one, and a killed process leaves no partial file in place.

No failure of this cache fails a call: without a folder, or on a full disk, weights are packed into memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.files import moved_to, open_regular, read_regular, remove_abandoned, trim
from relaxpy.half_bytes import as_bytes
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.container import ALIGNMENT
from relaxpy.runtime.tensor import Array, Tensor, from_numpy

MOST_BYTES = 64 << 30
"""The limit of the folder in bytes. The least recently used files above it are deleted."""
SPARE_BYTES = 1 << 30
"""Free space of the disk that stays free."""

_MAGIC = b"RXWEIGHT"
_FOOTER = struct.Struct("<8sQQ32s8x")
_CHUNK = 16 << 20
_LONGEST_NOTE = 1 << 16
"""No note of a digest has more bytes."""
_FRESH_SECONDS = 2.0
"""A file that changed less than this time ago may change again without another time: its digest is not recorded."""


def digest_of(folder: Path, files: Sequence[Path]) -> str:
    """A digest of the contents of files, in this order. Raises: OSError."""
    return hashlib.sha256(
        "".join(_file_digest(folder, file) for file in files).encode()
    ).hexdigest()


def _file_digest(folder: Path, file: Path) -> str:
    path = file.resolve()
    status = os.stat(path)
    facts = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
    seen = folder / "seen" / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    with contextlib.suppress(OSError, ValueError, RecursionError):
        known = json.loads(read_regular(seen, _LONGEST_NOTE))
        if isinstance(known, dict) and known.get("facts") == facts:
            return str(known["digest"])
    digest = _contents(path, status.st_size)
    if time.time() - max(status.st_mtime, status.st_ctime) > _FRESH_SECONDS:
        with contextlib.suppress(OSError):
            seen.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with moved_to(seen) as beside:
                beside.write_text(json.dumps({"facts": facts, "digest": digest}), encoding="utf-8")
    return digest


def _contents(path: Path, size: int) -> str:
    """A digest of the digests of a file's chunks, which are computed in parallel. Raises: OSError."""
    from concurrent.futures import ThreadPoolExecutor  # not at every start: it imports logging

    with open_regular(path) as file:

        def chunk(begin: int) -> bytes:
            digest = hashlib.sha256()
            for at in range(begin, min(begin + 8 * _CHUNK, size), _CHUNK):
                digest.update(os.pread(file.fileno(), min(_CHUNK, size - at), at))
            return digest.digest()

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(chunk, range(0, size, 8 * _CHUNK)))
    return hashlib.sha256(b"".join([str(size).encode(), *parts])).hexdigest()


def map_kept(path: Path) -> list[Tensor] | None:
    """The tensors of a file, mapped; None if there is no such file, or it is damaged. A damaged file is deleted."""
    try:
        with open_regular(path) as file:
            tensors = _mapped(file)
            with contextlib.suppress(OSError):  # another user's
                os.utime(file.fileno())
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, RuntimeCheckError, RecursionError):
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return tensors


def _mapped(file: BinaryIO) -> list[Tensor]:
    """Raises: OSError, ValueError, KeyError, TypeError, RuntimeCheckError for a file of another form."""
    size = os.fstat(file.fileno()).st_size
    if size < _FOOTER.size:
        raise ValueError("no footer")
    file.seek(size - _FOOTER.size)
    magic, offset, length, digest = _FOOTER.unpack(file.read(_FOOTER.size))
    if magic != _MAGIC or offset + length + _FOOTER.size != size:
        raise ValueError("the footer does not fit the file")
    file.seek(offset)
    index = file.read(length)
    if hashlib.sha256(index).digest() != digest:
        raise ValueError("the checksum of the index is wrong")
    memory: Any = np.zeros(0, np.uint8)
    if offset:
        memory = np.asarray(np.memmap(file, np.uint8, "r", 0, (offset,)))
    found: list[Tensor] = []
    for entry in json.loads(index):
        dtype, shape, begin = entry["dtype"], entry["shape"], entry["offset"]
        end = begin + dtypes.nbytes(dtype, shape)
        if not 0 <= begin <= end <= offset or begin % ALIGNMENT:
            raise ValueError("a tensor is outside the file")
        found.append(from_numpy(dtypes.from_bytes(memory[begin:end], dtype, shape)))
    return found


@dataclass(slots=True)
class Writer:
    """Appends tensors to a file of packed weights."""

    _file: BinaryIO
    _index: list[dict[str, Any]]
    _end: int = 0

    def write(self, array: Array) -> None:
        """Raises: OSError."""
        dtype, shape = dtypes.from_numpy(array.dtype), list(array.shape)
        self._index.append({"dtype": dtype, "shape": shape, "offset": self._end})
        raw = as_bytes(array)
        self._file.write(raw.data)
        padding = -raw.nbytes % ALIGNMENT
        self._file.write(bytes(padding))
        self._end += raw.nbytes + padding

    def finish(self) -> None:
        """Writes the index and the footer, and flushes the file to disk. Raises: OSError."""
        index = json.dumps(self._index).encode()
        digest = hashlib.sha256(index).digest()
        self._file.write(index + _FOOTER.pack(_MAGIC, self._end, len(index), digest))
        self._file.flush()
        os.fsync(self._file.fileno())


@contextlib.contextmanager
def kept_file(path: Path, nbytes: int) -> Iterator[Writer]:
    """A new file of about this size, moved to `path` when the block ends without an error. Raises: OSError, also if the
    disk has too little space."""
    import shutil  # not at every start: it imports archive formats

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    if shutil.disk_usage(path.parent).free < nbytes + SPARE_BYTES:
        raise OSError("too little space")
    with moved_to(path) as beside, beside.open("xb", buffering=0) as file:
        writer = Writer(file, [])
        yield writer
        writer.finish()
    trim(path.parent, MOST_BYTES, path)
