"""The linked functions of an executable, as bytes: a process with them neither decodes the bytecode nor verifies it,
and translates nothing. That is most of the time in which a file is loaded.

They hold Python's own code, by `pickle` and `marshal`. So only those are read that this user's processes have written
(`relaxpy.runtime.executable_cache`), under a key of this installation of relaxpy; files from elsewhere go through the
verifier. Where functions are looked at, they are decoded then (`Executable`).
"""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from types import CodeType
from typing import TYPE_CHECKING, Any

from relaxpy.runtime.function_listing import Listing

if TYPE_CHECKING:
    from relaxpy.runtime.program import Program
    from relaxpy.runtime.terms import Pattern


@dataclass(frozen=True, eq=False)
class Translated:
    """A function as compiled Python code, for any process."""

    listing: Listing
    compiled: CodeType
    patterns: tuple[Pattern, ...]
    """Those of its parameters."""
    public: bool

    def __reduce__(self) -> tuple[Callable[..., Translated], tuple[Any, ...]]:
        code = marshal.dumps(self.compiled)
        return _revived, (self.listing, code, self.patterns, self.public)


def _revived(
    listing: Listing, code: bytes, patterns: tuple[Pattern, ...], public: bool
) -> Translated:
    return Translated(listing, marshal.loads(code), patterns, public)


@dataclass(frozen=True, eq=False)
class Links:
    """The functions of an executable that needs no device but the CPU, linked."""

    functions: tuple[Translated, ...]
    generators: frozenset[int]
    """Those that run on the trampoline."""
    constants: tuple[tuple[int, int], ...]
    """The constants that they use, each with its slot."""


def dump_links(program: Program) -> bytes | None:
    """The links of a program, with the fields of its executable but the functions; None if it needs other devices."""
    if any(slot.kind != "cpu" for slot in program.executable.slots):
        return None
    return pickle.dumps((MAGIC_NUMBER, program.executable.head(), program.links()))


def load_links(data: bytes) -> tuple[dict[str, Any], Links] | None:
    """The inverse of `dump_links`; None for another Python's. Any exception for bytes that it has not written."""
    magic, head, links = pickle.loads(data)
    return (head, links) if magic == MAGIC_NUMBER else None
