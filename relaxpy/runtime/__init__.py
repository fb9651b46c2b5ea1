"""Loads and runs executables. Needs numpy and tvm_ffi, never the compiler: `tvm` is not imported here.

The layers, lowest first. `bytecode` defines the instructions of a function. `executable` holds functions, constants and
kernels, and stores them in files. `program` links an executable into this process: it loads kernels, and `link` turns
functions into Python that runs on `frame`s. `vm` is the interface for users.
"""

from __future__ import annotations

from relaxpy.runtime.call_state import CallState
from relaxpy.runtime.checkpoint import Source
from relaxpy.runtime.device import Device, cpu
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.executable import Executable, load
from relaxpy.runtime.function import Function
from relaxpy.runtime.host.features import host_features
from relaxpy.runtime.host.threads import num_threads, set_num_threads
from relaxpy.runtime.library import register_function, register_library
from relaxpy.runtime.packed_tensor import PackedTensor
from relaxpy.runtime.tensor import Shape, Tensor
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.runtime.weights import PackedWeights

__all__ = [
    "CallState",
    "Device",
    "Executable",
    "Function",
    "PackedTensor",
    "PackedWeights",
    "Queue",
    "Shape",
    "Source",
    "Tensor",
    "VirtualMachine",
    "cpu",
    "host_features",
    "load",
    "num_threads",
    "register_function",
    "register_library",
    "set_num_threads",
]


def __dir__() -> list[str]:
    return sorted(__all__)
