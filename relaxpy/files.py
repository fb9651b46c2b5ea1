"""Files: atomic writes, and the location of caches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relaxpy.errors import UsageError


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
    beside = place.with_name(f".relaxpy-{os.urandom(8).hex()}")
    try:
        yield beside
        if place.exists():
            beside.chmod(place.stat().st_mode & 0o777)
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to a file, in UTF-8. Raises UsageError (`file-write`)."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def cache_folder() -> str:
    """The cache directory of the user: `RELAXPY_CACHE_DIR` or the platform's; "" for a user without a home."""
    return os.environ.get("RELAXPY_CACHE_DIR") or _platform_folder()


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
