"""Teams of threads that run parallel loops: the thread that launches the loop, and the workers that are kept here.

A team's workers are threads of Python that stay in machine code (`relaxpy.backend.cpu.launchers`), without the
interpreter's lock. Its memory is here; the machine code changes it.

There are as many teams as threads that launch. A launch takes the first team that is not in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable
from ctypes import c_byte, c_int32, c_uint64, c_void_p
from typing import Any

TEAMS = 2
"""The most teams of a process."""

PARTS = 16
"""The parts of a loop. With more threads than this several of them share a part."""

LINE = 128
"""Bytes between what different threads write: processors fetch cache lines in pairs."""


class Part(ctypes.Structure):
    """A part of a loop."""

    _fields_ = (
        ("taken", c_int32),  # pieces that threads have taken, or tried to take
        ("members", c_int32),  # workers of this part that are at the job
        ("_part", c_byte * (LINE - 8)),
    )


class Team(ctypes.Structure):
    """The memory of a team. Zero bytes are a team without workers.

    Executables contain code for this layout and for what its fields mean: a change of either needs a new version of the
    format (`relaxpy.runtime.container.VERSION`).
    """

    _fields_ = (
        ("state", c_uint64),  # launches so far, and whether the job is open
        ("ends", c_int32),  # workers are to return
        ("_state", c_byte * (LINE - 12)),
        ("asleep", c_int32),  # workers that wait for the condition
        ("_asleep", c_byte * (LINE - 4)),
        ("task", c_void_p),  # the job: a task, its data, and the threads that its pieces are for
        ("data", c_void_p),
        ("threads", c_int32),
        ("status", c_int32),  # not 0: a worker has failed, with this error
        ("error", c_void_p),
        ("_job", c_byte * (LINE - 32)),
        ("size", c_int32),  # the team's threads, with the one that launches
        ("used", c_int32),  # a thread is launching
        ("_size", c_byte * (LINE - 8)),
        ("parts", Part * PARTS),
        ("mutex", c_byte * LINE),  # no pthread_mutex_t or pthread_cond_t is as large
        ("condition", c_byte * LINE),
    )


_memory = ctypes.create_string_buffer(ctypes.sizeof(Team) * TEAMS + LINE)
address = -(-ctypes.addressof(_memory) // LINE) * LINE
"""The address of the teams, for the machine code."""
_teams = (Team * TEAMS).from_address(address)
_workers: list[list[threading.Thread]] = [[] for _ in range(TEAMS)]
_worker: Callable[[Any, int], None] | None = None
"""The machine code of workers: (team, number of the worker from 1 on)."""
sizes = [0] * TEAMS
"""The threads that each team was last asked for; 0: it has to be asked for before a launch."""
_changing = threading.Lock()


def workers_run(code: int) -> None:
    """Sets the address of the workers' machine code, which must never be unloaded. It is set once."""
    global _worker  # of the process, as the teams are
    with _changing:
        if _worker is None:
            _prepare()
            _worker = ctypes.CFUNCTYPE(None, c_void_p, c_int32)(code)
            ask_again()  # those that were asked for have no workers


def ask_again() -> None:
    """Has all teams asked for again."""
    sizes[:] = [0] * TEAMS


def resize(number: int, size: int) -> None:
    """Gives a team so many threads, with the one that launches; no workers before `workers_run`."""
    with _changing:
        if _worker is not None and len(_workers[number]) + 1 != size:
            _start_workers(_worker, number, size)
        sizes[number] = size


def _start_workers(code: Callable[[Any, int], None], number: int, size: int) -> None:
    """Replaces the workers of a team."""
    team, workers = _teams[number], _workers[number]
    _end_workers(number)
    team.size = size
    for each in range(1, size):
        worker = threading.Thread(
            target=_work,
            args=(code, number, each),
            name=f"relaxpy-worker-{number}-{each}",
            daemon=True,
        )
        try:
            worker.start()
        except RuntimeError:
            return  # the system has no more threads, or the interpreter ends: kernels do without
        workers.append(worker)


def reset() -> None:
    """Forgets all workers, in a child process that has none of its parent's threads."""
    global _changing  # another thread of the parent may have held it
    _changing = threading.Lock()
    ask_again()
    ctypes.memset(_memory, 0, len(_memory))
    for workers in _workers:
        workers.clear()
    if _worker is not None:
        _prepare()


def _prepare() -> None:
    library = ctypes.CDLL(None)
    for team in _teams:
        library.pthread_mutex_init(ctypes.byref(team.mutex), None)
        library.pthread_cond_init(ctypes.byref(team.condition), None)


def _end_workers(number: int) -> None:
    """Waits until the workers of a team have returned, after the job that they are at."""
    team, workers = _teams[number], _workers[number]
    library = ctypes.CDLL(None)
    team.size, team.ends = 1, 1
    library.pthread_mutex_lock(ctypes.byref(team.mutex))
    library.pthread_cond_broadcast(ctypes.byref(team.condition))
    library.pthread_mutex_unlock(ctypes.byref(team.mutex))
    for worker in workers:
        worker.join()
    workers.clear()
    team.ends = 0


def _work(worker: Callable[[Any, int], None], number: int, each: int) -> None:
    with contextlib.suppress(AttributeError):  # signals are for threads that can handle them
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    worker(ctypes.byref(_teams[number]), each)
