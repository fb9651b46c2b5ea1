"""Streams that wait for each other, and recorded work."""

from __future__ import annotations

import gc
from threading import Thread

import numpy as np
import pytest

from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.devices.cuda.emulation import Emulation, needs_emulation
from tests.runtime.devices.cuda.kernels import runtime, scale_on

pytestmark = needs_emulation
NUMBERS = (1, 1, 1, 64, 1, 1, 4)


def test_a_stream_waits_for_another(driver: Emulation) -> None:
    """Without the wait the copy would be of what was there before: streams run when somebody waits for them."""
    there = runtime()
    first, second = there.queue(), there.queue()
    tensor = first.upload(from_numpy(np.ones(4, np.float32)))
    launch = scale_on(first.raw)  # when it goes, all work is waited for
    launch(NUMBERS, (4,), tensor, 2.0)
    there.wait(second.raw, first.raw)
    copied = second.new((4,), "float32")
    there.copy(second.raw, tensor.buffer.handle, 0, copied.buffer.handle, 0, 16)
    data = memoryview(np.empty(16, np.uint8))
    there.download(second.raw, copied.buffer.handle, 0, data)
    np.testing.assert_array_equal(np.frombuffer(data, np.float32), [2, 2, 2, 2])


def test_the_time_of_work(driver: Emulation) -> None:
    """By the device's clock, on which a group of threads takes 50 µs; without what was there before."""
    there = runtime()
    queue = there.queue()
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    launch = scale_on(queue.raw)
    launch(NUMBERS, (4,), tensor, 2.0)
    twice = there.seconds(queue.raw, lambda: [launch(NUMBERS, (4,), tensor, 2.0) for _ in range(2)])
    assert twice == pytest.approx(100e-6, rel=1e-3)
    assert there.seconds(queue.raw, lambda: None) == 0
    np.testing.assert_array_equal(tensor.numpy(), [8, 8, 8, 8])


def test_the_default_stream_of_a_thread(driver: Emulation) -> None:
    """The same number means another stream in each thread, so all work is waited for."""
    there = runtime()
    queue, theirs = there.queue(), there.queue_of(2)
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    queue.synchronise()
    launch = scale_on(theirs)  # when it goes, all work is waited for
    other = Thread(target=launch, args=(NUMBERS, (4,), tensor, 2.0))
    other.start()
    other.join()
    there.wait(queue.raw, theirs)
    np.testing.assert_array_equal(tensor.numpy(), [2, 2, 2, 2])


def test_streams_are_closed(driver: Emulation) -> None:
    before = driver.streams()
    queue = runtime().queue()
    assert driver.streams() == before + 1
    del queue
    gc.collect()
    assert driver.streams() == before


def test_recorded_work_is_replayed(driver: Emulation) -> None:
    """Nothing runs while it is recorded; replays run in their stream's order."""
    there = runtime()
    queue, side = there.queue(), there.open_queue()
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    launch = scale_on(side)
    there.begin_capture(side)
    launch(NUMBERS, (4,), tensor, 2.0)
    other = queue.new((64,), "float32")  # memory is allocated meanwhile
    launch(NUMBERS, (4,), tensor, 3.0)
    graph = there.end_capture(side)
    del other
    np.testing.assert_array_equal(tensor.numpy(), [1, 1, 1, 1])
    there.replay(queue.raw, graph)
    there.replay(queue.raw, graph)
    scale_on(queue.raw)(NUMBERS, (4,), tensor, 0.5)
    del graph  # which is running
    np.testing.assert_array_equal(tensor.numpy(), [18, 18, 18, 18])


def test_an_empty_recording(driver: Emulation) -> None:
    there = runtime()
    side = there.open_queue()
    there.begin_capture(side)
    there.replay(there.open_queue(), there.end_capture(side))


def test_a_recording_is_spoilt_by_waiting(driver: Emulation) -> None:
    """Then it has ended, and the stream runs again."""
    there = runtime()
    side = there.open_queue()
    there.begin_capture(side)
    with pytest.raises(DeviceError, match="not permitted when stream is capturing"):
        there.synchronise(side)
    with pytest.raises(DeviceError, match="CAPTURE_INVALIDATED"):
        there.end_capture(side)
    there.synchronise(side)


def test_a_refused_launch_leaves_the_recording(driver: Emulation) -> None:
    there = runtime()
    queue, side = there.queue(), there.open_queue()
    tensor = queue.upload(from_numpy(np.ones(4, np.float32)))
    launch = scale_on(side)
    there.begin_capture(side)
    with pytest.raises(DeviceError, match="its grid"):
        launch((1, 65536, 1, 64, 1, 1, 4), (4,), tensor, 2.0)
    there.replay(queue.raw, there.end_capture(side))
    np.testing.assert_array_equal(tensor.numpy(), [1, 1, 1, 1])
