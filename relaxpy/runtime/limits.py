"""What this machine can do at most, measured: the limits that profiles put their figures beside.

Memory: copying 64 MB a thread, more than caches hold. Arithmetic: multiply-adds of float32 on registers, on as many
threads as kernels use. That loop is machine code, and this package has no compiler; who has one says how to measure it
(`peak_is_measured_by`: `relaxpy.build` does when it is imported). Where nobody has, the peak is 0: not known.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from time import perf_counter

import numpy as np

from relaxpy.runtime.devices.cpu.threads import num_threads

PeakMeasure = Callable[[], float]
"""Floating-point operations a second, on the threads that kernels use now."""

_measures: list[PeakMeasure] = []


def peak_is_measured_by(measure: PeakMeasure) -> None:
    """From now on `peak_flops` asks `measure`, once for each number of threads."""
    _measures[:] = [measure]
    _measured_peak.cache_clear()


def peak_flops() -> float:
    """Operations a second of float32 multiply-adds, two each, on the threads that kernels use; 0: not known."""
    return _measured_peak(num_threads()) if _measures else 0.0


@cache
def _measured_peak(_threads: int) -> float:
    return _measures[0]()


@cache
def copy_bandwidth() -> float:
    """Bytes a second that copying memory reads and writes, on all threads: 64 MB each, more than caches hold."""
    threads = max(
        1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    pairs = [(np.ones(1 << 24, np.float32), np.empty(1 << 24, np.float32)) for _ in range(threads)]
    from concurrent.futures import ThreadPoolExecutor  # it takes long to import

    times: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(4):
            start = perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            times.append(perf_counter() - start)
    return 2 * sum(pair[0].nbytes for pair in pairs) / min(times)
