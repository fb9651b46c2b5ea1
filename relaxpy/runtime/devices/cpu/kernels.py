"""Loads compiled kernels from object files, and selects how each call runs.

The objects are linked by `tvm_ffi_orcjit` against TVM's small runtime library. Neither TVM's compiler nor a C compiler
is needed, and `tvm` is not imported.

A kernel has up to four handles: its parallel and its serial variant, each either keeping or releasing Python's global
interpreter lock (GIL). The work of a call selects one:

* small: serial, keeping the GIL, since starting threads costs more than the work;
* medium: parallel, keeping the GIL;
* large: like medium, but timed. If a call is expected to take long, the GIL is released so that other Python
  threads can run.

Getting the GIL back from a busy thread takes up to 5 ms (`sys.getswitchinterval`), and while it is released the busy
thread takes a core from the kernel's workers. If the GIL is kept, a call beside a busy thread takes at most twice its
time. So only kernels that would block other threads for long release it. For the same reason, consecutive large kernels
run as a row that does not offer the GIL in between (`KernelRow`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import islice, starmap
from operator import call, length_hint
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.errors import ExecutableError, RuntimeCheckError, out_of_range
from relaxpy.runtime.devices.cpu.launchers import ALONE, SHARED, WORKER, launching_by
from relaxpy.runtime.ffi import OutOfMemory, OutOfRange, ffi
from relaxpy.runtime.host import team, threads
from relaxpy.runtime.late_handle import Handle, LateHandle, put
from relaxpy.runtime.terms import KernelImage, KernelInfo

if TYPE_CHECKING:
    from types import CodeType

SMALL_WORK = 1 << 19
"""Calls with less work (operations, or bytes if those are more) run on the calling thread: some 7 µs of vectors, of
which half on a second thread would take as long as the launch, and as fetching what the other core had in its cache."""
LARGE_WORK = 1 << 20
"""Calls with at least this much work are timed. The clock's overhead is negligible beside them."""
LONG_SECONDS = 50e-3
"""A kernel that is expected to take longer releases the GIL."""
SHORT_SECONDS = 5e-3
"""A kernel that is expected to take less time keeps the GIL, and only one of `SAMPLE` calls is timed."""
SAMPLE = 32


@cache
def _session() -> Any:
    """The linker session. TVM's runtime library is loaded into it, so that kernels find its functions.

    Raises: ExecutableError (`runtime-library`) where the library is not installed.
    """
    tvm_ffi = ffi()
    folder = _library_folder()
    threads.configure_environment()
    _load(folder, "tvm_runtime")
    orcjit = importlib.import_module("tvm_ffi_orcjit")
    tvm_ffi.register_error("OutOfRange", OutOfRange)
    tvm_ffi.register_error("OutOfMemory", OutOfMemory)
    tvm_ffi.register_global_func("relaxpy.out_of_range", _out_of_range, override=True)
    tvm_ffi.register_global_func("relaxpy.require_memory", _require_memory, override=True)
    # Kernels have no constructors with effects, so the linker's own runtime for constructors is left out. That runtime
    # frees memory of the process with the C library's `free`, which aborts the process if another allocator is
    # preloaded.
    session = orcjit.ExecutionSession(orc_rt=None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))  # at exit threads may still run kernels
    return session


def _out_of_range(program: str, name: str, dim: int, index: int, extent: int) -> None:
    """The callback for an index out of range, called on the thread that called the kernel."""
    raise OutOfRange(out_of_range(str(program), str(name), dim, index, extent))


def _require_memory(program: str, name: str, itemsize: int, *sizes: int) -> None:
    """The callback before a kernel allocates a buffer. A failed allocation inside the kernel would end the process."""
    nbytes = itemsize * math.prod(sizes)
    if not _is_to_be_had(nbytes):
        raise OutOfMemory(f"{program}: cannot allocate the {nbytes} bytes of {name}")


def _is_to_be_had(nbytes: int) -> bool:
    """Whether the process can allocate so much memory."""
    try:
        np.empty(nbytes, np.uint8)
    except (MemoryError, ValueError, OverflowError):
        return False
    return True


