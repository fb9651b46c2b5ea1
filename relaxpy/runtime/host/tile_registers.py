"""Permission to use the tile registers of Intel's processors (AMX): Linux saves them only for processes that asked.

A process asks once, for all its threads and children. Without permission the instructions end the process.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

_ARCH_PRCTL = 158
"""The number of the system call on x86-64."""
_GET_PERMISSION, _REQUEST_PERMISSION = 0x1022, 0x1023
_TILE_DATA = 18
"""The number of the state component."""

FEATURES = frozenset(("amx-tile", "amx-int8", "amx-bf16", "amx-fp16"))
"""The features, by LLVM's names, whose instructions use these registers."""


@cache
def may_use_tiles() -> bool:
    """Ask the system for the registers, and return whether this process has them. False where there are none, where the
    system is older than Linux 5.16, and in a sandbox that forbids the call."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "AMD64"):
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    if call(
        ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_REQUEST_PERMISSION), ctypes.c_long(_TILE_DATA)
    ):
        return False
    given = ctypes.c_uint64()
    if call(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_GET_PERMISSION), ctypes.byref(given)):
        return False
    return bool(given.value >> _TILE_DATA & 1)
