"""NVIDIA's driver through `cuda.bindings.driver`: its errors, and the context of a device.

Other libraries of the process (torch, jax, cupy) use the same *primary context* of a device, so they share memory and
streams with us. The driver's calls refer to the context that is current in the calling thread.
"""

from __future__ import annotations

import importlib
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.runtime.devices.base import DeviceError

OLDEST = 12000
"""The oldest driver whose functions have the form that is used here: CUDA 12.0, driver 525."""
OUT_OF_MEMORY = 2
STICKY = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999})
"""Errors after which every call of the context fails, with the same error."""
_CAPTURING = frozenset({900, 901})
"""Errors because a graph is being recorded."""
_PATIENCE = 0.01
"""The seconds that other threads get to end a recording."""
_AFTER = (
    "; the device can no longer be used in this process: start it again. "
    "A VirtualMachine with check_memory=True names the kernel"
)
INSTALL = (
    "install NVIDIA's driver of your GPU (on Debian: apt install nvidia-driver); "
    "a container needs the GPU passed to it (docker run --gpus all)"
)


class CudaError(DeviceError):
    """A call of the driver that failed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        """`CUresult`."""


def _module() -> Any:
    """The module `cuda.bindings.driver`. Raises: UsageError (`device`) where it is not installed."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UsageError(
            "device",
            f"CUDA needs cuda-bindings, which cannot be imported: {error}",
            help="pip install 'relaxpy[cuda]'",
        ) from error


@cache
def bindings() -> Any:
    """The module `cuda.bindings.driver`, with the driver initialised. Raises: UsageError (`device`) where the package,
    a driver that is new enough, or a device is missing; its hint says what to install."""
    driver = _module()
    try:
        status, version = driver.cuDriverGetVersion()
    except RuntimeError as error:  # of its search for the library
        raise UsageError("device", "there is no NVIDIA driver here", help=INSTALL) from error
    if not status and version < OLDEST:
        raise UsageError(
            "device",
            f"the NVIDIA driver is for CUDA {version_text(version)}, and {version_text(OLDEST)} is needed",
            help="install driver 525 or newer",
        )
    (status,) = driver.cuInit(0)
    if status:
        message = f"there is no CUDA device here: {reason(driver, status)}"
        raise UsageError("device", message, help=INSTALL)
    return driver


def version_text(version: int) -> str:
    """A version as CUDA writes it: 12040 → "12.4"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def reason(cu: Any, status: Any) -> str:
    """A `CUresult` in the driver's words: "out of memory (CUDA_ERROR_OUT_OF_MEMORY)"."""
    _, name = cu.cuGetErrorName(status)
    _, text = cu.cuGetErrorString(status)
    if not name or not text:
        return f"error {int(status)}"
    return f"{text.decode()} ({name.decode()})"


def error_of(status: Any) -> CudaError:
    """The error for a `CUresult` other than success."""
    code = int(status)
    return CudaError(code, reason(_module(), status) + (_AFTER if code in STICKY else ""))


def ask(function: Callable[..., tuple[Any, ...]], *args: Any) -> Any:
    """Calls the driver and returns the value of the call, if it has one. Raises: CudaError."""
    status, *values = function(*args)
    if status:
        raise error_of(status)
    return values[0] if values else None


class Context:
    """The primary context of a device."""

    def __init__(self, device: int) -> None:
        self.cu = bindings()
        """The driver."""
        self.device = ask(self.cu.cuDeviceGet, device)
        self._handle = ask(self.cu.cuDevicePrimaryCtxRetain, self.device)
        self._address = int(self._handle)

    def is_current(self) -> bool:
        """Whether it is current in this thread."""
        return int(ask(self.cu.cuCtxGetCurrent)) == self._address

    @contextmanager
    def current(self) -> Iterator[None]:
        """Inside of this `with` statement, the context is current in the thread. It stays so where none was before;
        another library's is restored."""
        cu = self.cu
        before = int(ask(cu.cuCtxGetCurrent))
        if not before:
            ask(cu.cuCtxSetCurrent, self._handle)
        elif before != self._address:
            ask(cu.cuCtxPushCurrent, self._handle)
        try:
            yield
        finally:
            if before and before != self._address:
                cu.cuCtxPopCurrent()

    def record_all(self, event: Any) -> None:
        """Records an event behind all present work of the context. Drivers before CUDA 12.5 cannot: the host waits
        instead. A graph that is recorded meanwhile is spoilt. The context is current."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                (status,) = self.cu.cuCtxRecordEvent(self._handle, event)
            except RuntimeError:  # cuda-bindings does not find it in the driver
                ask(self.cu.cuCtxSynchronize)
                return
            if not status:
                return
            if int(status) not in _CAPTURING or time.monotonic() > end:
                raise error_of(status)
            time.sleep(1e-4)

    def finally_do(self, owner: object, *call: Any) -> None:
        """Makes a call of the driver, with the context current, when `owner` is gone. A context that has failed frees
        its resources itself, at the end of the process."""
        weakref.finalize(owner, self._quietly, *call).atexit = False

    def _quietly(self, function: Callable[..., object], *args: Any) -> None:
        try:
            with self.current():
                function(*args)
        except CudaError:
            pass
