"""Memory that ends directly before an inaccessible page: an access beyond a tensor's end raises a signal.

A signal ends the process, so run such code in a separate process.
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
    """Like `relaxpy.runtime.tensor.allocate`, with the same alignment, so up to 63 bytes may follow the tensor."""
    if not 0 <= nbytes < 1 << 30:
        return _plain_allocate(nbytes)
    memory, end = _before_guard(nbytes)
    return memory, (end - nbytes) & -_ALIGNMENT


def guarded(value: Any) -> Any:
    """Copies an argument so that its arrays end directly before an inaccessible page."""
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
    """Runs a function in a forked process and returns the status of `os.waitpid`: 0, 1 << 8 after an exception, or the
    number of a signal."""
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
    """Memory with an inaccessible page at its end, and the address of that page."""
    size = (nbytes + _ALIGNMENT + _PAGE - 1) // _PAGE * _PAGE
    memory = np.frombuffer(mmap.mmap(-1, size + _PAGE), np.uint8)
    end = memory.__array_interface__["data"][0] + size
    _libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(_PAGE), 0)
    return memory, end
