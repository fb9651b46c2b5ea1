"""Where the time of a call goes: every kernel of a virtual machine timed from Python.

A clock is read before and after each kernel (0.1 µs a kernel), so what is not in any kernel is the machine's own work:
checks, shapes, allocation, and the calls themselves. With the module that was lowered, a kernel's time can be held
against what it computes and moves (`Costs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from relaxpy.ir.dim import SymVar
from relaxpy.ir.module import IRModule, ScalarParam
from relaxpy.runtime.devices.cpu import device, kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.cost import loads, product_flops
from relaxpy.transform.base import Pass

Shape = tuple[int, ...]


@dataclass
class KernelTime:
    """The time of one kernel in all calls since the last `reset`."""

    name: str
    calls: int = 0
    seconds: float = 0.0
    observed: list[tuple[Shape | int, ...]] = field(default_factory=list)
    """Of each call while calls were observed: the sizes of tensors, and the numbers."""


class KernelTimes:
    """The times of all kernels of the machines that were made inside `recording`."""

    def __init__(self) -> None:
        self.kernels: dict[str, KernelTime] = {}
        self.observing = False
        """Whether sizes are noted (which takes longer than small kernels do)."""
        self.watching: Callable[[str, tuple[Any, ...]], None] | None = None
        """Called with the name and the arguments of each call, before it."""

    def reset(self) -> None:
        """Forget all calls, but not what was observed."""
        for kernel in self.kernels.values():
            kernel.calls, kernel.seconds = 0, 0.0

    def by_time(self) -> list[KernelTime]:
        """Kernels that ran, longest first."""
        return sorted((k for k in self.kernels.values() if k.calls), key=lambda k: -k.seconds)

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Note the sizes of all calls in the block, and of no others."""
        for kernel in self.kernels.values():
            kernel.observed.clear()
        self.observing = True
        try:
            yield
        finally:
            self.observing = False

    def timed(self, handle: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`handle`, its calls counted under `name`."""
        total = self.kernels.setdefault(name, KernelTime(name))

        def call(*args: Any) -> None:
            if self.observing:
                total.observed.append(tuple(map(size_of, args)))
            if self.watching is not None:
                self.watching(name, args)
            start = perf_counter()
            handle(*args)
            total.seconds += perf_counter() - start
            total.calls += 1

        return call


def size_of(arg: Any) -> Shape | int:
    """The sizes of a tensor that a kernel is called with; a number as it is."""
    if isinstance(arg, int | float):
        return int(arg)
    return tuple(map(int, arg.shape))


class Costs:
    """An instrument of a build that keeps the lowered module, and says what kernels compute and move."""

    def __init__(self) -> None:
        self.mod: IRModule | None = None

    def __call__(self, number: int, step: Pass, before: IRModule, after: IRModule) -> None:
        self.mod = after

    def of(self, kernel: KernelTime) -> tuple[float, float, float]:
        """Operations of sums of products, bytes read and bytes written, in all observed calls together. An element of
        a parameter counts as read or written once, those of a table that are not looked up not at all."""
        assert self.mod is not None
        func = self.mod[kernel.name]
        assert isinstance(func, PrimFunc)
        work, often, written = product_flops(func.func), loads(func.func), func.written
        flops = read = stored = 0.0
        for sizes in kernel.observed:
            values: dict[SymVar, int] = {}
            elements: dict[int, int] = {}
            for i, (param, size) in enumerate(zip(func.params, sizes, strict=True)):
                if isinstance(param, ScalarParam):
                    assert isinstance(size, int)
                    values[param.var] = size
                    continue
                assert isinstance(size, tuple)
                for dim, extent in zip(param.shape, size, strict=True):
                    values.update({var: extent for var in dim.vars if dim == var.dim})
                elements[i] = math.prod(size)
            for i, count in elements.items():
                width = func.params[i].dtype.numpy.itemsize
                if i in written:
                    stored += count * width
                else:
                    most = often[i]
                    read += min(count, count if most is None else most.evaluate(values)) * width
            flops += work.evaluate(values) if work is not None else 0
        return flops, read, stored


@contextmanager
def recording() -> Iterator[KernelTimes]:
    """Virtual machines made in the block time their kernels, then and later."""
    times = KernelTimes()
    load = device.load_kernels

    def load_timed(*args: Any, **kwargs: Any) -> list[kernels.KernelHandles]:
        found = [kernel.linked() for kernel in load(*args, **kwargs)]
        for kernel in found:
            wrapped: dict[
                int, Callable[..., Any]
            ] = {}  # a kernel without a serial twin has one handle twice
            for slot in ("serial", "serial_release", "parallel", "parallel_release"):
                handle = getattr(kernel, slot)
                if id(handle) not in wrapped:
                    wrapped[id(handle)] = times.timed(handle, kernel.info.name)
                setattr(kernel, slot, wrapped[id(handle)])
        return found

    device.load_kernels = load_timed
    try:
        yield times
    finally:
        device.load_kernels = load
