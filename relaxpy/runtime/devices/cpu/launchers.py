"""Chooses the function that the parallel loops of a library are launched by, when the library is linked.

Kernels call TVM's thread pool through a pointer that the linker sets to what is registered under the pointer's name.
Here the pointer of an object gets another name, under which one of the launchers that an executable brings along is
registered (`relaxpy.backend.cpu.launchers`). Libraries that others link keep the pool's own function.

A name is registered once: registrations are never removed, and the linker goes through all of them for each library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from types import ModuleType

ALONE, SHARED, WORKER = "relaxpy_launch_alone", "relaxpy_launch_shared", "relaxpy_worker"
"""Functions of an executable's object with launchers. They return the address of one that runs a loop on the calling
thread, of one that runs it on a team (whose argument is the teams' address), and of the code of a team's workers."""

_POINTER = b"__TVMBackendParallelLaunch"
"""The name of the pointer (`CodeGenCPU::InitGlobalContext`)."""


def launching_by(object_code: bytes, address: int, tvm_ffi: ModuleType) -> bytes:
    """An object whose parallel loops are launched by the function at this address. RuntimeError where none can be
    registered."""
    return object_code.replace(_POINTER, _pointer_to(address, tvm_ffi))


@cache
def _pointer_to(address: int, tvm_ffi: ModuleType) -> bytes:
    """The name of the pointers to this address. It is as long as the usual one, so that an object keeps its layout."""
    name = b"__relaxpy_%016x" % address
    if _register(tvm_ffi)(name, address):
        raise RuntimeError(f"{name.decode()} cannot be registered")
    return name


@cache
def _register(tvm_ffi: ModuleType) -> Callable[[bytes, int], int]:
    """The function that registers what a pointer in linked libraries is set to."""
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    register = library.TVMFFIEnvModRegisterContextSymbol
    register.argtypes, register.restype = [ctypes.c_char_p, ctypes.c_void_p], ctypes.c_int
    return register
