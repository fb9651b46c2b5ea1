"""The measured peak performance of this machine, which profiles compare their figures with.

Memory: copying 64 MB per thread, which is more than caches hold. Arithmetic: float32 multiply-adds in registers, on as
many threads as kernels use. That loop must be compiled, and this package has no compiler, so the compiler registers the
measurement (`peak_is_measured_by`; `relaxpy.build` does so when it is imported). Without it the peak is 0: unknown.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from time import perf_counter

import numpy as np

from relaxpy.runtime.host.threads import num_threads

PeakMeasure = Callable[[], float]
"""Measures the floating-point operations per second on the present number of kernel threads."""

_measures: list[PeakMeasure] = []


def peak_is_measured_by(measure: PeakMeasure) -> None:
    """Registers the measurement for `peak_flops`, which runs once for each number of threads."""
    _measures[:] = [measure]
    _measured_peak.cache_clear()


def peak_flops() -> float:
    """The peak of float32 operations per second on the threads that kernels use, a multiply-add counting as two; 0:
    unknown."""
    return _measured_peak(num_threads()) if _measures else 0.0


@cache
def _measured_peak(_threads: int) -> float:
    return _measures[0]()


@cache
def copy_bandwidth() -> float:
    """The bytes per second that copying memory reads and writes, on all threads: 64 MB each, more than caches hold."""
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
