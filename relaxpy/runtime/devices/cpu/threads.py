"""The number of threads that a kernel may use, and the threads that may launch parallel kernels.

Only two threads launch: the main thread, and one launcher thread. Other threads hand large kernels, or whole calls, to
the launcher thread while it is idle, and run the serial variant otherwise. So the process never has more than two teams
of workers (`relaxpy.runtime.devices.cpu.team`), and no more runnable threads than twice the number of a kernel.

Kernels that were not compiled for this machine's system use TVM's thread pool instead (`relaxpy.backend.cpu.launchers`
says which). It belongs to the Python thread that first launches a parallel kernel on it, and lives until the process
ends. It reads its settings from the environment when its library is loaded, so `configure_environment` runs before
that.
"""

from __future__ import annotations

import contextlib
import os
import threading
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from relaxpy.errors import UsageError
from relaxpy.runtime.devices.cpu import team

T = TypeVar("T")

_VARIABLE = "RELAXPY_NUM_THREADS"
_requested: int | None = None
_configure: Callable[[int, int], Any] | None = None
"""TVM's `config_threadpool`, once a kernel uses the pool. It acts on the pool of the thread that calls it."""
_configured: dict[int, int] = {}
"""Launching thread → the number of threads that its team, and its pool, were last set to."""


def _from_environment() -> int:
    text = os.environ.get(_VARIABLE, "")
    if text:
        if not text.isdigit() or int(text) < 1:
            raise UsageError(
                "num-threads", f"{_VARIABLE} is {text!r}", help="set it to a positive integer"
            )
        return int(text)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_threads() -> int:
    """The number of threads of a parallel kernel: from `set_num_threads`, else RELAXPY_NUM_THREADS, else the number of
    processors.

    Raises: UsageError (`num-threads`) if the variable is not a positive number.
    """
    return _requested if _requested is not None else _from_environment()


def set_num_threads(count: int) -> None:
    """Sets the number of threads of parallel kernels, for all virtual machines of the process.

    Raises: UsageError (`num-threads`) unless `count` is a positive int.
    """
    global _requested  # a setting of the process, as the pool is
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(
            "num-threads", f"the number of threads must be a positive int, got {count!r}"
        )
    _requested = count


def configure_environment() -> None:
    """Sets the environment variables that TVM's pool reads when it is loaded: no pinning, little spinning, as many
    threads as processors."""
    room = max(num_threads(), os.cpu_count() or 1)
    os.environ["TVM_NUM_THREADS"] = str(room)
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "10000")


def use_pool(configure: Callable[[int, int], Any] | None) -> None:
    """Receives TVM's `config_threadpool(mode, count)` (None: there is none) before kernels use the pool."""
    global _configure
    if _configure is None:
        _configured.clear()
        _configure = configure


def may_launch() -> bool:
    """Whether the calling thread may launch parallel kernels. If so, it has a team of the right size afterwards."""
    if not is_launching_thread():
        return False
    me = get_ident()
    count = num_threads() if _requested is None and me not in _configured else _requested
    if count is not None and _configured.get(me) != count:
        numbers = [*_configured] if me in _configured else [*_configured, me]
        team.resize(numbers.index(me), count)
        if _configure is not None:
            _configure(0, count)
        _configured[me] = count
    return _configured[me] > 1


class _Launcher:
    """A thread that runs one job at a time for other threads. It starts with the first job."""

    def __init__(self) -> None:
        self.ident: int | None = None
        self._idle = allocate_lock()
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run(self, func: Callable[..., T], args: tuple[Any, ...]) -> tuple[bool, T | None]:
        """Runs func(*args) on the launcher thread and waits: (True, result), or its exception. (False, None) if it is
        busy."""
        if not self._idle.acquire(blocking=False):
            return False, None
        try:
            if self.ident is None:
                self._start()
            done = allocate_lock()
            done.acquire()
            results: list[T] = []
            failed: list[BaseException] = []

            def job() -> None:
                try:
                    results.append(func(*args))
                except BaseException as error:  # handed to the thread that waits
                    failed.append(error)
                finally:
                    done.release()

            self._jobs.put(job)
            done.acquire()
        finally:
            self._idle.release()
        if failed:
            raise failed[0]
        return True, results[0]

    def _start(self) -> None:
        ready = allocate_lock()
        ready.acquire()

        def loop() -> None:
            self.ident = get_ident()
            ready.release()
            while True:
                self._jobs.get()()

        threading.Thread(target=loop, name="relaxpy-launcher", daemon=True).start()
        ready.acquire()


_launcher = _Launcher()
_main_thread = threading.main_thread().ident


def run_elsewhere(func: Callable[..., T], args: tuple[Any, ...]) -> tuple[bool, T | None]:
    """Runs func(*args) on the launcher thread: (True, result). If that thread is busy, does nothing: (False, None)."""
    if num_threads() < 2:
        return False, None
    return _launcher.run(func, args)


def is_launching_thread() -> bool:
    """Whether the calling thread is one of the two that launch parallel kernels."""
    me = get_ident()
    return me == _main_thread or me == _launcher.ident


def _after_fork() -> None:
    """Resets the state in a child process, which has none of the parent's threads."""
    global _launcher, _main_thread
    _launcher = _Launcher()
    team.reset()
    me = get_ident()
    # A thread that has launched on the pool keeps it, but the pool's workers do not exist in the child: it must not
    # launch again.
    lost_pool = _configure is not None and me in _configured
    _main_thread = None if _main_thread is None or lost_pool else me
    _configured.clear()


with contextlib.suppress(AttributeError):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
