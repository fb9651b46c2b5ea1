"""The identity of this compiler: what a cache's key contains besides the inputs of a build."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import relaxpy.version

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "sympy")


def sources_digest(parts: Iterable[str], others: Iterable[Path] = ()) -> str | None:
    """A digest of versions, and of the sources in these files and folders of relaxpy and in other files. None if a
    source is unknown or has changed since relaxpy was imported, since the running code may then differ from the
    files."""
    digest, root = _versions(), _root()
    files = [path for part in parts for path in _sources(root / part)]
    for path in (*files, *others):
        if path.stat().st_mtime > relaxpy.version.LOADED_AT:
            return None
        name = path.relative_to(root) if path.is_relative_to(root) else path
        digest.update(f"{name.as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest() if files else None


def installation() -> str | None:
    """A digest of versions, and of the places, sizes and times of all sources of relaxpy: quicker than
    `sources_digest`, and another one for a copy. None if a source has changed since relaxpy was imported."""
    digest = _versions()
    files = list(_files(str(_root())))
    for path, size, time in sorted(files):
        if time > relaxpy.version.LOADED_AT * 1e9:
            return None
        digest.update(f"{path}\n{size}\n{time}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest() if files else None


def _root() -> Path:
    return Path(relaxpy.version.__file__).parent


def _versions() -> Any:
    digest = hashlib.sha256(relaxpy.version.__version__.encode())
    for package in _PACKAGES:
        try:
            digest.update(f"{package}={_version(package)}\n".encode())
        except PackageNotFoundError:
            digest.update(f"{package}\n".encode())
    return digest


def _version(package: str) -> str:
    """The version of a package, by the line that says so: to parse all lines, as `importlib.metadata.version` does,
    takes as long as to read the times of all sources."""
    found = distribution(package)
    for line in (found.read_text("METADATA") or "").splitlines():
        if line.startswith("Version:"):
            return line
    return found.version


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of each source below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from () if entry.name == "__pycache__" else _files(entry.path)
            elif entry.name.endswith((".py", ".json")):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns


def _sources(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]
