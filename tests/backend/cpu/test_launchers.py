"""Launchers of parallel loops: on the calling thread alone, and on all threads, which take pieces of each other."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu import launchers
from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.runtime.bytecode import KernelImage, KernelInfo
from relaxpy.runtime.devices.cpu import launchers as linking
from relaxpy.runtime.devices.cpu.kernels import (
    Handle,
    KernelGroup,
    KernelHandles,
    LateHandle,
    _launchers,
    _session,
    ffi,
    load_kernels,
    put,
)
from relaxpy.runtime.devices.cpu.launchers import ALONE, SHARED
from relaxpy.runtime.host import team, threads
from relaxpy.runtime.host.team import TEAMS, Team
from relaxpy.target import Target
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import HOST, as_tensor, compute, f32, n, normal, tensor

THREADS = """
from tests.backend.cpu.test_launchers import handles, threads_used
kernel = handles()
print(threads_used(kernel.serial), threads_used(kernel.run_parallel))
"""


PIECES = """
import relaxpy
from tests.backend.cpu.test_launchers import Launch, launchers
launch = Launch()
for count in (40, 17, 3):
    relaxpy.set_num_threads(count)
    for _ in range(3):
        pieces = launch.pieces()
        assert sorted(pieces) == list(range(count * launchers.PIECES)), (count, pieces)
print("as often as it should")
"""


class Launch:
    """The launcher on a team, with Python's functions as tasks."""

    TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def __init__(self) -> None:
        address = _launchers(launchers.launchers_object())[SHARED]
        signature = ctypes.CFUNCTYPE(ctypes.c_int, self.TASK, ctypes.c_void_p, ctypes.c_int)
        self.launch = signature(address)

    def __call__(self, task: Callable[[int], int]) -> int:
        """Runs the task for each piece, on the threads of the team; the launcher's status."""
        assert threads.may_launch()
        return self.launch(self.TASK(lambda piece, _group, _data: task(piece)), None, 0)

    def pieces(self) -> list[int]:
        """The pieces of a launch, as often as they ran."""
        seen: list[int] = []

        def task(piece: int) -> int:
            seen.append(piece)
            return 0

        assert self(task) == 0
        return seen


class Meeting:
    """A task: each thread waits, at its first piece, until so many have come."""

    def __init__(self, count: int) -> None:
        self.everyone = threading.Barrier(count)
        self.first: dict[int, int] = {}
        """Threads that came → their first piece."""

    def __call__(self, piece: int) -> int:
        me = threading.get_ident()
        if me not in self.first:
            self.first[me] = piece
            self.everyone.wait(60)
        return 0


def program() -> tirx.PrimFunc:
    """Each row of the result holds the number of the thread pool's task that wrote it, and a sum."""
    x = tensor(n, 64)
    func = te.create_prim_func([x, compute((n, 64), lambda i, j: tirx.exp(x[i, j]) + f32(1.0))])
    return schedule_kernel(func, HOST).parallel


def handles() -> KernelHandles:
    """The kernel in both ways, of one object."""
    code = compile_object({"k": program()}, HOST)
    info = KernelInfo("k", (KernelImage("k", "k", 0, 1),))
    return load_kernels([code, launchers.launchers_object()], [info])[0]


def threads_used(call: Handle) -> int:
    """OS threads of this process after a call."""
    a = normal(4096, 64)
    call(as_tensor(a), as_tensor(np.empty_like(a)))
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("rows", [0, 1, 5, 1000])
def test_both_give_the_same_bits(rows: int) -> None:
    kernel = handles()
    a = normal(rows, 64)
    results = []
    for call in (kernel.parallel, kernel.serial, kernel.parallel_release, kernel.serial_release):
        out = np.full_like(a, np.nan)
        call(as_tensor(a), as_tensor(out))
        results.append(out)
    np.testing.assert_allclose(results[0], np.exp(a) + 1, rtol=1e-5)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("order", [("k", "plain"), ("plain", "k")])
