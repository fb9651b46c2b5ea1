"""Graphs through the driver's API of CUDA, which is emulated. `tests/hostile/test_graphs.py` has all else."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.bytecode import Alloc, Copy, Graph, Instr, Kernel, Reg
from relaxpy.runtime.graphs import GraphUse
from tests.runtime.devices.cuda import program
from tests.runtime.devices.cuda.conftest import driver as driver
from tests.runtime.devices.cuda.emulation import Emulation, add_kernel, needs_emulation

pytestmark = needs_emulation


def machine() -> VirtualMachine:
    """`main(x)`, 4 x, with its two launches in a graph."""
    add_kernel(program.CODE, program.BODY)
    exe = program.executable()
    main = exe.functions[0]
    code: list[Instr] = [each for each in main.code if not isinstance(each, (Alloc, Copy, Kernel))]
    planned, own = (each for each in main.code if isinstance(each, Alloc))
    first, second = (each for each in main.code if isinstance(each, Kernel))
    graph = [Graph(0, 3, 1), planned, first, replace(second, args=(Reg(1), Reg(3)))]
    code[-1:-1] = [own, *graph]
    return VirtualMachine(
        replace(exe, functions=(replace(main, code=tuple(code)), *exe.functions[1:]))
    )


def test_two_launches_are_one(driver: Emulation) -> None:
    vm = machine()
    x = vm.upload(np.arange(100, dtype=np.float32))
    for _ in range(5):
        np.testing.assert_array_equal(vm["main"](x).numpy(), 4 * np.arange(100))
    assert vm.graphs == GraphUse(replays=4, recordings=1, kept=1)
    streams = driver.streams()
    vm["main"](x)
    assert driver.streams() == streams


def test_threads_without_a_context(driver: Emulation) -> None:
    """The driver refuses a replay in a thread that has no context yet."""
    vm = machine()
    x = vm.upload(np.arange(100, dtype=np.float32))
    vm["main"](x)
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(vm["main"], x).result()
        np.testing.assert_array_equal(result.numpy(), 4 * np.arange(100))
        del result
    assert vm.graphs.replays >= 2


def test_a_graph_without_work(driver: Emulation) -> None:
    """Launches of no threads are left out, and nothing is left to replay."""
    vm = machine()
    for n in (0, 0, 3, 3, 0):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(vm["main"](x).numpy(), 4 * x)
    assert vm.graphs.replays


def test_recordings_share_a_stream(driver: Emulation) -> None:
    vm = machine()
    before = driver.streams()
    for n in (9000, 7000, 5000):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(vm["main"](x).numpy(), 4 * x)
    assert vm.graphs.recordings == 3
    assert driver.streams() == before + 1
    vm.release_memory()
    assert vm.graphs == GraphUse()
    del vm
    gc.collect()
    assert driver.streams() == 0