def _library_folder() -> Path:
    """The folder of the `tvm` package's libraries, found without importing it."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ExecutableError(
            "runtime-library",
            "TVM's runtime library is not installed",
            help="pip install apache-tvm==0.27.0.post1",
        )
    return Path(spec.submodule_search_locations[0], "lib")


@cache
def _load(folder: Path, name: str) -> ctypes.CDLL:
    """Loads a library of TVM for the life of the process, with its symbols visible to kernels."""
    file = {"darwin": f"lib{name}.dylib", "win32": f"{name}.dll"}.get(sys.platform, f"lib{name}.so")
    try:
        return ctypes.CDLL(str(folder / file), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ExecutableError("runtime-library", f"cannot load {file}: {error}") from error


def require_memory(name: str, nbytes: int) -> None:
    """Checks that the memory a kernel is going to allocate is available.

    Raises: RuntimeCheckError (`out-of-memory`).
    """
    if not _is_to_be_had(nbytes):
        raise RuntimeCheckError(
            "out-of-memory", f"cannot allocate the {nbytes} bytes that the kernel {name} needs"
        )


class KernelHandles:
    """The variants of one kernel, and the measured cost of its calls."""

    __slots__ = (
        "_alone",
        "info",
        "parallel",
        "parallel_rate",
        "parallel_release",
        "serial",
        "serial_rate",
        "serial_release",
    )

    def __init__(
        self, info: KernelInfo, library: Any, alone: Callable[[], Any] | None = None
    ) -> None:
        """`alone` links the library of the serial variant, if it is another one."""
        self.info, image = info, info.image
        self.serial: Handle = LateHandle(self._linked_alone)
        self.serial_release = self.serial
        self._alone = alone
        if alone is None:
            self._take(library)
        self.parallel, self.parallel_release = self.serial, self.serial_release
        if image.symbol != image.serial_symbol or alone is not None:
            self.parallel = _handle(library, image.symbol, False)
            self.parallel_release = _handle(library, image.symbol, True)
        self.serial_rate = 0.0
        """Measured seconds per unit of work; 0: not measured. A race between threads only loses a sample."""
        self.parallel_rate = 0.0

    def _take(self, library: Any) -> None:
        """Takes the serial variant from its library."""
        symbol = self.info.image.serial_symbol
        self.serial, self.serial_release = (
            _handle(library, symbol, free) for free in (False, True)
        )

    def _linked_alone(self) -> Handle:
        with _LINKING:
            if self._alone is not None:
                self._take(self._alone())
                self._alone = None
        return self.serial

    def linked(self) -> KernelHandles:
        """The same with all variants linked, for those who keep its handles themselves."""
        self._linked_alone()
        return self

    def run(self, work: int, *args: Any) -> None:
        """Runs one call of about this much `work`, on a team if the calling thread may launch."""
        if self.parallel is not self.serial and threads.may_launch():
            self._run_parallel(work, *args)
            return
        start = perf_counter()
        if self.serial_rate * work > LONG_SECONDS:
            self.serial_release(*args)
            self.serial_rate = min(self.serial_rate, (perf_counter() - start) / work)
        else:
            self.serial(*args)
            self.serial_rate = (perf_counter() - start) / work

    def run_parallel(self, *args: Any) -> None:
        """Runs one call of the parallel variant, for tests of kernels."""
        threads.may_launch()
        self.parallel(*args)

    def is_short(self, work: int, parallel: bool) -> bool:
        """Whether measurements predict that a call of `work` takes less than `SHORT_SECONDS`."""
        alone = self.parallel is self.serial or not parallel
        rate = self.serial_rate if alone else self.parallel_rate
        return 0.0 < rate * work < SHORT_SECONDS

    def _run_parallel(self, work: int, *args: Any) -> None:
        start = perf_counter()
        if self.parallel_rate * work > LONG_SECONDS:
            self.parallel_release(*args)
            # The time includes reacquiring the GIL, so it may only lower the estimate.
            self.parallel_rate = min(self.parallel_rate, (perf_counter() - start) / work)
        else:
            self.parallel(*args)
            self.parallel_rate = (perf_counter() - start) / work


class KernelGroup:
    """The kernels of a function whose calls have the same amount of work. One decision selects the variant of all."""

    def __init__(self, kernels: Sequence[KernelHandles]) -> None:
        self.kernels = tuple(kernels)
        self.serial: list[Handle] = [kernel.serial for kernel in kernels]
        for number, handle in enumerate(self.serial):
            put(self.serial, number, handle)
        self.parallel = tuple(kernel.parallel for kernel in kernels)
        self._turn = 0

    def pick(self, work: int) -> Sequence[Handle]:
        """The selected handle of each kernel, for calls of this much `work` (-1: unknown)."""
        if 0 <= work < SMALL_WORK:
            return self.serial
        if 0 <= work < LARGE_WORK:
            return self.parallel if threads.may_launch() else self.serial
        work = max(work, LARGE_WORK)
        self._turn = (self._turn + 1) % SAMPLE
        if self._turn:
            parallel = threads.may_launch()
            if all(kernel.is_short(work, parallel) for kernel in self.kernels):
                return self.parallel if parallel else self.serial
        return tuple(partial(kernel.run, work) for kernel in self.kernels)


_consume = deque[object](maxlen=0).extend


class KernelRow:
    """Consecutive kernels that run as one call, without returning to the interpreter loop in between.

    The interpreter would hand the GIL to a busy thread 5 ms after it got it, at any point of the call, and wait as long
    to get it back. A call of 5 ms would wait in most cases: twice as often as with a single switch point at its end. A
    row that is expected to hold the GIL for more than `LONG_SECONDS` is split. Ctrl-C takes effect at the end of each
    part.
    """

    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 0.0
        """Seconds per unit of work; 0: not measured. May include the time of other threads."""

    def __call__(self, work: int, calls: tuple[tuple[Any, ...], ...]) -> None:
        """Runs `calls`, each a handle and its arguments, with this much `work` in total."""
        left = iter(calls)
        count = len(calls)
        expected = self.rate * work
        size = max(1, int(count * min(1.0, LONG_SECONDS / expected))) if expected else 1
        start = perf_counter()
        for _ in range(0, count, size):
            _consume(starmap(call, islice(left, size)))
        rate = (perf_counter() - start) / work
        self.rate = min(rate, 1.25 * self.rate) if expected else rate

    @classmethod
    def position(cls, code: CodeType, local: Mapping[str, Any]) -> int:
        """The index of the running call in a frame of `__call__`; -1 for a frame of any other function."""
        if code is not cls.__call__.__code__:
            return -1
        return len(local["calls"]) - length_hint(local["left"]) - 1


def load_kernels(objects: Sequence[bytes], infos: Sequence[KernelInfo]) -> list[KernelHandles]:
    """Links the objects and looks up the kernels' symbols, using the selected image of each.

    Raises: ExecutableError (`object-code`) for objects that cannot be linked or lack a kernel.
    """
    if not infos:
        return []
    session = _session()
    images = [info.image for info in infos]
    used: dict[int, int] = {}
    """Objects, with the launchers of their parallel loops. Another kernel of an object may have no loop."""
    for image in images:
        used[image.object] = max(image.launchers, used.get(image.object, -1))
    if any(b"tvm.contrib." in objects[each] for each in used):
        # Sorting and its like are functions of TVM's larger runtime library, which kernels look up by name.
        _load(_library_folder(), "tvm_runtime_extra")

    def linked(each: int, launcher: str) -> Any:
        """The library of an object, whose parallel loops are launched by this function of its launchers."""
        try:
            code = objects[each]
            if used[each] != -1:
                code = launching_by(code, _launchers(objects[used[each]])[launcher], ffi())
            # Each object is a library of its own: one library cannot contain two initialisers, which kernels have
            # without optimisation. A C++ compiler would only be needed to find its standard library, which kernels do
            # not use.
            return session.load_module(code, cxx=os.devnull)
        except ExecutableError:
            raise
        except Exception as error:
            raise ExecutableError(
                "object-code", f"the kernels cannot be linked: {_last_line(error)}"
            ) from error

    if any(image.launchers == -1 and image.symbol != image.serial_symbol for image in images):
        threads.use_pool(ffi().get_global_func("runtime.config_threadpool", allow_missing=True))
    libraries = {each: linked(each, SHARED) for each in sorted(used)}
    alone = cache(partial(linked, launcher=ALONE))
    kernels: list[KernelHandles] = []
    for info, image in zip(infos, images, strict=True):
        own = partial(alone, image.object) if _is_shared(image) else None
        kernels.append(KernelHandles(info, libraries[image.object], own))
    return kernels


_LINKING = Lock()
"""Held while a variant is linked late."""


def _is_shared(image: KernelImage) -> bool:
    """Whether both variants of a kernel are the same code, in two libraries with different launchers."""
    return image.launchers != -1 and image.symbol == image.serial_symbol


@cache
def _launchers(object_code: bytes) -> dict[str, int]:
    """The addresses of the launchers. Their library stays loaded, since other code calls them by address."""
    library = _session().load_module(object_code, keep_module_alive=True, cxx=os.devnull)

    def address(symbol: str, *args: Any) -> int:
        found = _handle(library, symbol, False)(*args)
        if not isinstance(found, int):
            raise ExecutableError("object-code", f"{symbol} returns no address")
        return found

    team.workers_run(address(WORKER))
    return {ALONE: address(ALONE), SHARED: address(SHARED, team.address)}


def _handle(library: Any, symbol: str, release_gil: bool) -> Handle:
    """A function of a library. Its calls either keep or release the GIL."""
    try:
        handle = library.get_function(symbol)
    except Exception as error:
        raise ExecutableError("object-code", f"no kernel {symbol}: {_last_line(error)}") from error
    if handle is None:
        raise ExecutableError("object-code", f"the object has no kernel {symbol}")
    handle.release_gil = release_gil
    return handle


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