def test_a_kernel_without_a_loop_in_the_same_object(
    order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whichever order they are loaded, the object is linked with launchers."""
    x = tensor(4)
    plain = te.create_prim_func([x, compute((4,), lambda i: x[i] + f32(1.0))])
    code = compile_object({"k": program(), "plain": plain}, HOST)
    images = {"k": KernelImage("k", "k", 0, 1), "plain": KernelImage("plain", "plain", 0)}
    seen: list[int] = []
    launching_by = linking.launching_by

    def noted(object_code: bytes, address: int, tvm_ffi: Any) -> bytes:
        seen.append(address)
        return launching_by(object_code, address, tvm_ffi)

    monkeypatch.setattr("relaxpy.runtime.devices.cpu.kernels.launching_by", noted)
    infos = [KernelInfo(name, (images[name],)) for name in order]
    objects = launchers.launchers_object()
    loaded = load_kernels([code, objects], infos)
    assert seen == [_launchers(objects)[SHARED]]
    a = normal(3, 64)
    loaded[order.index("k")].serial(as_tensor(a), as_tensor(np.empty_like(a)))
    assert seen == [_launchers(objects)[SHARED], _launchers(objects)[ALONE]]


def test_the_serial_variant_is_linked_at_its_first_call() -> None:
    """And takes its places, so that later calls have one call of Python less."""
    kernel = handles()
    group, names = KernelGroup([kernel]), dict[str, Any]()
    put(names, "small", kernel.serial)
    assert isinstance(kernel.serial, LateHandle)
    a, out = normal(5, 64), np.zeros((5, 64), np.float32)
    group.pick(0)[0](as_tensor(a), as_tensor(out))
    np.testing.assert_allclose(out, np.exp(a) + 1, rtol=1e-5)
    assert not isinstance(kernel.serial, LateHandle)
    assert group.pick(0)[0] is names["small"] is kernel.serial
    assert kernel.serial_release.release_gil
    assert not isinstance(handles().linked().serial, LateHandle)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_one_starts_threads_and_the_other_does_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True,
        env={"RELAXPY_NUM_THREADS": "4", "PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p) + ":."},
    )  # fmt: skip
    serial, parallel = map(int, done.stdout.split())
    assert parallel == serial + 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a team of many threads")
def test_each_piece_runs_once_whatever_the_number_of_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PIECES], capture_output=True, text=True,
        env={"RELAXPY_NUM_THREADS": "40", "PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p) + ":."},
    )  # fmt: skip
    assert done.stdout.strip() == "as often as it should", done.stderr


needs_threads = pytest.mark.skipif(threads.num_threads() < 2, reason="needs two threads")


@needs_threads
def test_the_others_do_the_work_of_a_thread_that_is_held_up() -> None:
    done: list[int] = []
    rest = threading.Event()

    def task(piece: int) -> int:
        if piece:
            done.append(piece)
            if len(done) == threads.num_threads() * launchers.PIECES - 1:
                rest.set()
        else:
            assert rest.wait(60), f"nobody took the pieces behind the first one, only {done}"
        return 0

    assert Launch()(task) == 0
    assert rest.is_set()


@needs_threads
def test_threads_begin_with_their_own_part() -> None:
    """So each computes near what it computed of the kernel before."""
    meeting = Meeting(threads.num_threads())
    assert Launch()(meeting) == 0
    parts = [number * launchers.PIECES for number in range(threads.num_threads())]
    assert sorted(meeting.first.values()) == parts


def test_a_task_that_fails_ends_the_launch() -> None:
    assert Launch()(lambda piece: -(piece == 1)) != 0
    assert Launch().pieces()  # and the team goes on


@needs_threads
@pytest.mark.parametrize("raised", [None, "the disk is full"])
def test_the_error_of_another_thread_is_raised_on_this_one(raised: str | None) -> None:
    """A task that raises nothing gets an error that says so."""
    me = threading.get_ident()
    failed = threading.Event()
    errors = ctypes.CDLL(ffi().libinfo.find_libtvm_ffi())

    def task(piece: int) -> int:
        if threading.get_ident() == me:
            failed.wait(60)
            return 0
        if raised is not None:
            errors.TVMFFIErrorSetRaisedFromCStr(b"ValueError", raised.encode())
        failed.set()
        return -1

    launch = Launch()
    for _ in range(3):
        failed.clear()
        assert launch(task) == -1
        error = last_error(errors)
        assert (raised or "a thread of a parallel loop failed") in error
    assert launch(lambda piece: 0) == 0
    assert Team.from_address(team.address).error is None


def last_error(library: ctypes.CDLL) -> str:
    """The message of the error that was raised on this thread, which is none then."""
    handle = ctypes.c_void_p()
    library.TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
    assert handle.value
    # An error is an object of a header (24 bytes) and its parts: kind, message, … as (pointer, size).
    kind_and_message = (ctypes.c_size_t * 4).from_address(handle.value + 24)
    message = ctypes.string_at(kind_and_message[2], kind_and_message[3]).decode()
    library.TVMFFIObjectDecRef(handle)
    return message


def test_a_launch_waits_for_no_worker_that_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the other threads of the team never come."""
    launch = Launch()
    monkeypatch.setattr(threads, "may_launch", lambda: True)
    size = threads.num_threads()
    team.resize(0, 1)
    memory = Team.from_address(team.address)
    memory.size = 5
    try:
        assert sorted(launch.pieces()) == list(range(5 * launchers.PIECES))
    finally:
        memory.size = 1
        team.resize(0, size)


def test_a_launch_waits_for_all_workers_that_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for those of a team that is resized during the launch: here 5 threads are at a job for 2."""
    launch = Launch()
    monkeypatch.setattr(threads, "may_launch", lambda: True)
    size = threads.num_threads()
    team.resize(0, 5)
    memory = Team.from_address(team.address)
    memory.size = 2
    me = threading.get_ident()
    meeting = Meeting(5)
    done: list[int] = []

    def task(piece: int) -> int:
        meeting(piece)
        if threading.get_ident() != me:
            time.sleep(0.02)
        done.append(piece)
        return 0

    try:
        assert launch(task) == 0
        assert sorted(done) == list(range(2 * launchers.PIECES))
        assert len(meeting.first) == 5
    finally:
        memory.size = 5
        team.resize(0, size)


@needs_threads
def test_workers_that_sleep_are_woken() -> None:
    launch = Launch()
    memory = Team.from_address(team.address)
    for _ in range(3):
        launch.pieces()
        until = time.monotonic() + 60
        while memory.asleep < threads.num_threads() - 1:
            assert time.monotonic() < until, "a worker looks for work for a minute"
            time.sleep(0.001)
        meeting = Meeting(threads.num_threads())
        assert launch(meeting) == 0
        assert len(meeting.first) == threads.num_threads()


def test_a_thread_that_finds_the_teams_in_use_runs_the_loop_alone() -> None:
    launch = Launch()
    memory = (Team * TEAMS).from_address(team.address)
    before = [each.used for each in memory]
    for each in memory:
        each.used = 1
    try:
        assert launch.pieces() == [0]
    finally:
        for each, used in zip(memory, before, strict=True):
            each.used = used


def test_the_text_for_other_architectures() -> None:
    """Without an instruction for a loop that waits where none is known."""
    assert "@llvm.aarch64.hint(i32 1)" in launchers._text("aarch64")
    assert "RELAX" not in launchers._text("riscv64")


@needs_threads
def test_three_threads_launch_at_once() -> None:
    kernel, a = handles(), normal(1000, 64)

    def work() -> bool:
        out = np.full_like(a, np.nan)
        for _ in range(200):
            out[...] = np.nan
            kernel.run_parallel(as_tensor(a), as_tensor(out))
            if np.isnan(out).any():
                return False
        return True

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(lambda _: work(), range(3)))


def test_libraries_that_others_link_have_the_pools_own_launcher() -> None:
    """The same object, linked as it is, beside one of ours."""
    code = compile_object({"k": program()}, HOST)
    assert handles()
    library = _session().load_module(code, cxx=os.devnull)
    a = normal(100, 64)
    out = np.empty_like(a)
    library.get_function("k")(as_tensor(a), as_tensor(out))
    np.testing.assert_allclose(out, np.exp(a) + 1, rtol=1e-5)


def test_a_launcher_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The linker goes through all registrations for each library: with one for each library, a process that links many
    takes ever longer."""
    registered: list[tuple[bytes, int]] = []

    def register(name: bytes, address: int) -> int:
        registered.append((name, address))
        return 0

    monkeypatch.setattr(linking, "_register", {ffi(): register}.__getitem__)
    code = compile_object({"k": program()}, HOST)
    found = [linking.launching_by(code, address, ffi()) for address in (64, 32, 64, 32)]
    linking._pointer_to.cache_clear()
    assert [address for _, address in registered] == [64, 32]
    assert found[:2] == found[2:]
    for (name, _), changed in zip(registered, found[:2], strict=True):
        assert name in changed
        assert len(changed) == len(code)


def test_a_launcher_that_cannot_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(name: bytes, address: int) -> int:
        return 1

    monkeypatch.setattr(linking, "_register", {ffi(): register}.__getitem__)
    with pytest.raises(RuntimeError, match="cannot be registered"):
        linking.launching_by(b"", 96, ffi())


def test_only_parallel_programs_of_this_machine_share_code() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):
    y = R.matmul(x, w)
    return y
