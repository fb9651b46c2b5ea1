"""Loads and runs executables. Needs numpy and tvm_ffi, never the compiler: `tvm` is not imported here.

The layers, lowest first. `bytecode` defines the instructions of a function. `executable` holds functions, constants and
kernels, and stores them in files. `program` links an executable into this process: it loads kernels, and `link` turns
functions into Python that runs on `frame`s. `vm` is the interface for users.

The names below are loaded at first use, so that a process imports only what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxpy.runtime.call_state import CallState as CallState
    from relaxpy.runtime.device import Device as Device
    from relaxpy.runtime.device import cpu as cpu
    from relaxpy.runtime.devices.queue import Queue as Queue
    from relaxpy.runtime.executable import Executable as Executable
    from relaxpy.runtime.executable import load as load
    from relaxpy.runtime.function import Function as Function
    from relaxpy.runtime.host.features import host_features as host_features
    from relaxpy.runtime.host.threads import num_threads as num_threads
    from relaxpy.runtime.host.threads import set_num_threads as set_num_threads
    from relaxpy.runtime.library import register_function as register_function
    from relaxpy.runtime.library import register_library as register_library
    from relaxpy.runtime.pack import PackedWeights as PackedWeights
    from relaxpy.runtime.packed_tensor import PackedTensor as PackedTensor
    from relaxpy.runtime.safetensors import Source as Source
    from relaxpy.runtime.tensor import Shape as Shape
    from relaxpy.runtime.tensor import Tensor as Tensor
    from relaxpy.runtime.vm import VirtualMachine as VirtualMachine

_PUBLIC = {
    "CallState": "call_state",
    "Device": "device",
    "Executable": "executable",
    "Function": "function",
    "PackedTensor": "packed_tensor",
    "PackedWeights": "pack",
    "Queue": "devices.queue",
    "Shape": "tensor",
    "Source": "safetensors",
    "Tensor": "tensor",
    "VirtualMachine": "vm",
    "cpu": "device",
    "host_features": "host.features",
    "load": "executable",
    "num_threads": "host.threads",
    "register_function": "library",
    "register_library": "library",
    "set_num_threads": "host.threads",
}
"""Public name → module of this package that defines it."""

__all__ = [*_PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
