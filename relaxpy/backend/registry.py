"""Backends by the kinds of target that they compile for.

relaxpy's own are listed here, each a folder beside this file. Others come from installed packages, which declare them
as entry points, one for each kind:

    [project.entry-points."relaxpy.backends"]
    toy = "toy_backend:ToyBackend"

A backend is loaded when its first target is parsed. A package cannot replace a backend of relaxpy's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from relaxpy.backend.base import Backend
from relaxpy.errors import BuildError
from relaxpy.target import Target, fail, first_word, nearest

GROUP = "relaxpy.backends"
"""The group of entry points."""

OWN = {
    "llvm": "relaxpy.backend.cpu.backend:CpuBackend",
    "c": "relaxpy.backend.cpu.backend:CpuBackend",
    "wasm": "relaxpy.backend.cpu.backend:CpuBackend",
    "cuda": "relaxpy.backend.cuda.backend:CudaBackend",
    "metal": "relaxpy.backend.metal.backend:MetalBackend",
    "opencl": "relaxpy.backend.opencl.backend:OpenCLBackend",
    "webgpu": "relaxpy.backend.webgpu.backend:WebGPUBackend",
    "vulkan": "relaxpy.backend.webgpu.backend:WebGPUBackend",
}
"""Kind of target → relaxpy's own backend that compiles for it, as module:class."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A kind of target, and the origin of its backend."""

    kind: str
    place: str
    """The location of its class: module:class."""
    package: str = ""
    """The package that provides it, with its version; "" for relaxpy itself."""


def backend_of(target: Target | str) -> Backend[Any]:
    """The backend that compiles for a target, or for a kind of target.

    Raises: BuildError: `target-kind` for an unknown kind, `backend-clash` for a kind that two packages declare,
    `backend-load` for a backend that cannot be loaded or is not a `Backend`.
    """
    return _backend(target if isinstance(target, str) else target.kind)


def read_target(text: str) -> Target:
    """Parse a target text, with the backend of its first word. Raises the errors of `backend_of` and of that backend's
    `parse`."""
    return backend_of(first_word(text)).parse(text)


@cache
def _backend(kind: str) -> Backend[Any]:
    if kind in OWN:
        return _instance(OWN[kind])
    found = [each for each in _installed() if each.kind == kind]
    if not found:
        _fail_kind(kind)
    if len(found) > 1:
        raise BuildError(
            "backend-clash",
            f'several packages have a backend for "{kind}": {", ".join(_origin(e) for e in found)}',
            help="uninstall all but one of them",
        )
    return _made(found[0])


def backends() -> Iterator[Listed]:
    """All kinds of target, relaxpy's own first, without loading any backend."""
    yield from (Listed(kind, place) for kind, place in OWN.items())
    yield from _installed()


def hidden() -> list[Listed]:
    """Backends that packages declare for kinds that relaxpy compiles for itself. They are ignored."""
    return [each for each in _declared() if each.kind in OWN]


def _installed() -> list[Listed]:
    return [each for each in _declared() if each.kind not in OWN]


def _declared() -> list[Listed]:
    """The backends that packages declare, sorted; a package that is found twice on the path counts once."""
    found = {_listed(each) for each in entry_points(group=GROUP)}
    return sorted(found, key=lambda each: (each.kind, each.package, each.place))


def _listed(entry: EntryPoint) -> Listed:
    package = "" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return Listed(entry.name, entry.value, package)


def _origin(listed: Listed) -> str:
    return f"{listed.package or 'a package without a name'} ({listed.place})"


@cache
def _instance(place: str) -> Any:
    """The object that an entry point names, instantiated if it is a class."""
    module, _, path = place.partition(":")
    value: Any = importlib.import_module(module.strip())
    for name in filter(None, path.split("[")[0].strip().split(".")):
        value = getattr(value, name)
    return value() if isinstance(value, type) else value


def _made(listed: Listed) -> Backend[Any]:
    """A package's backend, if the entry point declares one."""
    try:
        value = _instance(listed.place)
    except Exception as error:  # a package's own code may raise anything
        raise _unusable(listed, f"{type(error).__name__}: {error}") from error
    if not isinstance(value, Backend):
        raise _unusable(listed, f"{listed.place} is not a Backend but a {type(value).__name__}")
    if listed.kind not in value.kinds:
        kinds = ", ".join(value.kinds) or "none"
        raise _unusable(listed, f"{listed.place} is a backend for {kinds}")
    return value


def _unusable(listed: Listed, reason: str) -> BuildError:
    package = listed.package.partition(" ")[0]
    return BuildError(
        "backend-load",
        f'the backend for "{listed.kind}" of {listed.package or "a package"} cannot be used: {reason}',
        help=f"reinstall or uninstall {package}" if package else None,
    )


_HOST = 'target="llvm" is the CPU of this machine'

_DEVICES = {
    "cuda": "NVIDIA GPUs", "nvptx": "NVIDIA GPUs", "rocm": "AMD GPUs", "hip": "AMD GPUs",
    "metal": "Apple GPUs", "mps": "Apple GPUs", "gpu": "GPUs", "xpu": "Intel GPUs", "tpu": "TPUs", "npu": "NPUs",
    "hexagon": "Hexagon", "wasm": "WebAssembly",
}  # fmt: skip
"""Targets known from other compilers, and their descriptions."""
_PROCESSORS = frozenset(
    "cpu host native x86 x86_64 x86-64 amd64 arm arm64 aarch64 c++ gcc clang".split()
)


def _fail_kind(kind: str) -> Any:
    """Raise the error for an unknown target: how to support it, or its name in relaxpy."""
    known = list(dict.fromkeys(each.kind for each in backends()))
    if not kind:
        fail("target-kind", "the target is empty", f"known kinds: {', '.join(known)}")
    plain = kind.lower()
    family = plain.partition(":")[0].partition("/")[0]
    if family in _PROCESSORS or plain in ("llvm", "c"):
        fail(
            "target-kind",
            f'unknown target kind "{kind}"',
            f'{_HOST}; for others use options: "llvm -mcpu=haswell", "llvm -mtriple=aarch64-linux-gnu"',
        )
    if family in _DEVICES and family not in known:
        fail(
            "target-kind",
            f'there is no code generator for {_DEVICES[family]} ("{kind}") in this version',
            f"known kinds: {', '.join(known)}; {_HOST}. Packages can add others (docs/add_a_target.md)",
        )
    fail("target-kind", f'unknown target kind "{kind}"', nearest(plain, known))
