"""Where the time of a call goes: every kernel of a virtual machine timed from Python.

A clock is read before and after each kernel (0.1 µs a kernel), so what is not in any kernel is the machine's own work:
checks, shapes, allocation, and the calls themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from relaxpy.runtime import kernels, program


@dataclass
class KernelTime:
    """What one kernel took in all calls since the last `reset`."""

    name: str
    calls: int = 0
    seconds: float = 0.0


class KernelTimes:
    """The times of all kernels of the machines that were made inside `recording`."""

    def __init__(self) -> None:
        self.kernels: dict[str, KernelTime] = {}

    def reset(self) -> None:
        for kernel in self.kernels.values():
            kernel.calls, kernel.seconds = 0, 0.0

    def by_time(self) -> list[KernelTime]:
        """Kernels that ran, longest first."""
        return sorted((k for k in self.kernels.values() if k.calls), key=lambda k: -k.seconds)

    def timed(self, handle: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`handle`, its calls counted under `name`."""
        total = self.kernels.setdefault(name, KernelTime(name))

        def call(*args: Any) -> None:
            start = perf_counter()
            handle(*args)
            total.seconds += perf_counter() - start
            total.calls += 1

        return call


@contextmanager
def recording() -> Iterator[KernelTimes]:
    """Virtual machines made in the block time their kernels, then and later."""
    times = KernelTimes()
    load = program.load_kernels

    def load_timed(*args: Any, **kwargs: Any) -> list[kernels.KernelHandles]:
        found = load(*args, **kwargs)
        for kernel in found:
            wrapped: dict[
                int, Callable[..., Any]
            ] = {}  # a kernel without a serial twin has one handle twice
            for slot in ("serial", "serial_release", "parallel", "parallel_release"):
                handle = getattr(kernel, slot)
                if id(handle) not in wrapped:
                    wrapped[id(handle)] = times.timed(handle, kernel.info.name)
                setattr(kernel, slot, wrapped[id(handle)])
        return found

    program.load_kernels = load_timed
    try:
        yield times
    finally:
        program.load_kernels = load