""")
    small = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32")):
    y = R.nn.relu(x)
    return y
""")
    for each in (mod, small):
        (kernel,) = relaxpy.build(each).kernels
        assert kernel.image.launchers == 1
        assert kernel.image.symbol == kernel.image.serial_symbol
    (kernel,) = relaxpy.build(mod).kernels
    assert load_kernels(relaxpy.build(mod).objects, [kernel])
    foreign = Target.parse("llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=generic")
    (kernel,) = relaxpy.build(mod, foreign).kernels
    assert kernel.image.launchers == -1
    assert kernel.image.symbol != kernel.image.serial_symbol


def test_saved_and_loaded(tmp_path: Path) -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):
    y = R.matmul(x, w)
    return y
""")
    relaxpy.build(mod).save(tmp_path / "m.rxe")
    vm = relaxpy.VirtualMachine(relaxpy.load(tmp_path / "m.rxe"))
    for rows in (1, 3, 500):  # alone, and on all threads
        x, w = normal(rows, 64), normal(64, 64)
        np.testing.assert_allclose(vm["main"](x, w).numpy(), x @ w, rtol=1e-4, atol=1e-4)


def test_a_handle_is_enough() -> None:
    """The code that it calls by address stays, whatever else is loaded and dropped."""
    call = handles().serial
    for _ in range(3):
        handles()
        gc.collect()
        a = normal(100, 64)
        out = np.empty_like(a)
        call(as_tensor(a), as_tensor(out))
        np.testing.assert_allclose(out, np.exp(a) + 1, rtol=1e-5)
