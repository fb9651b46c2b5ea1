"""Runs and times schedules of kernels on a device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from relaxpy.runtime.container import MemoryContainer
from relaxpy.runtime.device import Device
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.devices.registry import runtime_of
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.candidate_results import TURNS, Results
from relaxpy.runtime.inspect.candidates import LAUNCHES, Archive
from relaxpy.runtime.inspect.random_tensors import on_device
from relaxpy.runtime.tensor import from_numpy
from relaxpy.runtime.vm import VirtualMachine

SECONDS = 0.05
"""Seconds to measure one schedule at one size."""
_WARM = 3
_BATCH = 200e-6
"""Seconds of work between two looks at the device's clock, at least."""
_MOST_CALLS = 64
_TURNS = 5
_COPIED = 256 << 20
_PIECE = 1 << 22
"""Elements that are compared at once."""
_SHORTEST = 1e-9
"""Seconds; what takes less is not measured."""


class Bench:
    """A device, and the kernel that is measured."""

    def __init__(self, archive: Archive, device: str) -> None:
        self.archive = archive
        self.device = device
        self._kernel = -1
        self._home: VirtualMachine | None = None
        """The machine of the present schedule, whose queue owns the arguments."""
        self._args: list[list[Any]] = []
        """The arguments of `many` for each size."""
        self._expected: list[tuple[list[np.ndarray], list[float]]] = []
        place = Device.of(device)
        runtime = runtime_of(place.kind, place.index)
        self.queue = runtime.queue()
        names = runtime.devices()
        self.name = names[runtime.index] if runtime.index < len(names) else str(self.queue.device)

    def machine(self, kernel: int, candidate: int) -> VirtualMachine:
        """The machine of a schedule."""
        data = self.archive.executable(kernel, candidate)
        exe = Executable.from_sections(MemoryContainer.of(memoryview(data)))
        return VirtualMachine(exe, device=self.device)

    def about(self) -> dict[str, Any]:
        """The device, and the rate of its memory: bytes read and written by a copy."""
        queue, facts = self.queue, self.queue.runtime.facts()
        total = int(facts.get("total_memory", 0))
        size = min(_COPIED, total // 8) if total else _COPIED
        first, second = (queue.new((size,), "uint8") for _ in range(2))
        places = first.buffer.handle, first.offset, second.buffer.handle, second.offset
        seconds = self._seconds(queue, lambda: queue.runtime.copy(queue.raw, *places, size))
        rate = 2 * size / seconds if seconds > _SHORTEST else None
        driver = str(facts.get("driver", "unknown"))
        return {"name": self.name, "driver": driver, "bytes_per_second": rate}

    def measured(self, results: Results, kernel: int, candidate: int) -> dict[str, Any]:
        """The result of an item."""
        if "error" in results.done.get((kernel, 0), {}):
            return {"error": "the present schedule does not run"}
        if kernel != self._kernel:
            self._prepare(kernel)
        if candidate == TURNS:
            return self._turns(results, kernel)
        vm = self.machine(kernel, candidate)
        args = self._entered(vm)
        if wrong := self._wrong(vm, args):
            return {"error": wrong}
        return {"microseconds": [self._time(vm, *each) for each in enumerate(args)]}

    def _prepare(self, kernel: int) -> None:
        """Make the arguments of a kernel. Tensors of one kind are made once for all sizes."""
        self._args, self._expected, self._kernel = [], [], -1
        vm = self._home = self.machine(kernel, 0)
        sites = self.archive.kernels[kernel].sites
        kinds = dict.fromkeys(each for site in sites for each in site.inputs)
        every = {each: on_device(vm, [each] * LAUNCHES) for each in kinds}
        for number, site in enumerate(sites):
            # Several inputs of one kind share memory within a launch: they are only read.
            args = [every[each][n] for n in range(LAUNCHES) for each in site.inputs]
            self._args.append(args)
            self._expected.append(results_of(vm[f"at{number}"](*args[: len(site.inputs)])))
        self._kernel = kernel

    def _entered(self, vm: VirtualMachine) -> list[list[Any]]:
        """The arguments in the queue of another machine of the device."""
        queue = _queue(vm)
        return [[queue.enter(each) for each in args] for args in self._args]

    def _wrong(self, vm: VirtualMachine, args: Sequence[Sequence[Any]]) -> str:
        """How the results differ from the present schedule's; "" if they do not."""
        queue = _queue(vm)
        for number, (expected, tolerances) in enumerate(self._expected):
            # Memory that the results are likely to get: what is not written does not look right by chance.
            for array in expected:
                queue.upload(from_numpy(np.full(array.nbytes, 0xFF, np.uint8)))
            count = len(args[number]) // LAUNCHES
            found, _ = results_of(vm[f"at{number}"](*args[number][:count]))
            if not agree(found, expected, tolerances):
                sizes = self.archive.kernels[self._kernel].sites[number].sizes
                return f"its results differ from the present schedule's at {dict(sizes)}"
        return ""

    def _time(self, vm: VirtualMachine, number: int, args: Sequence[Any]) -> float:
        """Microseconds of a launch at one size: the median."""
        many = vm[f"many{number}"]
        seconds = self._seconds(_queue(vm), lambda: many(*args))
        return round(max(seconds / LAUNCHES, _SHORTEST) * 1e6, 4)

    def _seconds(self, queue: Queue, work: Callable[[], object]) -> float:
        """The median time of some work."""
        for _ in range(_WARM):
            work()
        clock = queue.runtime.seconds
        one = clock(queue.raw, work)
        calls = max(1, min(_MOST_CALLS, math.ceil(_BATCH / max(one, _SHORTEST))))

        def several() -> None:
            for _ in range(calls):
                work()

        times: list[float] = []
        end = time.perf_counter() + SECONDS
        while len(times) < _WARM or time.perf_counter() < end:
            times.append(clock(queue.raw, several) / calls)
        return median(times)

    def _turns(self, results: Results, kernel: int) -> dict[str, Any]:
        """The times of the present schedule and of the best one, measured in turns."""
        best = results.best(kernel, len(self.archive.kernels[kernel].choices))
        machines = [self.machine(kernel, each) for each in (0, best)]
        args = [self._entered(vm) for vm in machines]
        before: list[float] = []
        after: list[float] = []
        for number in range(len(self._args)):
            seen: tuple[list[float], list[float]] = [], []
            for _ in range(_TURNS):
                for vm, own, times in zip(machines, args, seen, strict=True):
                    times.append(self._time(vm, number, own[number]))
            before.append(median(seen[0]))
            after.append(median(seen[1]))
        return {"before": before, "microseconds": after}


def agree(
    found: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    tolerances: Sequence[float] = (),
) -> bool:
    """Whether results agree: floats up to the order of summation, other values exactly. `tolerances` of floats are
    relative; the default is `tolerance` of each."""
    if len(found) != len(expected):
        return False
    allowed = tolerances or [tolerance(each.dtype.itemsize) for each in expected]
    return all(map(_agrees, found, expected, allowed))


def tolerance(nbytes: int) -> float:
    """The relative difference that floats of so many bytes may have."""
    return 2e-2 if nbytes == 2 else 1e-3


def _agrees(found: np.ndarray, expected: np.ndarray, allowed: float) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if expected.dtype.kind in "biu":
        return np.array_equal(found, expected)
    largest = float(np.abs(expected).max(initial=0))
    least = allowed * min(largest, 1.0) if np.isfinite(largest) else allowed
    one, other = found.reshape(-1), expected.reshape(-1)
    return all(
        np.allclose(
            one[start : start + _PIECE].astype(np.float64),
            other[start : start + _PIECE].astype(np.float64),
            rtol=allowed, atol=least, equal_nan=True,
        )
        for start in range(0, one.size, _PIECE)
    )  # fmt: skip


def _queue(vm: VirtualMachine) -> Any:
    """The queue of a machine's only device."""
    return next(iter(vm.queues.values()))


def results_of(value: Any) -> tuple[list[np.ndarray], list[float]]:
    """The results of a call. bfloat16 is given as float32, which needs no package."""
    items: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    arrays: list[np.ndarray] = []
    for item in items:
        if item.dtype == "bfloat16":
            bits = item.view(item.shape, "uint16").numpy().astype(np.uint32)
            arrays.append((bits << np.uint32(16)).view(np.float32))
        else:
            arrays.append(np.array(item.numpy()))
    sizes = [item.nbytes // max(array.size, 1) for item, array in zip(items, arrays, strict=True)]
    return arrays, [tolerance(size) for size in sizes]
