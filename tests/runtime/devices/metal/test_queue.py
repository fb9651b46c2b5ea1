"""Queues of Metal: command buffers, encoders, events, and failures, on the emulation of its interface."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.devices.metal.device import MetalRuntime
from relaxpy.runtime.devices.metal.queue import WorkQueue, reason
from tests.device_emulation.fake_metal import Device, Failure, ObjCError, emulated
from tests.device_emulation.runner import needs_compiler

pytestmark = needs_compiler


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Device]]:
    with emulated(monkeypatch) as found:
        yield found


@pytest.fixture
def runtime(devices: list[Device]) -> MetalRuntime:
    del devices
    return MetalRuntime(0)


def test_nothing_to_wait_for(runtime: MetalRuntime) -> None:
    runtime.synchronise(runtime.open_queue())


def test_a_queue_that_goes_with_work(runtime: MetalRuntime, devices: list[Device]) -> None:
    """Metal ends the process when an encoder goes that has not ended."""
    queue = runtime.open_queue()
    buffers = [runtime.allocate(8, queue) for _ in range(2)]
    queue.copy(buffers[0], 0, buffers[1], 0, 8)
    del queue
    gc.collect()
    assert not devices[0].leaks


def test_command_buffers_that_ended_are_forgotten(runtime: MetalRuntime) -> None:
    queue = runtime.open_queue()
    for _ in range(5):
        queue.signal()
        queue.finish()
    assert not queue._committed


def test_a_failure_is_told_once(runtime: MetalRuntime, devices: list[Device]) -> None:
    """The first of several; work after it goes on."""
    queue = runtime.open_queue()
    devices[0].faults += ["it took too long", "another"]
    for _ in range(3):
        queue.signal()
    with pytest.raises(DeviceError, match=r"^it took too long$"):
        runtime.synchronise(queue)
    runtime.synchronise(queue)


def test_a_failed_queue_lets_others_go_on(runtime: MetalRuntime, devices: list[Device]) -> None:
    first, second = runtime.open_queue(), runtime.open_queue()
    buffers = [runtime.allocate(4, first) for _ in range(2)]
    devices[0].faults.append("broken")
    first.copy(buffers[0], 0, buffers[1], 0, 4)
    runtime.wait(second, first)
    runtime.synchronise(second)
    with pytest.raises(DeviceError, match="broken"):
        runtime.synchronise(first)


def test_queues_that_wait_for_each_other(runtime: MetalRuntime) -> None:
    """And for themselves, which is nothing."""
    first, second = runtime.open_queue(), runtime.open_queue()
    for _ in range(10):
        runtime.wait(first, second)
        runtime.wait(second, first)
        runtime.wait(first, first)
    runtime.synchronise(first)
    runtime.synchronise(second)


def test_metal_without_queues(
    runtime: MetalRuntime, devices: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices[0], "newCommandQueue", lambda: None)
    with pytest.raises(DeviceError, match="no more queues"):
        runtime.open_queue()


def test_exceptions_of_objective_c(runtime: MetalRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    queue: WorkQueue = runtime.open_queue()

    def fail() -> None:
        raise ObjCError("NSRangeException")

    monkeypatch.setattr(queue._raw, "commandBuffer", fail)
    with pytest.raises(DeviceError, match="Metal: NSRangeException"):
        queue.signal()


def test_reasons() -> None:
    """The line that says most."""
    assert reason(None) == "Metal gave no reason"
    text = "Compilation failed:\n\nprogram_source:3:1: error: unknown type\n  x\n  ^"
    assert reason(Failure(text)) == "program_source:3:1: error: unknown type"
