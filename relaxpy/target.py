"""Targets: what a module is compiled for.

A target is written as text, a kind and its options: `"llvm"`, `"llvm -mcpu=haswell"`. The kind says which backend
compiles for it (`relaxpy.backend.registry`), and the backend reads the rest. A target is always *resolved*: whatever
the text leaves out is filled in from this machine, so that building on two machines never silently differs, and
`str(target)` parses back to the same target.

A target may have *alternatives*: `"llvm -mcpu=x86-64-v3,x86-64-v4"` compiles every kernel for either processor into one
executable, and a machine runs the best that it can. Written out, alternatives are texts with `;` between them.

This file is light: backends, and the compiler with them, are loaded when a target is parsed.
"""

from __future__ import annotations

import difflib
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar, NoReturn

from relaxpy.errors import BuildError
from relaxpy.services import read_target


class Target(ABC):
    """What a module is compiled for; immutable, hashable, equal by value. Each backend has a class of its own."""

    kind: str
    """The first word of its text, and one of its backend's `kinds`."""
    device: ClassVar[str] = "cpu"
    """The kind of device that its kernels run on (`relaxpy.runtime.devices.registry`)."""

    @staticmethod
    def parse(text: str | Target) -> Target:
        """Read `KIND [-name=value …]`; a target is returned as it is.

        `"llvm"` alone stands for this machine. Raises `BuildError` (codes `target-kind`, `target-option`, and those of
        the backend) for what is not known, with the nearest name that is; `backend-load` or `backend-clash` for a
        backend that cannot be had.
        """
        if isinstance(text, Target):
            return text
        if not isinstance(text, str):
            if type(text).__module__.partition(".")[0] == "tvm":
                help = (
                    f'write it as text: "{getattr(text, "kind", "llvm")}", or "llvm -mcpu=haswell"'
                )
                fail("target-kind", f"a target is text, got TVM's own {type(text).__name__}", help)
            fail("target-kind", f"a target is text, got {text!r}", 'for example "llvm"')
        return read_target(text)

    @staticmethod
    def host() -> Target:
        """The machine that runs this process, compiled for with LLVM."""
        return Target.parse("llvm")

    @property
    def alternatives(self) -> tuple[Target, ...]:
        """What each kernel is compiled for, what asks for most of a machine first: targets of one kind without
        alternatives. Where there are several, what `self` says of itself beside that is what its last one says."""
        return (self,)

    @abstractmethod
    def __str__(self) -> str:
        """The text, complete: everything that code for this target depends on."""

    @property
    @abstractmethod
    def is_host_loadable(self) -> bool:
        """Whether code for this target can run in this process."""

    @property
    def max_buffers_per_launch(self) -> int | None:
        """How many buffers a kernel may be given, inputs, outputs and workspaces together; None: any number. Sizes and
        other numbers do not count. WebGPU calls it `maxStorageBuffersPerShaderStage`. Fusion stops before it, and
        programs that take more are divided (docs/add_a_target.md)."""
        return None

    def facts(self) -> Mapping[str, str | int | bool | tuple[str, ...]]:
        """What an executable remembers of the target, for people: its kind and text, and more."""
        return {"kind": self.kind, "text": str(self)}

    def requirement(self) -> tuple[str, str, tuple[str, ...]]:
        """What a device must have to run code for this target, without its alternatives: a name for people, the
        architecture ("": any) and the names of features, as the device's kind calls them
        (`relaxpy.runtime.bytecode.Requirement`)."""
        return str(self), "", ()


def fail(code: str, message: str, help: str | None = None) -> NoReturn:
    """Raise the error for a target that cannot be read."""
    raise BuildError(code, message, help=help)


def nearest(word: str, known: Iterable[str]) -> str:
    """The help line for a word that is not known."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"


def first_word(text: str) -> str:
    """The kind that a target's text begins with; "" where it is empty."""
    words = _words(text.partition(";")[0])
    return words[0] if words else ""


def options_of(text: str, known: Collection[str], example: str = "") -> dict[str, str]:
    """The options of a target's text, written `-name=value`, each one of these names and given once. Errors show the
    example."""
    options: dict[str, str] = {}
    for word in _words(text)[1:]:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not equals or not value:
            fail(
                "target-option",
                f'cannot read "{word}" in the target "{text}"',
                f"options are written -name=value{f', for instance {example}' if example else ''}",
            )
        if name not in known:
            fail("target-option", f"unknown target option -{name}", nearest(name, known))
        if name in options:
            fail("target-option", f"the target option -{name} is given twice")
        options[name] = value
    return options


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        fail("target-option", f"cannot read the target {text!r}: {error}")
