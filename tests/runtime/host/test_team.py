"""Teams of threads: their number, their ends, and what a child process has of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from relaxpy.backend.cpu.launchers import PIECES, launchers_object
from relaxpy.runtime.devices.cpu.kernels import _launchers
from relaxpy.runtime.host import team, threads
from relaxpy.runtime.host.team import LINE, TEAMS, Team
from tests.backend.cpu.test_launchers import Launch
from tests.sweeps import full


def workers(number: int) -> list[str]:
    """The names of a team's threads that are alive."""
    prefix = f"relaxpy-worker-{number}-"
    return sorted(each.name for each in threading.enumerate() if each.name.startswith(prefix))


def test_what_different_threads_write_is_on_lines_of_its_own() -> None:
    writers = ("state", "asleep", "task", "size", "parts", "mutex", "condition")
    lines = [getattr(Team, name).offset // LINE for name in writers]
    assert len(set(lines)) == len(lines)
    assert team.address % LINE == 0
    assert all(getattr(Team, name).offset % LINE == 0 for name in writers)


def test_a_team_grows_and_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "sizes", [*team.sizes])
    _launchers(launchers_object())
    memory = (Team * TEAMS).from_address(team.address)
    last = TEAMS - 1
    before = len(workers(last)) + 1
    try:
        for size in (3, 1, 2, 5, 5, 1):
            team.resize(last, size)
            assert memory[last].size == size
            assert workers(last) == [f"relaxpy-worker-{last}-{i}" for i in range(1, size)]
    finally:
        team.resize(last, before)


EVERYONE_WORKS = """
import os, threading
import relaxpy
from tests.backend.cpu.test_launchers import Launch, Meeting, threads

def everyone_works():
    count = threads.num_threads()
    meeting = Meeting(count)
    assert Launch()(meeting) == 0
    assert len(meeting.first) == count
    names = [t.name for t in threading.enumerate() if t.name.startswith("relaxpy-worker")]
    assert len(names) == count - 1, names
"""
CHILDREN = """
relaxpy.set_num_threads(3)
everyone_works()
for generation in range(3):
    child = os.fork()
    if child:
        break
    everyone_works()
everyone_works()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, generation
"""


@full
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_children_of_children_have_workers_of_their_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERYONE_WORKS + CHILDREN], capture_output=True, text=True, timeout=120,
        env={"PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p) + ":."},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


EARLY = """
relaxpy.set_num_threads(3)
assert threads.may_launch()
everyone_works()
"""


@pytest.mark.slow
def test_a_team_that_was_asked_for_before_there_was_code_has_workers() -> None:
    """By a program whose kernels have no parallel loop, say."""
    done = subprocess.run(
        [sys.executable, "-c", EVERYONE_WORKS + EARLY], capture_output=True, text=True, timeout=120,
        env={"PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p) + ":."},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_nothing_starts_before_a_program_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_worker", None)
    monkeypatch.setattr(team, "sizes", [*team.sizes])
    before = [workers(number) for number in range(TEAMS)]
    team.resize(0, 7)
    assert [workers(number) for number in range(TEAMS)] == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_threads_that_launch_have_teams(elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the number of threads that is set, whenever it is set."""
    _launchers(launchers_object())
    monkeypatch.setattr(threads, "_requested", threads._requested)
    monkeypatch.setattr(threads, "_configure", None)  # no kernel uses the pool
    before = threads.num_threads()
    threads.may_launch()
    number = int(elsewhere or threading.get_ident() != threads._first)
    with ThreadPoolExecutor(1) as pool:
        try:
            for count in (4, 2, 1, 3):
                threads.set_num_threads(count)
                ask = pool.submit(threads.may_launch).result if elsewhere else threads.may_launch
                assert ask() == (count > 1)
                assert len(workers(number)) == count - 1
        finally:
            threads.set_num_threads(before)
            threads.may_launch()


def test_a_system_that_starts_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run on the threads that there are."""
    launch = Launch()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = threads.num_threads()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        team.resize(0, before + 1)
    try:
        assert workers(0) == []
        monkeypatch.setattr(threads, "may_launch", lambda: True)
        assert sorted(launch.pieces()) == list(range((before + 1) * PIECES))
    finally:
        team.resize(0, before)
