"""A call beside a busy Python thread, beside a busy process, and many threads on one machine.

    python benchmarks/threads.py [--json FILE]

The table: the same call alone, while another Python thread spins, and while another process does, at
three amounts of work. Python hands its lock over every 5 ms, so a call that keeps it takes about
twice as long at worst; a kernel that gave it up would wait for it 5 ms each time. A process that
spins takes half of one core. Below: calls of random shapes from 16
threads, each result compared with what one thread gets, and the OS threads that 200 short-lived
Python threads leave behind.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import relaxpy

PROGRAM = """
@R.function
def main(
    x: R.Tensor(("n", 384), dtype="float32"), w: R.Tensor((384, 384), dtype="float32")
) -> R.Tensor(("n", 384), dtype="float32"):
    a = R.matmul(x, w)
    b = R.nn.gelu(a)
    c = R.matmul(b, w)
    d = R.nn.softmax(c, axis=-1)
    e = R.matmul(d, w)
    return e
"""
ROWS = {"small": 4, "medium": 1024, "large": 16384}


def milliseconds(call: Callable[[], Any], rounds: int) -> list[float]:
    """How long each of `rounds` calls took."""
    found: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e3)
    return found


@contextmanager
def busy_thread() -> Iterator[None]:
    """While another Python thread spins."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    busy = threading.Thread(target=spin)
    busy.start()
    try:
        yield
    finally:
        stop.set()
        busy.join()


@contextmanager
def busy_process() -> Iterator[None]:
    """While another process spins."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(0.2)
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def from_many_threads(main: Any, weight: np.ndarray, threads: int, calls: int) -> int:
    """Wrong results among `calls` calls of each of `threads` threads, all of different shapes."""
    x = np.random.default_rng(1).normal(size=(64, 384)).astype("float32")
    expected = {n: main(x[:n], weight).numpy() for n in range(65)}
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for n in rng.integers(0, 65, calls):
            if not np.array_equal(main(x[:n], weight).numpy(), expected[int(n)]):
                wrong.append(int(n))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return len(wrong)


def os_threads() -> int:
    """Threads of this process, as the operating system counts them (Linux)."""
    return len(os.listdir("/proc/self/task"))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(PROGRAM)))
    rng = np.random.default_rng(0)
    weight = (rng.normal(size=(384, 384)) / 20).astype("float32")
    table = Table(title="Alone, and beside another that is busy")
    columns = (
        "work",
        "ms alone",
        "beside a thread",
        "ratio",
        "of means",
        "beside a process",
        "ratio",
        "of means",
    )
    for column in columns:
        table.add_column(column, justify="right")
    results: dict[str, Any] = {"beside": {}}
    for name, rows in ROWS.items():
        x = rng.normal(size=(rows, 384)).astype("float32")

        def call(x: np.ndarray = x) -> None:
            vm["main"](x, weight)

        milliseconds(call, 5)
        alone = milliseconds(call, options.rounds)
        result: dict[str, float] = {"rows": rows, "ms_alone": statistics.median(alone)}
        for other, busy in (("thread", busy_thread), ("process", busy_process)):
            with busy():
                beside = milliseconds(call, options.rounds)
            result[f"ms_beside_{other}"] = statistics.median(beside)
            result[f"ratio_{other}"] = statistics.median(beside) / statistics.median(alone)
            result[f"ratio_of_means_{other}"] = statistics.mean(beside) / statistics.mean(alone)
        results["beside"][name] = result
        table.add_row(name, *(f"{value:.3f}" for key, value in result.items() if key != "rows"))
    console = Console(width=120)
    console.print(table)
    wrong = from_many_threads(vm["main"], weight, 16, 200)
    before = os_threads()
    for seed in range(200):
        short = threading.Thread(target=lambda s=seed: vm["main"](x[: s % 7], weight))
        short.start()
        short.join()
    time.sleep(0.2)
    left, spent = os_threads() - before, time.process_time()
    time.sleep(1.0)
    idle = time.process_time() - spent
    results |= {"wrong_of_3200": wrong, "os_threads_left": left, "cpu_seconds_while_idle": idle}
    console.print(f"16 threads × 200 calls of different shapes: {wrong} wrong")
    console.print(
        f"200 short-lived threads leave {left} OS threads; idle CPU {idle * 1e3:.1f} ms a second"
    )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
