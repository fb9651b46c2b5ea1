"""Targets of compilation.

A target is written as text, a kind and its options: `"llvm"`, `"llvm -mcpu=haswell"`. The kind selects the backend
(`relaxpy.backend.registry`), which parses the rest. A target is always *resolved*: omitted options are filled in from
this machine. So the text shows every difference between builds on two machines, and `str(target)` parses back to the
same target.

A target may have *alternatives*: `"llvm -mcpu=x86-64-v3,x86-64-v4"` compiles every kernel for both processors into one
executable, and a machine runs the best version that it supports. In the resolved text, alternatives are separated by
`;`.

This file is light: backends, and the compiler with them, are loaded when a target is parsed.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar, NoReturn, Self

from relaxpy.errors import BuildError, did_you_mean
from relaxpy.services import read_target


class Target(ABC):
    """A compilation target; immutable, hashable, equal by value. Each backend has a subclass."""

    kind: str
    """The first word of its text: one of its backend's `kinds`."""
    device: ClassVar[str] = "cpu"
    """The kind of device that its kernels run on (`relaxpy.runtime.devices.registry`)."""

    def __new__(cls, *args: object, **_: object) -> Self:
        if cls is Target:
            shown = f'"{args[0]}"' if args and isinstance(args[0], str) else '"llvm"'
            fail(
                "target-kind",
                "Target is the base of all targets",
                f"write relaxpy.Target.parse({shown})",
            )
        return super().__new__(cls)

    @staticmethod
    def parse(text: str | Target) -> Target:
        """Parse `KIND [-name=value …]`; a target is returned as it is.

        `"llvm"` alone means this machine. Raises `BuildError`: `target-kind`, `target-option` and the backend's codes
        for an unknown word, with the nearest known one; `backend-load` or `backend-clash` for a backend that cannot be
        loaded.
        """
        if isinstance(text, Target):
            return text
        if not isinstance(text, str):
            if type(text).__module__.partition(".")[0] == "tvm":
                help = f'write a string: "{getattr(text, "kind", "llvm")}", or "llvm -mcpu=haswell"'
                fail("target-kind", f"a target is a string, got TVM's {type(text).__name__}", help)
            fail("target-kind", f"a target is a string, got {text!r}", 'for example "llvm"')
        return read_target(text)

    @staticmethod
    def host() -> Target:
        """The machine that runs this process, with LLVM."""
        return Target.parse("llvm")

    @property
    def alternatives(self) -> tuple[Target, ...]:
        """The targets that each kernel is compiled for, the most demanding first. All are of one kind and have no
        alternatives themselves. If there are several, the properties of `self` are those of the last one."""
        return (self,)

    @abstractmethod
    def __str__(self) -> str:
        """The complete text: everything that code for this target depends on."""

    @property
    @abstractmethod
    def is_host_loadable(self) -> bool:
        """Whether code for this target can run in this process."""

    @property
    def max_buffers_per_launch(self) -> int | None:
        """Maximum number of buffers of a kernel: inputs, outputs and workspaces together; None: no limit. Scalar
        arguments do not count. It is WebGPU's `maxStorageBuffersPerShaderStage`. Fusion respects it, and programs with
        more buffers are split (docs/add_a_target.md)."""
        return None

    @property
    def has_graphs(self) -> bool:
        """Whether its devices record launches and replay them as a graph (`DeviceRuntime.has_graphs`).
        Then the pass `lift-graphs` puts runs of launches into graphs."""
        return False

    @property
    def has_byte_products(self) -> bool:
        """Whether codes of 4 bits are multiplied with int8 by instructions for that. Where they are not, decoders keep
        their activations as floats (`relaxpy.models.loaded.Scheme`)."""
        return True

    def facts(self) -> Mapping[str, str | int | bool | tuple[str, ...]]:
        """Facts about the target that are stored in an executable for display: its kind and text, and more."""
        return {"kind": self.kind, "text": str(self)}

    def requirement(self) -> tuple[str, str, tuple[str, ...]]:
        """The requirement on a device that runs code for this target, without its alternatives: a readable name, the
        architecture ("": any) and the names of features, in the vocabulary of the device kind
        (`relaxpy.runtime.bytecode.Requirement`)."""
        return str(self), "", ()


def fail(code: str, message: str, help: str | None = None) -> NoReturn:
    """Raise the error for an invalid target."""
    raise BuildError(code, message, help=help)


def nearest(word: str, known: Iterable[str]) -> str:
    """The help line for an unknown word."""
    names = sorted(known)
    return did_you_mean(word, names, str, 3) or f"known: {', '.join(names)}"


def first_word(text: str) -> str:
    """The kind that a target's text begins with; "" where it is empty."""
    words = _words(text.partition(";")[0])
    return words[0] if words else ""


def options_of(text: str, known: Collection[str], example: str = "") -> dict[str, str]:
    """Parse the options of a target's text, written `-name=value`. Each name must be known and occur once. Errors show
    the example."""
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
            fail("target-option", f"the target option -{name} is repeated")
        options[name] = value
    return options


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        fail("target-option", f"cannot read the target {text!r}: {error}")
