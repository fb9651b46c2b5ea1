"""Chooses the function that the parallel loops of a library are launched by, when the library is linked.

Kernels call TVM's thread pool through a pointer that the linker sets to the function that is registered for it. Here
another function is registered while a library is linked: one of the launchers that an executable brings along
(`relaxpy.backend.cpu.launchers`). Libraries that others link keep the pool's own function.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from types import ModuleType

ALONE, SHARED = "relaxpy_launch_alone", "relaxpy_launch_shared"
"""Functions of an executable's object with launchers. They return the address of one that runs a loop on the calling
thread, and of one that runs it on all threads."""

_POINTER = b"__TVMBackendParallelLaunch"
"""The name of the pointer (`CodeGenCPU::InitGlobalContext`)."""
_lock = Lock()


@contextmanager
def launching_by(address: int | None, usual: int, tvm_ffi: ModuleType) -> Iterator[None]:
    """Libraries that are linked meanwhile launch by the function at this address, and later ones by that at `usual`,
    the pool's own; None: no change. RuntimeError where none can be registered."""
    if address is None:
        yield
        return
    register = _register(tvm_ffi)
    with _lock:
        if register(_POINTER, address):  # the serial variant would run on all threads
            raise RuntimeError(f"{_POINTER.decode()} cannot be registered")
        try:
            yield
        finally:
            register(_POINTER, usual)


@cache
def _register(tvm_ffi: ModuleType) -> Callable[[bytes, int], int]:
    """The function that registers what a pointer in linked libraries is set to."""
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    register = library.TVMFFIEnvModRegisterContextSymbol
    register.argtypes, register.restype = [ctypes.c_char_p, ctypes.c_void_p], ctypes.c_int
    return register
