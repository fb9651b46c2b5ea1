"""An on-disk cache of builds, with executables and kernels as entries. The key of an entry is a hash of its inputs.

    <folder>/v2/3f/3f09…c2      an entry: magic, key, checksum, zeros to 128 bytes, data
    <folder>/v2/usage           a line a build: hits and misses

An entry's name is its key, a SHA-256 of everything that its data depends on (computed by `relaxpy.build.kernels` and
`relaxpy.build.cached_builds`). So entries are never stale and never change, and builds in any number of processes read
and write one folder without locks. An entry is written to a temporary file and moved into place. An entry that is
truncated, damaged or misnamed fails its checksum; it is deleted and rebuilt.

No failure of the cache fails a build: an unreadable or unwritable folder, or a full disk, acts as an empty cache. The
size of the folder is bounded; each write evicts the least recently used entries.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relaxpy.files import (
    CACHE_SIZE,
    cache_size,
    evict,
    kept_folder,
    moved_to,
    open_regular,
    read_regular,
)

FORMAT = "v2"
MAGIC = b"RXKERNEL"

_HEADER = 128
"""The size of the header in bytes. It aligns the data to a cache line."""
_KEPT = 0.9
"""A cache over its limit is trimmed to this fraction of it."""
_USAGE_BYTES = 1 << 16
"""A longer record of hits and misses is replaced by its sum."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry's file."""

    path: Path
    size: int
    used: float
    """Time of the last write or read, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class BuildCache:
    """The entries of one folder. Methods never raise errors of the file system."""

    folder: Path
    max_bytes: int = CACHE_SIZE

    @classmethod
    def default(cls) -> BuildCache | None:
        """The user's cache: in `RELAXPY_CACHE_DIR` or the platform's cache folder, with at most `RELAXPY_CACHE_SIZE`
        bytes (1 GiB); None if that size is 0 or the user has no home directory.

        Raises: UsageError (`cache-size`).
        """
        folder = kept_folder("")
        return None if folder is None else cls(folder, cache_size())

    def get(self, key: bytes) -> memoryview | None:
        """The data of an entry, memory-mapped and aligned to 64 bytes. Marks the entry as used. None if there is no
        intact entry."""
        path = self._path(key)
        try:
            data = self._data(path, key)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            if data is None:
                path.unlink()
            else:
                os.utime(path)
        return data

    def put(self, key: bytes, *data: bytes | memoryview) -> bool:
        """Stores `data`, given in pieces. Returns False if writing fails."""
        path = self._path(key)
        digest = hashlib.sha256(key)
        for piece in data:
            digest.update(piece)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with moved_to(path) as beside, beside.open("wb") as file:
                for piece in (_header(key, digest.digest()), *data):
                    file.write(piece)
        except (OSError, ValueError):  # ValueError: the folder's name has a null byte
            return False
        return True

    def entries(self) -> list[Entry]:
        """All entries, least recently used first."""
        found: list[tuple[float, str, int]] = []
        for file in self._files():
            with contextlib.suppress(OSError):
                status = file.stat()
                found.append((status.st_mtime, file.path, status.st_size))
        return [Entry(Path(path), size, used) for used, path, size in sorted(found)]

    def trim(self) -> int:
        """Deletes least recently used entries until the rest fits. Returns how many were deleted."""
        size = 0
        for file in self._files():
            with contextlib.suppress(OSError):
                size += file.stat().st_size
        if size <= self.max_bytes:
            return 0
        entries = [(each.used, str(each.path), each.size) for each in self.entries()]
        return evict(entries, self.max_bytes * _KEPT)

    def clear(self) -> int:
        """Deletes all entries and the record of hits. Returns how many entries were deleted."""
        deleted = 0
        for file in self._files():
            with contextlib.suppress(OSError):
                os.unlink(file)
                deleted += 1
        with contextlib.suppress(OSError, ValueError):
            self._usage.unlink()
        return deleted

    def verify(self) -> list[Entry]:
        """Reads all entries, deletes the damaged ones, and returns those."""
        damaged: list[Entry] = []
        for entry in self.entries():
            with contextlib.suppress(OSError):
                if not self._is_whole(entry.path):
                    entry.path.unlink()
                    damaged.append(entry)
        return damaged

    def record(self, hits: int, misses: int) -> None:
        """Records the hits and misses of a build."""
        with contextlib.suppress(OSError, ValueError):
            self._usage.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_regular(
                self._usage, append=True
            ) as file:  # one write: lines of two processes do not mix
                file.write(f"{hits} {misses}\n".encode())
            if self._usage.stat().st_size > _USAGE_BYTES:
                # If two processes write at once, a few builds may be missing from the sum; it is informational only.
                total = "{} {}\n".format(*self.usage())
                with moved_to(self._usage) as beside:
                    beside.write_text(total, encoding="utf-8")

    def usage(self) -> tuple[int, int]:
        """Hits and misses of all builds since the cache was last cleared."""
        hits = misses = 0
        with contextlib.suppress(OSError):
            for line in (
                read_regular(self._usage, 2 * _USAGE_BYTES).decode(errors="replace").splitlines()
            ):
                words = line.split()
                if len(words) == 2 and all(word.isdecimal() for word in words):
                    hits, misses = hits + int(words[0]), misses + int(words[1])
        return hits, misses

    def _data(self, path: Path, key: bytes) -> memoryview | None:
        """The data of an entry, memory-mapped; None if its checksum does not match, or if it is larger than the whole
        cache may be. Raises OSError."""
        with open_regular(path) as file:
            most = max(self.max_bytes, CACHE_SIZE)
            if not _HEADER <= os.fstat(file.fileno()).st_size <= most:
                return None
            stored = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        data = stored[_HEADER:]
        digest = hashlib.sha256(key)
        digest.update(data)
        return data if stored[:_HEADER] == _header(key, digest.digest()) else None

    def _is_whole(self, path: Path) -> bool:
        try:
            return self._data(path, bytes.fromhex(path.name)) is not None
        except ValueError:
            return False  # left by a writer that was killed

    @property
    def _usage(self) -> Path:
        return self.folder / FORMAT / "usage"

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self.folder / FORMAT / name[:2] / name

    def _files(self) -> Iterator[os.DirEntry[str]]:
        """Entries, and temporary files of killed writers. A build that compiles something goes through all of them, so
        this is `scandir`: paths take ten times as long."""
        for folder in _listed(self.folder / FORMAT):
            if len(folder.name) == 2:
                yield from (file for file in _listed(folder) if _is_file(file))


def _listed(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """The entries of a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (OSError, ValueError):
        return []


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _header(key: bytes, digest: bytes) -> bytes:
    return (MAGIC + key + digest).ljust(_HEADER, b"\0")
