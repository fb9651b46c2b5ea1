"""`tvm_ffi`: how it is imported, its functions, and the errors that kernels raise through it."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


@cache
def ffi() -> ModuleType:
    """Imports `tvm_ffi` without torch.

    It imports torch wherever that is installed (1 s, 200 MB), for conversions that the runtime does through DLPack.
    """
    if "tvm_ffi" in sys.modules or "torch" in sys.modules:
        return importlib.import_module("tvm_ffi")
    sys.modules["torch"] = None  # type: ignore[assignment]  # makes `import torch` fail
    try:
        return importlib.import_module("tvm_ffi")
    finally:
        del sys.modules["torch"]


def is_ffi_function(value: object) -> bool:
    """Whether a value is a `tvm_ffi.Function`. Programs without kernels for the host do not import `tvm_ffi`, and then
    there is none."""
    loaded = sys.modules.get("tvm_ffi")
    return isinstance(value, getattr(loaded, "Function", ()))


class OutOfRange(RuntimeError):
    """A kernel would have used an index outside of its buffer."""


class OutOfMemory(MemoryError):
    """A kernel would have allocated memory that is not available."""
