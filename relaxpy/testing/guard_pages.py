"""Memory that ends right before a page that may not be touched: a read or write beyond a tensor's end is a signal.

Signals end the process: try things in a process of its own.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from relaxpy.runtime import tensor

_PAGE = mmap.PAGESIZE
_ALIGNMENT = 64
_libc = ctypes.CDLL(None)
_plain_allocate = tensor.allocate


def allocate(nbytes: int) -> tuple[Any, int]:
    """As `relaxpy.runtime.tensor.allocate`. Aligned as there, so that up to 63 bytes may lie behind the tensor."""
    if not 0 <= nbytes < 1 << 30:
        return _plain_allocate(nbytes)
    memory, end = _before_guard(nbytes)
    return memory, (end - nbytes) & -_ALIGNMENT


def guarded(value: Any) -> Any:
    """An argument whose arrays end right before such a page."""
    if isinstance(value, tuple):
        return tuple(map(guarded, value))
    if not isinstance(value, np.ndarray):
        return value
    memory, _ = _before_guard(value.nbytes)
    size = memory.size - _PAGE
    found = memory[size - value.nbytes : size].view(value.dtype).reshape(value.shape)
    found[...] = value
    return found


def status_in_child(run: Callable[[], object]) -> int:
    """The status, as `os.waitpid` gives it, of a forked process that calls this and ends: 0, or 1 << 8 after an
    exception, or the number of a signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks beside threads, which do nothing here
        child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.disable()  # which would print where the signal came from
            run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def _before_guard(nbytes: int) -> tuple[np.ndarray, int]:
    """Memory with a page at its end that may not be touched, and the address of that page."""
    size = (nbytes + _ALIGNMENT + _PAGE - 1) // _PAGE * _PAGE
    memory = np.frombuffer(mmap.mmap(-1, size + _PAGE), np.uint8)
    end = memory.__array_interface__["data"][0] + size
    _libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(_PAGE), 0)
    return memory, end
