"""`tvm_ffi`: how it is imported, its functions, and the errors that kernels raise through it."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


_LEFT_OUT = ("torch", "cuda.bindings")


@cache
def ffi() -> ModuleType:
    """Imports `tvm_ffi` without torch and CUDA's Python bindings.

    It imports both wherever they are installed: torch (1 s, 200 MB) for conversions that the runtime does through
    DLPack, and the bindings (0.1 s) to know their streams.
    """
    if "tvm_ffi" in sys.modules:
        return importlib.import_module("tvm_ffi")
    left_out = [name for name in _LEFT_OUT if name not in sys.modules]
    for name in left_out:
        sys.modules[name] = None  # type: ignore[assignment]  # makes its import fail
    try:
        found = importlib.import_module("tvm_ffi")
    finally:
        for name in left_out:
            del sys.modules[name]
    if "cuda.bindings" in left_out:
        found.core.cuda_driver = _Driver()
    return found


class _Driver:
    """CUDA's bindings for `tvm_ffi`, which asks whether a value is one of their streams: there are none before somebody
    imports them."""

    @property
    def CUstream(self) -> Any:
        return getattr(sys.modules.get("cuda.bindings.driver"), "CUstream", ())


def is_ffi_function(value: object) -> bool:
    """Whether a value is a `tvm_ffi.Function`. Programs without kernels for the host do not import `tvm_ffi`, and then
    there is none."""
    loaded = sys.modules.get("tvm_ffi")
    return isinstance(value, getattr(loaded, "Function", ()))


class OutOfRange(RuntimeError):
    """A kernel would have used an index outside of its buffer."""


class OutOfMemory(MemoryError):
    """A kernel would have allocated memory that is not available."""
