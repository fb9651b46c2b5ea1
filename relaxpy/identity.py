"""The identity of this compiler: what a cache's key contains besides the inputs of a build."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import relaxpy.version

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "sympy")


def sources_digest(parts: Iterable[str], others: Iterable[Path] = ()) -> str | None:
    """A digest of versions, and of the sources in these files and folders of relaxpy and in other files. None if a
    source is unknown or has changed since relaxpy was imported, since the running code may then differ from the
    files."""
    digest = hashlib.sha256(relaxpy.version.__version__.encode())
    for package in _PACKAGES:
        try:
            digest.update(f"{package}={version(package)}\n".encode())
        except PackageNotFoundError:
            digest.update(f"{package}\n".encode())
    root = Path(relaxpy.version.__file__).parent
    files = [path for part in parts for path in _sources(root / part)]
    for path in (*files, *others):
        if path.stat().st_mtime > relaxpy.version.LOADED_AT:
            return None
        name = path.relative_to(root) if path.is_relative_to(root) else path
        digest.update(f"{name.as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest() if files else None


def _sources(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]
