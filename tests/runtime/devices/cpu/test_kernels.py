from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest

from relaxpy.errors import ExecutableError
from relaxpy.runtime.bytecode import KernelImage, KernelInfo
from relaxpy.runtime.devices.cpu import kernels
from relaxpy.runtime.devices.cpu.kernels import (
    LARGE_WORK,
    LONG_SECONDS,
    SAMPLE,
    SHORT_SECONDS,
    SMALL_WORK,
    KernelGroup,
    KernelRow,
    load_kernels,
)
from relaxpy.runtime.frame import record_of
from relaxpy.runtime.host import threads
from relaxpy.runtime.tensor import empty, from_numpy
from tests.runtime.support import HEAVY, KERNELS, object_code


@pytest.fixture
def heavy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "_requested", 2)
    return load_kernels([object_code()], [KERNELS[HEAVY]])[0]


def test_handles_keep_and_release_the_lock(heavy) -> None:
    assert not heavy.serial.release_gil
    assert not heavy.parallel.release_gil
    assert heavy.serial_release.release_gil
    assert heavy.parallel_release.release_gil


def test_the_work_picks_the_handle(heavy) -> None:
    group = KernelGroup([heavy])
    assert list(group.pick(SMALL_WORK - 1)) == [heavy.serial]
    assert list(group.pick(SMALL_WORK)) == [heavy.parallel]
    for work in (LARGE_WORK, -1):
        (picked,) = group.pick(work)
        assert picked.func == heavy.run  # type: ignore[attr-defined]


def test_a_kernel_known_to_be_short_is_timed_now_and_then_only(heavy) -> None:
    group = KernelGroup([heavy])
    heavy.parallel_rate = SHORT_SECONDS / LARGE_WORK / 2
    picks = [group.pick(LARGE_WORK)[0] for _ in range(2 * SAMPLE)]
    assert picks.count(heavy.parallel) == 2 * SAMPLE - 2
    heavy.parallel_rate *= 4
    assert heavy.parallel not in [group.pick(LARGE_WORK)[0] for _ in range(2 * SAMPLE)]


def test_a_row_is_cut_where_it_would_hold_the_lock_for_long(monkeypatch) -> None:
    pieces: list[list[int]] = []

    def consume(calls: Iterable[object]) -> None:
        pieces.append([])
        list(calls)

    monkeypatch.setattr(kernels, "_consume", consume)
    row = KernelRow()
    calls = tuple((lambda i: pieces[-1].append(i), i) for i in range(5))
    row(1000, calls)
    assert pieces == [[0], [1], [2], [3], [4]]  # nothing is known yet
    pieces.clear()
    row(1000, calls)
    assert pieces == [[0, 1, 2, 3, 4]]
    pieces.clear()
    row.rate = 2 * LONG_SECONDS / 1000
    row(1000, calls)
    assert pieces == [[0, 1], [2, 3], [4]]
    assert row.rate < LONG_SECONDS / 1000  # as fast as it was this time


def test_other_threads_run_the_serial_twin(heavy) -> None:
    group = KernelGroup([heavy])
    picked: list[object] = []
    worker = threading.Thread(target=lambda: picked.extend(group.pick(SMALL_WORK)))
    worker.start()
    worker.join()
    assert picked == [heavy.serial]


def test_large_calls_are_timed_and_right(heavy) -> None:
    x = from_numpy(np.full(50_000, -1e9, np.float32))
    out = empty((50_000,), "float32")
    heavy.run(LARGE_WORK, record_of(x), record_of(out))
    assert heavy.parallel_rate > 0
    np.testing.assert_allclose(out.numpy(), np.e, rtol=1e-5)
    heavy.parallel_rate = 2 * LONG_SECONDS / LARGE_WORK  # as if it took long: the lock is released
    out.numpy()[:] = 0
    heavy.run(LARGE_WORK, record_of(x), record_of(out))
    np.testing.assert_allclose(out.numpy(), np.e, rtol=1e-5)
    assert heavy.parallel_rate * LARGE_WORK < 2 * LONG_SECONDS


def test_a_kernel_that_is_not_there() -> None:
    with pytest.raises(ExecutableError, match="no kernel none"):
        load_kernels([object_code()], [KernelInfo("none", (KernelImage("none", "none"),))])


def test_one_thread_is_never_parallel(heavy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_requested", 1)
    assert list(KernelGroup([heavy]).pick(SMALL_WORK)) == [heavy.serial]
