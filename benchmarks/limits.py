"""The limits of this machine, measured: those beside which other benchmarks put their figures.

The peak of an arithmetic is that of a loop of multiply-adds on registers; the speed of memory that of loops which read,
or copy, as many bytes as the kernel in question touches, again and again, so that a kernel whose data lie in a cache is
compared with that cache. All threads take part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.turns import timed
from relaxpy.backend.cpu.dots import Dots
from relaxpy.backend.cpu.peak import CHAINS, STEPS, argument, loaded, multiply_adds
from relaxpy.op import te
from relaxpy.runtime.devices.cpu.kernels import KernelHandles
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops

SECONDS = 0.02
"""For which a loop is repeated."""
STREAMS = 8
"""Vectors that a task reads one after the other before it goes back to the first sum."""


@dataclass
class Limits:
    """Measured anew whenever they are asked for, beside the kernel in question. The best peak is kept; the speed of
    memory is taken as it is, since what is left of a shared cache changes by the minute."""

    threads: int
    target: Target = field(default_factory=Target.host)
    _peaks: dict[str, float] = field(default_factory=dict)

    def seconds(self, flops: float, dtype: str, read: float, written: float) -> tuple[float, str]:
        """The least time of a kernel that does and moves so much, and what sets it: "compute" or "memory"."""
        compute = flops / self.peak(dtype) if flops else 0.0
        memory = self.memory_seconds(read, written)
        return (compute, "compute") if compute > memory else (memory, "memory")

    def peak(self, dtype: str) -> float:
        """Operations a second of products of this dtype; `codes`: of bytes with codes of 4 bits."""
        flops, run = self._products(dtype)
        self._peaks[dtype] = max(self._peaks.get(dtype, 0.0), flops / min(timed(run, 3, SECONDS)))
        return self._peaks[dtype]

    def _products(self, dtype: str) -> tuple[int, Callable[[], object]]:
        made = code_products if dtype == "codes" else partial(multiply_adds, dtype)
        return made(self.threads, self.target)

    def sustained(self, dtype: str, seconds: float) -> float:
        """As `peak`, the median of the calls of so many seconds: on a machine whose clock or neighbours change, for
        kernels that take long, or whose times are medians, too."""
        flops, run = self._products(dtype)
        return flops / median(timed(run, 3, seconds))

    def memory_seconds(self, read: float, written: float) -> float:
        """The least time to read and write so many bytes, over and over again."""
        read_cost = self._cost("read", read + written)
        copy_cost = self._cost("copy", read + written)  # of a byte read and a byte written
        return read * read_cost + written * max(copy_cost - read_cost, 0.0)

    def bandwidth(self, nbytes: float) -> float:
        """Bytes a second of a loop that reads so many."""
        return 1 / self._cost("read", nbytes)

    def _cost(self, kind: str, nbytes: float) -> float:
        """Seconds a byte; between the powers of two that are measured it is interpolated."""
        at = min(max(math.log2(max(nbytes, 1)), 14), 28)
        low = math.floor(at)
        first, second = (self._measured_cost(kind, min(size, 28)) for size in (low, low + 1))
        return first + (second - first) * (at - low)

    def _measured_cost(self, kind: str, log2: int) -> float:
        measured = _read_seconds if kind == "read" else _copy_seconds
        return measured(1 << log2, self.threads, self.target)


@cache
def code_products(threads: int, target: Target) -> tuple[int, Callable[[], object]]:
    """A loop of dot products of bytes with codes of 4 bits (`relaxpy.backend.cpu.dots`) on registers, or of float32
    where the target has none. Returns its number of operations, and a function that runs it."""
    dots = Dots.of(target)
    if dots is None:
        return multiply_adds("float32", threads, target)
    lanes, tasks = dots.lanes, threads * 4
    x = te.placeholder((tasks, lanes), "int32", "X")
    y = te.compute((tasks, lanes), lambda i, j: te.element(x(i, j)), "Y")
    func = PrimFunc.from_te([x], [y]).func
    p: Any = loops.Program()
    source, out = (p.flat_view(buffer) for buffer in func.params)
    with p.loop("task", tasks, parallel=True) as task:
        value = p.let("value", loops.load(source, task * lanes, lanes))
        sums = [p.allocate(f"sum{n}", lanes, "int32") for n in range(CHAINS)]
        for chain in sums:
            p.store(chain, 0, loops.zero("int32", lanes), lanes)
        with p.loop("step", STEPS):
            for chain in sums:
                # Products of what changes: others would be computed once, before the loop.
                before = loops.load(chain, 0, lanes)
                p.store(chain, 0, dots.add(before, value, before), lanes)
        for chain in sums:
            so_far: Any = loops.load(out, task * lanes, lanes)
            p.store(out, task * lanes, so_far + loops.load(chain, 0, lanes), lanes)
    kernel = loaded(loops.finished(func, dots.around(p.body())), target)
    args = [argument(np.ones((tasks, lanes), np.int32)) for _ in range(2)]
    return 2 * tasks * lanes * CHAINS * STEPS * 4, partial(kernel.parallel, *args)


def _read_seconds(nbytes: int, threads: int, target: Target) -> float:
    """Seconds a byte of summing as many float32."""
    x, sums = np.ones(nbytes // 4, np.float32), np.zeros((threads * 4, 64), np.float32)
    return _usual_seconds(_stream(threads, target, copies=False), [x, sums]) / nbytes


def _copy_seconds(nbytes: int, threads: int, target: Target) -> float:
    """Seconds for a byte read and one written, together as many."""
    x = np.ones(nbytes // 8, np.float32)
    return _usual_seconds(_stream(threads, target, copies=True), [x, np.zeros_like(x)]) / x.nbytes


@cache
def _stream(threads: int, target: Target, *, copies: bool) -> KernelHandles:
    """A kernel that copies a vector, or sums it in as many sums as its tasks have lanes."""
    from relaxpy.ir.dim import SymVar

    n, lanes, tasks = SymVar("n"), target.lanes(), threads * 4
    x = te.placeholder((n,), "float32", "X")
    shape = (n,) if copies else (tasks, 64)
    y = te.compute(shape, lambda *i: te.element(x(i[0])), "Y")
    func = PrimFunc.from_te([x], [y]).func
    p: Any = loops.Program()
    source, out = (p.flat_view(buffer) for buffer in func.params)
    share = loops.floordiv(func.params[0].ty.shape[0], tasks)
    block = STREAMS * lanes
    with p.loop("task", tasks, parallel=True) as task:
        start = p.let("start", task * share)
        sums = [p.allocate(f"sum{n}", lanes, "float32") for n in range(STREAMS)]
        if not copies:
            for chain in sums:
                p.store(chain, 0, loops.zero("float32", lanes), lanes)
        with p.loop("step", loops.floordiv(share, block)) as step:
            for i, chain in enumerate(sums):
                at = start + step * block + i * lanes
                value = loops.load(source, at, lanes)
                if copies:
                    p.store(out, at, value, lanes)
                else:
                    before: Any = loops.load(chain, 0, lanes)
                    p.store(chain, 0, before + value, lanes)
        if not copies:
            for chain in sums:
                so_far: Any = loops.load(out, task * 64, lanes)
                p.store(out, task * 64, so_far + loops.load(chain, 0, lanes), lanes)
    return loaded(loops.finished(func, p.body()), target)


def _usual_seconds(kernel: KernelHandles, arrays: list[np.ndarray]) -> float:
    """The median, on all threads or on one: for little data that is faster."""
    return min(median(_times(run, arrays)) for run in (kernel.parallel, kernel.linked().serial))


def _times(run: Callable[..., object], arrays: list[np.ndarray]) -> list[float]:
    """Seconds of each of some calls."""
    args = [argument(array) for array in arrays]
    run(*args)
    return timed(partial(run, *args), 3, SECONDS)
