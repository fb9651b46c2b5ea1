"""The texts that the embedded model learns from, with their licences.

Two kinds: Python's standard library, and dependencies of relaxpy that `pyproject.toml` names and that are under a
BSD, MIT or Apache licence. The table states the licence of each; `check_licences` compares it with the metadata of
what is installed.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

HELD_OUT = 32
"""One file of so many is held out, by the hash of its name."""

LEFT_OUT = {
    "encodings", "idlelib", "lib2to3", "site-packages", "test", "tests", "turtledemo", "pydoc_data", "_vendor",
    "_emoji_codes.py", "_unicode_data",
}  # fmt: skip
"""Folders and files that are not read: tests, tables, and parts that few programs use. `pydoc_data` is read by
topics."""

_LETTERS = 0.55
"""Of the characters of a file, the share of letters and spaces below which it is taken for a table."""


@dataclass(frozen=True)
class Library:
    """A library whose Python sources are read."""

    name: str
    """The name of its distribution; "python" for the standard library."""
    licence: str
    """SPDX expression for the Python files."""
    stated: str
    """A part of what the distribution's metadata states as its licence."""


STANDARD = Library("python", "PSF-2.0", "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2")

LIBRARIES: tuple[Library, ...] = (
    STANDARD,
    Library("numpy", "BSD-3-Clause", "BSD-3-Clause"),
    Library("click", "BSD-3-Clause", "BSD-3-Clause"),
    Library("astor", "BSD-3-Clause", "BSD-3-Clause"),
    Library("rich", "MIT", "MIT"),
    Library("pytest", "MIT", "MIT"),
    Library("pyopencl", "MIT", "MIT"),
    Library("apache-tvm-ffi", "Apache-2.0", "Apache 2.0"),
    Library("ml_dtypes", "Apache-2.0", "Apache-2.0"),
    Library("safetensors", "Apache-2.0", "Apache Software License"),
    Library("tokenizers", "Apache-2.0", "Apache Software License"),
)
"""All that is read, with its licence."""

ALLOWED = {"PSF-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "Apache-2.0"}


@dataclass(frozen=True)
class Document:
    """A text with a name that is the same on every machine: library and path."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether the model never sees it."""
        return int(_digest(self.name)[:8], 16) % HELD_OUT == 0


def documents(libraries: Sequence[Library] = LIBRARIES) -> list[Document]:
    """All texts, each once, in the order of the hashes of their names."""
    found: dict[str, Document] = {}
    for library in libraries:
        for name, text in sorted(_texts(library)):
            found.setdefault(_digest(text.strip()), Document(f"{library.name}/{name}", text))
    return sorted(found.values(), key=lambda each: _digest(each.name))


def versions() -> dict[str, str]:
    """Library → version that is installed."""
    own = {STANDARD.name: ".".join(map(str, sys.version_info[:3]))}
    return own | {each.name: distribution(each.name).version for each in LIBRARIES[1:]}


def check_licences(libraries: Sequence[Library] = LIBRARIES) -> None:
    """Compare the table with what is installed. ValueError names each library whose metadata says something else."""
    wrong = [
        f"{each.name}: the table says {each.licence} ({each.stated!r}), its metadata {stated[:200]!r}"
        for each in libraries
        if each.stated not in (stated := _stated(each)) or each.licence not in ALLOWED
    ]
    if wrong:
        raise ValueError("licences differ from the table:\n" + "\n".join(wrong))


def _stated(library: Library) -> str:
    if library is STANDARD:
        return Path(sysconfig.get_path("stdlib"), "LICENSE.txt").read_text(encoding="utf-8")
    metadata = distribution(library.name).metadata
    fields = ("License-Expression", "License", "Classifier")
    return "\n".join(
        value
        for field in fields
        for value in metadata.get_all(field) or []
        if field != "Classifier" or value.startswith("License")
    )


def _texts(library: Library) -> Iterator[tuple[str, str]]:
    """Names and texts of a library's files that are worth reading."""
    if library is STANDARD:
        root = Path(sysconfig.get_path("stdlib"))
        files = [(path.relative_to(root).as_posix(), path) for path in root.rglob("*.py")]
        yield from _topics()
    else:
        files = list(_installed(distribution(library.name)))
    for name, path in files:
        if not LEFT_OUT.isdisjoint(PurePosixPath(name).parts) or name.startswith("_sysconfigdata"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
        if "\ufffd" not in text and _is_prose_or_code(text):
            yield name, text


def _installed(given: Distribution) -> Iterator[tuple[str, Path]]:
    for file in given.files or []:
        if file.suffix == ".py" and ".." not in file.parts:
            yield file.as_posix(), Path(str(file.locate()))


def _topics() -> Iterator[tuple[str, str]]:
    """The pages of the language reference that `help()` shows."""
    for topic, text in importlib.import_module("pydoc_data.topics").topics.items():
        yield f"pydoc_data/topics/{topic}", text


def _is_prose_or_code(text: str) -> bool:
    letters = sum(character.isalpha() or character.isspace() for character in text)
    return len(text) >= 200 and letters >= _LETTERS * len(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
