"""The number of threads that a kernel may use, and the threads that may launch parallel kernels.

Every thread launches on one of the process's two teams of workers (`relaxpy.runtime.host.team`), and alone while
both are in use. So there are no more threads of kernels than that, however many threads call programs.

Kernels that were not compiled for this machine's system use TVM's thread pool instead (`relaxpy.backend.cpu.launchers`
says which). It belongs to the thread that first launches a parallel kernel on it, and lives until the process ends. So
where there are such kernels, only the main thread launches. The pool reads its settings from the environment when its
library is loaded, so `configure_environment` runs before that.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.runtime.host import team

MOST_THREADS = 1024
"""The most threads of a kernel. More than any machine has processors for; each is a thread of the system."""

_VARIABLE = "RELAXPY_NUM_THREADS"
_requested: int | None = None
_first = 0
"""The thread that launched first. It asks for the first team, and the others for the second one; all use both."""
_configure: Callable[[int, int], Any] | None = None
"""TVM's `config_threadpool`, if a kernel uses the pool. It acts on the pool of the thread that calls it."""
_pool_thread: int | None = threading.main_thread().ident
"""The thread that may launch on TVM's pool."""


def _from_environment() -> int:
    text = os.environ.get(_VARIABLE, "")
    if text:
        if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MOST_THREADS:
            raise UsageError(
                "num-threads",
                f"{_VARIABLE} is {text!r:.40}",
                help=f"set it to an integer from 1 to {MOST_THREADS}",
            )
        return int(text)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST_THREADS)
    return min(os.cpu_count() or 1, MOST_THREADS)


def num_threads() -> int:
    """The number of threads of a parallel kernel: from `set_num_threads`, else RELAXPY_NUM_THREADS, else the number of
    processors.

    Raises: UsageError (`num-threads`) if the variable is not a number from 1 to 1024.
    """
    return _requested if _requested is not None else _from_environment()


def set_num_threads(count: int) -> None:
    """Sets the number of threads of parallel kernels, for all virtual machines of the process.

    Raises: UsageError (`num-threads`) unless `count` is an int from 1 to 1024.
    """
    global _requested  # a setting of the process, as the pool is
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_THREADS:
        is_long = isinstance(count, int) and abs(count) >= 1 << 64  # too long to print
        raise UsageError(
            "num-threads",
            f"the number of threads must be an int from 1 to {MOST_THREADS}, got "
            + ("one of many digits" if is_long else f"{count!r:.40}"),
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
    if _configure is None and configure is not None:
        _configure = configure
        team.ask_again()


def may_launch() -> bool:
    """Whether the calling thread may launch parallel kernels. If so, there is a team for it afterwards."""
    number = get_ident() != _first
    size = team.sizes[number]
    if not size or (_requested is not None and size != _requested):
        size = _prepared()
    return size > 1 and (_configure is None or get_ident() == _pool_thread)


def _prepared() -> int:
    """Gives all teams that are asked for, and the pool, the number of threads that is set; returns the number."""
    global _first
    size, me = num_threads(), get_ident()
    if not any(team.sizes):
        _first = me
    number = int(me != _first)
    for each, before in enumerate(team.sizes):
        if before or each == number:
            team.resize(each, size)
    if _configure is not None and me == _pool_thread:
        _configure(0, size)
    return size


def _after_fork() -> None:
    """Resets the state in a child process, which has none of the parent's threads."""
    global _pool_thread
    # A thread that has launched on the pool keeps it, but the pool's workers do not exist in the child: it must not
    # launch again.
    lost_pool = _configure is not None and any(team.sizes)
    _pool_thread = None if _pool_thread is None or lost_pool else get_ident()
    team.reset()


with contextlib.suppress(AttributeError):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
