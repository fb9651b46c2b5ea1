"""Launches that are checked before they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.bytecode import Heap, KernelImage, KernelInfo, KernelParam
from relaxpy.runtime.devices.checked import checked
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.tensor import from_numpy
from tests.runtime import toy_device
from tests.runtime.toy_device import ToyRuntime


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with toy_device.toys(monkeypatch):
        yield


SHAPE = (Heap(0),)
PARAMS = (
    KernelParam("float32", SHAPE),
    KernelParam("float32", SHAPE, access="write"),
    KernelParam("float32", None),
)
INFO = KernelInfo("twice", (KernelImage("twice", "twice"),), params=PARAMS)
GRID = (1, 1, 1, 4, 1, 1)


def launch(queue: Queue, *args: Any, numbers: tuple[int, ...] = GRID) -> list[Any]:
    """What reaches the device's own launcher."""
    reached: list[Any] = []
    checked(lambda *given: reached.append(given), INFO, queue)(numbers, (4,), *args)
    return reached


def tensors(queue: Queue) -> tuple[DeviceTensor, DeviceTensor]:
    return queue.upload(from_numpy(np.ones(128, np.float32))), queue.new((128,), "float32")


def test_a_launch_that_is_right() -> None:
    """Scalars pass, and one tensor that is read twice."""
    queue = ToyRuntime(0).queue()
    x, y = tensors(queue)
    assert launch(queue, x, y, 2.0) == [(GRID, (4,), x, y, 2.0)]


@pytest.mark.parametrize("case", ["end", "start", "alignment", "same", "overlap", "grid", "device"])
def test_launches_that_are_wrong(case: str) -> None:
    queue = ToyRuntime(0).queue()
    x, y = tensors(queue)
    numbers = GRID
    room = x.buffer.nbytes
    match case:
        case "end":
            x, message = (
                DeviceTensor(x.buffer, room - 8, (4,), "float32"),
                f"argument 0 is bytes {room - 8} to {room + 8} of",
            )
        case "start":
            y, message = (
                DeviceTensor(y.buffer, -4, (1,), "float32"),
                "argument 1 is bytes -4 to 0 of",
            )
        case "alignment":
            x, message = (
                DeviceTensor(x.buffer, 2, (1,), "float32"),
                "argument 0 begins at byte 2, which is no multiple of 256",
            )
        case "same":
            y, message = x, "it writes to argument 1, and argument 0 is the same memory"
        case "overlap":
            y = DeviceTensor(x.buffer, 256, (2,), "float32")
            message = "it writes to argument 1, and argument 0 is the same memory"
        case "grid":
            numbers, message = (1, -1, 1, 4, 1, 1), "its grid is 1 × -1 × 1"
        case _:
            x, message = (
                tensors(ToyRuntime(1).queue())[0],
                "argument 0 is on toy:1, and it runs on toy:0",
            )
    with pytest.raises(RuntimeCheckError) as caught:
        launch(queue, x, y, 2.0, numbers=numbers)
    assert caught.value.code == "launch-arguments"
    assert caught.value.message.startswith("the launch of twice: ")
    assert message in caught.value.message
