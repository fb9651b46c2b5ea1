"""The one place that imports TVM's compiler; every file of `relaxpy.tir` takes its names from here.

Importing `tvm` changes the process: it replaces `sys.excepthook` (a user's error then prints a hint instead of a
traceback), `inspect.getfile` (for classes) and installs a C handler for SIGSEGV. All three are restored, so that a
program that builds a module behaves like one that does not. The import takes 0.8 s (3 s with torch, so torch is kept
out). Nothing imports this module before a program is compiled or a tensor program is parsed.
"""

from __future__ import annotations

import ctypes
import inspect
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SIGACTION_BYTES = 512
"""More than `struct sigaction` takes on any platform (152 on Linux, 16 on macOS)."""


@contextmanager
def _process_state_kept() -> Iterator[None]:
    """Restore the process-wide hooks that the block replaced."""
    hook, getfile = sys.excepthook, inspect.getfile
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    # The handler is set from C, which Python's signal module can neither see nor restore.
    libc = ctypes.CDLL(None) if sys.platform != "win32" else None
    saved = libc is not None and libc.sigaction(int(signal.SIGSEGV), None, action) == 0
    try:
        yield
    finally:
        sys.excepthook, inspect.getfile = hook, getfile
        if saved and libc is not None:
            libc.sigaction(int(signal.SIGSEGV), action, None)


@contextmanager
def _without_torch() -> Iterator[None]:
    """Prevent `tvm` from importing torch, which it does where torch is installed, for conversions that are not used
    here: 2 s of 3."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # makes `import torch` fail
    try:
        yield
    finally:
        del sys.modules["torch"]


with _process_state_kept(), _without_torch():
    import tvm
    import tvm.s_tir
    import tvm.te
    import tvm.tirx
    import tvm_ffi
    from tvm import s_tir, te, tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.parser import core as script_core
    from tvm.script.parser import ir as script_ir
    from tvm.script.parser import tirx as script_tirx

__all__ = [
    "IRBuilder", "s_tir", "script_core", "script_ir", "script_tirx", "te", "tirx", "tvm", "tvm_ffi",
]  # fmt: skip
