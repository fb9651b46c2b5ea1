"""Graphs through the driver's API of CUDA, which is emulated. `tests/hostile/test_graphs.py` has all else."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.bytecode import (
    Alloc,
    Call,
    Copy,
    Eval,
    Graph,
    Heap,
    If,
    Instr,
    IntOp,
    Kernel,
    Kill,
    MakePrim,
    Move,
    PrimPattern,
    Reg,
    Return,
    TensorPattern,
)
from relaxpy.runtime.graphs import GraphUse
from tests.runtime.devices.cuda import program
from tests.runtime.devices.cuda.conftest import driver as driver
from tests.runtime.devices.cuda.emulation import Emulation, add_kernel, needs_emulation
from tests.runtime.support import function, times

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


def test_a_loop_replays_the_graph_of_its_steps(driver: Emulation) -> None:
    """Each step has the frame of the one before it, so what was recorded fits."""
    add_kernel(program.CODE, program.BODY)
    exe = program.executable()
    there = TensorPattern((Heap(0),), 1, "float32", 1)
    body: list[Instr] = [
        Eval(0, 2, IntOp("lt", (0, Heap(1)))),
        Eval(0, 3, IntOp("sub", (Heap(1), 1))),
        MakePrim(0, 4, Heap(2), "bool"),
        If(0, 4, 9, 1),
        Alloc(0, 3, 0, 1, "float32", -1, 0, 1),
        Graph(0, 3, 1),
        Alloc(0, 2, 0, 1, "float32", 0, 0, 1),
        Kernel(0, 0, (Reg(0), Reg(2)), 1),
        Kernel(0, 0, (Reg(2), Reg(3)), 1),
        MakePrim(0, 5, Heap(3), "int64"),
        Call(0, 6, 0, (3, 5)),
        Kill(0, (3,)),
        Move(0, 7, 6),
        Move(0, 7, 0),
        Return(0, 7),
    ]
    params = [("x", there), ("k", PrimPattern("int64", Heap(1)))]
    main = function("main", params, body, storages=[times(0, 4)])
    vm = VirtualMachine(replace(exe, functions=(replace(main, storage_slots=(1,)),)))
    x = vm.upload(np.arange(100, dtype=np.float32))
    results = [vm["main"](x, k) for k in (0, 1, 5, 9)]
    for k, result in zip((0, 1, 5, 9), results, strict=True):
        np.testing.assert_array_equal(result.numpy(), 4.0**k * np.arange(100))
    before = vm.graphs
    vm["main"](vm.upload(np.zeros(100, np.float32)), 60)
    assert vm.graphs.replays - before.replays > 50
