from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.runtime import VirtualMachine, num_threads, set_num_threads
from relaxpy.runtime.bytecode import Alloc, FunctionCode, Heap, Instr, Kernel, Reg, Return
from relaxpy.runtime.host import threads
from tests.runtime.support import ADD1, HEAVY, executable, f32, function, times
from tests.sweeps import full

ROOT = Path(__file__).resolve().parents[3]


def chain(name: str, kernel: int, length: int, factor: int = 1) -> FunctionCode:
    """`length` times the kernel, whose work is said to be `factor` an item."""
    body: list[Instr] = []
    for i in range(length):
        storage = -1 if i == length - 1 else i % 2
        body.append(Alloc(i % 8, i + 1, 0, 1, "float32", storage))
        body.append(Kernel(i % 8, kernel, (Reg(i), Reg(i + 1)), times(0, factor)))
    body.append(Return(0, length))
    return function(name, [("x", f32(Heap(0)))], body, regs=length + 1, storages=[times(0, 4)] * 2)


@pytest.fixture(scope="module")
def vm() -> VirtualMachine:
    return VirtualMachine(executable(chain("tiny", ADD1, 50), chain("heavy", HEAVY, 3, 40)))


def os_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_16_threads_are_right_every_time(vm: VirtualMachine) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        kept = []
        for i in range(150):
            x = random.random(int(random.integers(0, 3000)), np.float32)
            out = vm["tiny"](x)
            if not np.allclose(out.numpy(), x + 50):
                wrong.append((seed, i, "tiny"))
            kept.append((x, out))
            if i % 50 == 0:
                y = np.full(int(random.integers(1, 200_000)), -1e9, np.float32)
                if not np.allclose(vm["heavy"](y).numpy(), vm["heavy"](y[:1]).numpy()):
                    wrong.append((seed, i, "heavy"))
        wrong.extend((seed, "kept") for x, out in kept if not np.allclose(out.numpy(), x + 50))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_200_short_lived_threads_leave_nothing(vm: VirtualMachine) -> None:
    x = np.full(300_000, -1e9, np.float32)
    vm["heavy"](x)
    allowed = os_threads() + num_threads()  # the second team may be made
    workers = [
        threading.Thread(target=vm["heavy"], args=(x[: 3000 * (i % 100)],)) for i in range(200)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    time.sleep(0.1)
    assert os_threads() <= allowed
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def median_seconds(func: Callable[[], object], repeat: int = 21) -> float:
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        func()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def test_beside_a_busy_python_thread(vm: VirtualMachine) -> None:
    """Twice as long at most; the test allows for other load on the machine."""
    x = np.zeros(8, np.float32)

    def call() -> None:
        vm["tiny"](x)

    alone = median_seconds(call, 201)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    busy = threading.Thread(target=spin)
    busy.start()
    try:
        beside = median_seconds(call, 201)
    finally:
        stop.set()
        busy.join()
    assert beside < 4 * alone + 1e-5


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_requested", None)
    monkeypatch.setenv("RELAXPY_NUM_THREADS", "3")
    assert num_threads() == 3
    for wrong in ("0", "many", "-1", "1025", "9" * 5000, "²"):
        monkeypatch.setenv("RELAXPY_NUM_THREADS", wrong)
        with pytest.raises(UsageError, match="RELAXPY_NUM_THREADS") as raised:
            num_threads()
        assert len(str(raised.value)) < 200
    set_num_threads(2)
    assert num_threads() == 2
    for bad in (0, -1, 1.5, "2", True, 1025, 10**5000, -(10**5000)):
        with pytest.raises(UsageError):
            set_num_threads(bad)  # type: ignore[arg-type]


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
from relaxpy.runtime import VirtualMachine, load
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
vm = VirtualMachine(load(sys.argv[1]))
x = np.zeros(200_000, np.float32)
vm["heavy"](x)
for _ in range(40):
    threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            vm["heavy"](x)
    except KeyboardInterrupt:
        pass
assert vm["heavy"](x).shape == x.shape
print("usable")
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_leaves_the_machine_usable(vm: VirtualMachine, tmp_path: Path) -> None:
    """Wherever it comes: one in a result's finaliser was lost."""
    vm.executable.save(tmp_path / "m.rx")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "m.rx")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "usable", done.stderr


FORKED = """
import os, sys
import numpy as np
from relaxpy.runtime import VirtualMachine, load
vm = VirtualMachine(load(sys.argv[1]))
x = np.full(100, -1e9, np.float32)
expected = vm["heavy"](x).numpy()
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(vm["heavy"](x).numpy(), expected) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_can_call(vm: VirtualMachine, tmp_path: Path) -> None:
    vm.executable.save(tmp_path / "m.rx")
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "m.rx")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_launch_on_its_parents_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads.team, "reset", lambda: None)  # here, the workers go on
    monkeypatch.setattr(threads.team, "resize", lambda number, size: None)
    monkeypatch.setattr(threads, "_requested", 2)
    monkeypatch.setattr(threads, "_pool_thread", threading.get_ident())
    for configure, has_launched, launches in (
        (None, True, True),
        (lambda mode, count: None, False, True),
        (lambda mode, count: None, True, False),
        (lambda mode, count: None, False, False),  # a child of the child
    ):
        monkeypatch.setattr(threads, "_configure", configure)
        monkeypatch.setattr(threads.team, "sizes", [2 * has_launched, 0])
        threads._after_fork()
        assert threads.may_launch() == launches


def test_only_the_main_thread_launches_on_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(threads, "_requested", 2)
    monkeypatch.setattr(threads, "_configure", None)
    monkeypatch.setattr(threads, "_pool_thread", threading.get_ident())
    monkeypatch.setattr(threads.team, "sizes", [2, 2])
    threads.use_pool(None)
    assert threads.may_launch()
    assert launches_elsewhere()
    threads.use_pool(lambda mode, count: set_to.append((mode, count)))
    assert not launches_elsewhere()
    assert threads.may_launch()
    assert set_to == [(0, 2)]
    assert not launches_elsewhere()
    assert set_to == [(0, 2)]


def launches_elsewhere() -> bool:
    """May another thread launch?"""
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(threads.may_launch()))
    other.start()
    other.join()
    return found[0]
