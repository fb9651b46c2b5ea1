"""Functions of NVIDIA's libraries in the place of a kernel's own code: cuBLASLt and cuDNN.

An image may describe a library call (`relaxpy.runtime.devices.image.LibraryCall`). Launches with little to do run the
image's own code. For others the library chooses how it computes them, for each set of sizes, on the host; the choice, a
`Plan`, is kept. A call allocates nothing: it uses the workspace that the memory plan has for it, so that it may be
recorded in a graph. A library is loaded with ctypes when an executable that calls it is loaded, and not before.
"""

from __future__ import annotations

import ctypes
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from relaxpy.errors import ExecutableError
from relaxpy.runtime.devices.base import DeviceError, Launcher
from relaxpy.runtime.devices.cuda.driver import Context
from relaxpy.runtime.devices.cuda.stream import Stream
from relaxpy.runtime.devices.image import LibraryCall

ALIGNMENT = 16
"""Tensors begin at multiples of so many bytes (`CudaRuntime.offset_alignment`)."""
WORKSPACE_ALIGNMENT = 256
_MOST_PLANS = 64
"""Sets of sizes whose plan a kernel keeps. The one that was used longest ago goes."""
Tensors = Mapping[str, int]
"""The addresses of tensors by their names in a call."""


class Plan(ABC):
    """A call for one set of sizes, as the library will compute it."""

    @abstractmethod
    def run(self, tensors: Tensors, stream: Stream) -> None:
        """Puts the call into a stream. One thread at a time runs the plans of a kernel. Raises: DeviceError."""


class Library(ABC):
    """A library with a handle for a context, which any number of threads use."""

    title: ClassVar[str]
    """Its name for people."""
    extra: ClassVar[str]
    """The extra of relaxpy that brings it; the prefix of its functions, too."""
    functions: ClassVar[re.Pattern[str]]
    """The names of its functions, without the prefix. A suffix `_bias` or `_residual` is a tensor that is added."""
    tensors: ClassVar[frozenset[str]]
    """The tensors that each function takes."""
    dtypes: ClassVar[Mapping[str, int]]
    """The library's numbers of the dtypes that its functions take."""
    count: ClassVar[int]
    """How many numbers its functions take."""

    def __init__(self, context: Context) -> None:
        """The context is current. Raises: OSError where the library is missing, DeviceError."""
        self.context = context

    @classmethod
    def lacks(cls, call: LibraryCall) -> str:
        """Why the library has no such function, or ""."""
        name = call.name.removeprefix(f"{cls.extra}.")
        if not cls.functions.fullmatch(name) or call.dtype not in cls.dtypes:
            return f"{call.name!r} of {call.dtype}, which no library has"
        wanted = {*cls.tensors, *(each for each in ("bias", "residual") if f"_{each}" in name)}
        if wanted != {*call.places} or call.count != cls.count:
            return f"{call.name!r} with other arguments than it has"
        return ""

    @abstractmethod
    def text_of(self, status: int) -> bytes | None:
        """The library's words for a status."""

    def check(self, status: int) -> None:
        """Raises: DeviceError for a status other than success."""
        if status:
            text = self.text_of(status) or b"unknown"
            raise DeviceError(f"{self.title}: {text.decode()} ({status})")

    @abstractmethod
    def plan(self, call: LibraryCall, numbers: Sequence[int]) -> Plan | None:
        """The plan of a call for these numbers; None if the library has none. The context is current. Raises:
        DeviceError."""


class LibraryKernel:
    """The library call of a kernel, in any stream."""

    def __init__(self, library: Library, call: LibraryCall) -> None:
        self._library = library
        self._call = call
        self._plans: dict[tuple[int, ...], Plan | None] = {}
        self._lock = Lock()

    def launcher(self, stream: Stream, own: Launcher) -> Launcher:
        """Launches the library where there is much to do, and the kernel's `own` code elsewhere and where the library
        has no plan."""
        call, context, lock = self._call, self._library.context, self._lock
        first, last, least = call.first, call.first + call.count, call.least
        places = tuple(call.places.items())

        def launch(numbers: Sequence[int], sizes: Sequence[int], *given: Any) -> None:
            if numbers[first] < least:
                own(numbers, sizes, *given)
                return
            with context.current(), lock:
                plan = self._plan(tuple(numbers[first:last]))
                if plan is not None:
                    plan.run({name: _address(given[place]) for name, place in places}, stream)
                    return
            own(numbers, sizes, *given)

        return launch

    def _plan(self, numbers: tuple[int, ...]) -> Plan | None:
        if numbers in self._plans:
            plan = self._plans[numbers] = self._plans.pop(numbers)  # the newest now
            return plan
        if len(self._plans) >= _MOST_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[numbers] = self._library.plan(self._call, numbers) if all(numbers) else None
        return self._plans[numbers]


def _address(tensor: Any) -> int:
    place: int = tensor.buffer.handle + tensor.offset
    return place


def library_for(
    context: Context,
    kernel: str,
    call: LibraryCall,
    known: Sequence[type[Library]],
    given: Library | None,
) -> Library:
    """The library for a kernel, with the context current: one of these, or the one that is `given` for its prefix.
    Raises: ExecutableError (`library-missing`)."""
    found = next((each for each in known if call.name.startswith(f"{each.extra}.")), None)
    lack = f"{call.name!r}, which no library has" if found is None else found.lacks(call)
    if found is None or lack:
        raise ExecutableError("library-missing", f"the kernel {kernel!r} calls {lack}")
    try:
        return given or found(context)
    except (OSError, DeviceError) as error:
        raise ExecutableError(
            "library-missing",
            f"the kernel {kernel!r} calls {call.name!r} of {found.title}, which cannot be used: {error}",
            help=f"pip install 'relaxpy[{found.extra}]', or build without it: target=\"cuda\"",
        ) from error


def opened(paths: Iterator[str], signatures: Mapping[str, tuple[Any, ...]]) -> ctypes.CDLL:
    """The first of these shared libraries that can be loaded, with the types of its functions. Raises: OSError where
    there is none."""
    failed: OSError | None = None
    for path in paths:
        try:
            found = ctypes.CDLL(path)
        except OSError as error:
            failed = failed or error
            continue
        for name, types in signatures.items():
            getattr(found, name).argtypes = types
        return found
    assert failed is not None
    raise failed


def paths(linux: Sequence[str], windows: Sequence[str], folders: Sequence[str]) -> Iterator[str]:
    """Where a library may be: in these folders of NVIDIA's packages, or where the system has it."""
    files = windows if sys.platform == "win32" else linux
    spec = find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        for folder in folders:
            yield from (
                str(path) for name in files if (path := Path(place, folder, name)).is_file()
            )
    yield from files


def check_workspace(title: str, tensors: Tensors) -> int:
    """The address of a call's workspace. Raises: DeviceError."""
    workspace = tensors["workspace"]
    if workspace % WORKSPACE_ALIGNMENT:
        raise DeviceError(f"{title}: a workspace begins at a multiple of {WORKSPACE_ALIGNMENT}")
    return workspace
