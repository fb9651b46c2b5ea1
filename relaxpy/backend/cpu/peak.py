"""The peak arithmetic rate of the processor, measured with loops of multiply-adds on registers.

`benchmarks/limits.py` compares measured kernels with it, and so do profiles (`relaxpy.runtime.limits`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from time import perf_counter
from typing import Any

import numpy as np

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.cpu.rules import CPU_RULES
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.cpu.tiles import ROW_BYTES, ROWS, Tiles, address
from relaxpy.backend.schedule import schedule_by_rules
from relaxpy.op import te
from relaxpy.runtime.bytecode import KernelImage, KernelInfo
from relaxpy.runtime.devices.cpu.kernels import KernelHandles, load_kernels
from relaxpy.runtime.ffi import ffi
from relaxpy.runtime.host.threads import num_threads
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops

CHAINS, STEPS = 12, 1 << 14
"""The number of independent sums (enough to fill the units, few enough for the registers), and of products added to
each."""
_SECONDS = 0.02
"""The duration of the repeated loop."""


@cache
def multiply_adds(dtype: str, threads: int, target: CpuTarget) -> tuple[int, Callable[[], object]]:
    """A loop of multiply-adds of `dtype` on registers, for that many threads. Returns its number of operations, and a
    function that runs it."""
    total = "int32" if dtype in ("int8", "uint8") else "float32"
    tiles = Tiles.of(dtype, dtype, total, target)
    if tiles is not None:
        return _tile_products(tiles, threads, target)
    arithmetic = Arithmetic.of(dtype, dtype, total, target)
    lanes, tasks = arithmetic.lanes, threads * 4
    x = te.placeholder((tasks, lanes), arithmetic.word, "X")
    y = te.compute((tasks, lanes), lambda i, j: te.cast(te.element(x(i, j)), total), "Y")
    func = PrimFunc.from_te([x], [y]).func
    p: Any = loops.Program()
    source, out = (p.flat_view(buffer) for buffer in func.params)
    with p.loop("task", tasks, parallel=True) as task:
        value = p.let("value", loops.load(source, task * lanes, lanes))
        sums = [p.allocate(f"sum{n}", lanes, total) for n in range(CHAINS)]
        for chain in sums:
            p.store(chain, 0, loops.zero(total, lanes), lanes)
        with p.loop("step", STEPS):
            for chain in sums:
                before = loops.load(chain, 0, lanes)
                p.store(chain, 0, arithmetic.add_product(before, value, value), lanes)
        for chain in sums:
            so_far: Any = loops.load(out, task * lanes, lanes)
            p.store(out, task * lanes, so_far + loops.load(chain, 0, lanes), lanes)
    kernel = loaded(loops.finished(func, arithmetic.around(p.body())), target)
    words = (arithmetic.word, total)
    args = [argument(np.full((tasks, lanes), 0.5).astype(word)) for word in words]
    flops = 2 * tasks * lanes * CHAINS * STEPS * arithmetic.group
    return flops, partial(kernel.parallel, *args)


def _tile_products(
    tiles: Tiles, threads: int, target: CpuTarget
) -> tuple[int, Callable[[], object]]:
    """As `multiply_adds`, of tiles that are loaded from the first-level cache."""
    tasks, size, block = threads * 4, ROWS * ROW_BYTES, 4 * ROWS * ROWS
    x = te.placeholder((2 * size,), "uint8", "X")
    y = te.compute(
        (tasks, block), lambda i, j: te.cast(te.element(x(i * 0 + j * 0)), tiles.total), "Y"
    )
    func = PrimFunc.from_te([x], [y]).func
    p: Any = loops.Program()
    source, out = (p.flat_view(buffer) for buffer in func.params)
    with p.loop("task", tasks, parallel=True) as task:
        tiles.configure(p, (loops.int64(ROWS), loops.int64(ROWS)))
        tiles.begin(p, 2)
        with p.loop("step", STEPS):
            where = address(source, 0)
            tiles.multiply(p, 2, where, loops.int64(ROW_BYTES), where, ROW_BYTES)
        tiles.store(p, 2, out, task * block)
        tiles.release(p)
    kernel = loaded(loops.finished(func, tiles.around(p.body())), target)
    args = [
        argument(np.zeros(shape, kind))
        for shape, kind in (((2 * size,), "uint8"), ((tasks, block), tiles.total))
    ]
    return 2 * tasks * STEPS * block * tiles.depth, partial(kernel.parallel, *args)


def loaded(func: Any, target: CpuTarget) -> KernelHandles:
    """Compile a program of loops into a callable kernel."""
    kernel = schedule_by_rules(func, target, {}, CPU_RULES)
    code = compile_object({"p": kernel.parallel, "s": kernel.serial}, target)
    return load_kernels([code], [KernelInfo("limit", (KernelImage("p", "s"),))])[0]


def argument(array: np.ndarray) -> Any:
    """Convert an array to a kernel argument."""
    return ffi().from_dlpack(array, require_alignment=4)


def peak_flops(target: CpuTarget) -> float:
    """The peak float32 operations per second, a multiply-add counted as two, on the threads that kernels use: the best
    of several runs."""
    flops, run = multiply_adds("float32", num_threads(), target)
    run()  # warm-up: threads start, the clock rises
    end, best = perf_counter() + _SECONDS, float("inf")
    while perf_counter() < end:
        start = perf_counter()
        run()
        best = min(best, perf_counter() - start)
    return flops / best
