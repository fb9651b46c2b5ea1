"""Files: atomic writes, reads that never block, and the location of caches."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from relaxpy.errors import RelaxError, UsageError

_BESIDE = ".relaxpy-"
"""Temporary files begin with it."""
CACHE_SIZE = 1 << 30
"""The default limit of a folder in the cache, in bytes. `RELAXPY_CACHE_SIZE` overrides it."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_ABANDONED_SECONDS = 3600.0
"""A temporary file that was not written to for this long belongs to a killed process."""


def given_path(given: object, what: str, error: type[RelaxError], code: str) -> Path:
    """The path that somebody gave for a file or a folder. Raises: `error` with this code for what is no path, such as a
    model in memory."""
    try:
        return Path(os.fsdecode(given))  # type: ignore[arg-type]
    except TypeError:
        pass
    help = None
    if hasattr(given, "state_dict"):
        help = (
            "write a model of torch with relaxpy.nn, and load its weights: "
            "model.load_state_dict(theirs.state_dict()); or give the folder that save_pretrained of transformers wrote"
        )
    raise error(code, f"the path of {what} is expected, got {type(given).__name__}", help=help)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path whose file replaces `path` if the block succeeds. Readers see the old file or the new one; if
    the block fails, nothing is left. The temporary file is in the same folder. Links are followed. A path that is no
    regular file (`/dev/stdout`, a pipe) is written directly.

    Raises: UsageError (`file-write`) if writing fails, including an OSError raised in the block.
    """
    try:
        place = Path(path).resolve()
        if place.exists() and not place.is_file() and not place.is_dir():
            yield Path(path)
            return
        with moved_to(place) as beside:
            yield beside
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise UsageError("file-write", f"cannot write {path}: {reason}") from error


@contextmanager
def moved_to(place: Path) -> Iterator[Path]:
    """Like `replacing`, for a path that is no link and no device. Raises OSError."""
    beside = place.with_name(f"{_BESIDE}{os.urandom(8).hex()}")
    try:
        yield beside
        if place.exists():
            beside.chmod(place.stat().st_mode & 0o777)
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def locked(folder: str | os.PathLike[str], wait: bool = True) -> Iterator[int]:
    """Keeps other processes that lock the same folder away, which is made if need be: a block that reads a file there,
    changes and writes it loses nothing of theirs. They wait, or without `wait` are told. Yields the lock's descriptor:
    a child that inherits it holds the lock, too. Windows has a file for it, `.lock`, and waits for ten seconds.

    Raises: UsageError (`file-write`) where there can be no such folder; BlockingIOError for others that have it.
    """
    try:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":
            lock = os.open(place / ".lock", os.O_RDWR | os.O_CREAT)
        else:
            lock = os.open(place, os.O_RDONLY)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError("file-write", f"cannot write to {folder}: {reason}") from error
    try:
        _lock(lock, wait)
        yield lock
    finally:
        os.close(lock)


def _lock(file: int, wait: bool) -> None:
    """Lock an open file or folder until it is closed."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from None
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to a file, in UTF-8. Raises UsageError (`file-write`)."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def open_regular(path: str | os.PathLike[str], append: bool = False) -> BinaryIO:
    """Opens a file for reading, or creates it and appends to it. Pipes, sockets and devices are refused: a pipe would
    block.

    Raises: OSError, also for other than regular files, and for a name that no file has.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT if append else os.O_RDONLY
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags, 0o666)
    except ValueError as error:  # a null byte in the name
        raise OSError(errno.EINVAL, str(error)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return open(handle, "ab" if append else "rb", buffering=0 if append else -1)  # type: ignore[return-value]


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The contents of a regular file. Raises: OSError, also for a file of more than `most_bytes`."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes")
    return data


def cache_folder() -> str:
    """The cache directory of the user: `RELAXPY_CACHE_DIR` or the platform's; "" for a user without a home."""
    return os.environ.get("RELAXPY_CACHE_DIR") or _platform_folder()


def kept_folder(name: str) -> Path | None:
    """A folder in the user's cache; None if there is no cache (`RELAXPY_CACHE_SIZE=0`, or no home).

    Raises: UsageError (`cache-size`).
    """
    folder = cache_folder()
    return Path(folder) / name if folder and cache_size() else None


def cache_size() -> int:
    """The most bytes of a folder of the user's cache: `RELAXPY_CACHE_SIZE`, or 1 GiB; 0: there is no cache.

    Raises: UsageError (`cache-size`).
    """
    text = os.environ.get("RELAXPY_CACHE_SIZE", "")
    return parse_size(text) if text else CACHE_SIZE


def parse_size(text: str) -> int:
    """Parses a size in bytes: `"500M"`, `"1 GiB"`, `"0"` (units are powers of 1024); `"off"` is 0.

    Raises: UsageError (`cache-size`).
    """
    if text.strip().lower() == "off":
        return 0
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(
            "cache-size",
            f"{text!r} is not a size",
            help="set RELAXPY_CACHE_SIZE to a number of bytes, with or without K, M or G (500M), or to 0 or off",
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def tuning_path() -> Path | None:
    """The user's records of tuned schedules: `RELAXPY_TUNING` (None if that is empty), else `tuning.json` beside the
    caches; None if the user has no home directory."""
    named = os.environ.get("RELAXPY_TUNING")
    if named is not None:
        return Path(named) if named else None
    folder = cache_folder()
    return Path(folder) / "tuning.json" if folder else None


def remove_abandoned(folder: Path) -> None:
    """Delete the temporary files that killed processes left in a folder."""
    now = time.time()
    for path in folder.glob(f"{_BESIDE}*"):
        with suppress(OSError):
            if now - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def trim(folder: Path, most_bytes: int, newest: Path) -> None:
    """Delete abandoned temporary files, and the least recently used files of a folder, by their times, until the rest
    fits; never the newest."""
    remove_abandoned(folder)
    entries: list[tuple[float, str, int]] = []
    for path in folder.iterdir():
        with suppress(OSError):
            status = path.stat()
            if path.is_file() and not path.name.startswith("."):
                entries.append((status.st_mtime, str(path), status.st_size))
    evict(entries, most_bytes, newest)


def evict(
    entries: Iterable[tuple[float, str, int]], most_bytes: float, newest: Path | None = None
) -> int:
    """Delete files, each the time of its last use, path and size, the least recently used first, until the others fit;
    never the newest. Returns how many were deleted."""
    left, deleted = sorted(entries), 0
    total = sum(size for _, _, size in left)
    for _, path, size in left:
        if total <= most_bytes:
            break
        if newest is None or path != str(newest):
            with suppress(OSError):
                os.unlink(path)
                total -= size
                deleted += 1
    return deleted


def _platform_folder() -> str:
    """The platform's cache directory; "" for a user without a home."""
    home = os.path.expanduser("~")
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
        return os.path.join(base, "relaxpy", "Cache")
    if sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(base):  # the XDG specification: relative paths are to be ignored
            base = os.path.join(home, ".cache")
    return os.path.join(base, "relaxpy") if os.path.isabs(base) else ""
