"""Launches on devices that are checked before they run, in machines with `check_memory=True`.

A wrong launch of a processor's kernel ends in a guard page; on a device it overwrites other tensors, or is undefined.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.devices.base import Launcher
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.terms import KernelInfo


def checked(launcher: Launcher, info: KernelInfo, queue: Queue) -> Launcher:
    """Wraps `launcher`: raises RuntimeCheckError (`launch-arguments`) for a launch whose tensors are on another device,
    beyond their memory, or not aligned, that writes to memory of two arguments, or whose sizes are negative."""
    written = {i for i, param in enumerate(info.params or ()) if param.written}

    def launch(numbers: tuple[int, ...], sizes: tuple[int, ...], *args: Any) -> None:
        problem = _negative(numbers) or _misplaced(args, queue) or _overlapping(args, written)
        if problem:
            raise RuntimeCheckError("launch-arguments", f"the launch of {info.name}: {problem}")
        launcher(numbers, sizes, *args)

    return launch


def _negative(numbers: Sequence[int]) -> str:
    wrong = [number for number in numbers[:6] if number < 0]
    return f"its grid is {' × '.join(map(str, numbers[:3]))}" if wrong else ""


def _misplaced(args: Sequence[Any], queue: Queue) -> str:
    """A tensor that is not where a kernel may access it."""
    for position, tensor in enumerate(args):
        if not isinstance(tensor, DeviceTensor):
            continue
        end = tensor.offset + tensor.nbytes
        itemsize = dtypes.info(tensor.dtype).itemsize
        alignment = max(queue.runtime.offset_alignment, itemsize)
        if tensor.buffer.queue.runtime is not queue.runtime:
            return f"argument {position} is on {tensor.device}, and it runs on {queue.device}"
        if tensor.offset < 0 or end > tensor.buffer.nbytes:
            return f"argument {position} is bytes {tensor.offset} to {end} of memory of {tensor.buffer.nbytes} bytes"
        if tensor.offset % alignment:
            return f"argument {position} begins at byte {tensor.offset}, which is no multiple of {alignment}"
    return ""


def _overlapping(args: Sequence[Any], written: set[int]) -> str:
    """Two arguments with common memory, one of which the kernel writes to."""
    tensors = [(i, arg) for i, arg in enumerate(args) if isinstance(arg, DeviceTensor)]
    for (i, a), (j, b) in combinations(tensors, 2):
        if a.buffer is not b.buffer or not (i in written or j in written):
            continue
        if a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes:
            target, other = (i, j) if i in written else (j, i)
            return f"it writes to argument {target}, and argument {other} is the same memory"
    return ""
