"""Devices of Metal, on the emulation of its interface: what is there, memory, kernels, launches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime.bytecode import KernelImage, KernelInfo
from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.devices.metal import device as metal
from relaxpy.runtime.devices.metal.device import MetalRuntime
from relaxpy.runtime.devices.registry import runtime_of
from tests.device_emulation.fake_metal import Device, emulated
from tests.device_emulation.runner import needs_compiler

pytestmark = needs_compiler

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct add_args_t { long n; float by[2]; long y_first; long x_first; };
kernel void add(  device float* y [[ buffer(0) ]],
  device float* x [[ buffer(1) ]],
  constant add_args_t& arg [[ buffer(2) ]],
  uint blockIdx [[threadgroup_position_in_grid]],
  uint threadIdx [[thread_position_in_threadgroup]]
) {
  long i = (long)blockIdx * 64 + (long)threadIdx;
  if (i < arg.n) y[arg.y_first + i] = x[arg.x_first + i] + arg.by[0];
}
"""
IMAGE = Image(
    "add",
    (
        {"memory": 1}, {"memory": 0}, {"size": 6, "dtype": "int64"}, {"scalar": 2, "dtype": "float32"},
        {"first": 1, "itemsize": 4}, {"first": 0, "itemsize": 4},
    ),
    SOURCE.encode(),
)  # fmt: skip


def info(object: int = 0, name: str = "add", threads: Any = 64) -> KernelInfo:
    image = KernelImage("add", "add", object, launch=(1, 1, 1, threads, 1, 1, 1))
    return KernelInfo(name, (image,))


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Device]]:
    with emulated(monkeypatch) as found:
        yield found


@pytest.fixture
def runtime(devices: list[Device]) -> MetalRuntime:
    del devices
    return MetalRuntime(0)


def upload(runtime: MetalRuntime, queue: Any, data: np.ndarray) -> Any:
    """A buffer with these numbers."""
    buffer = runtime.allocate(max(data.nbytes, 1), queue)
    runtime.upload(queue, buffer, 0, memoryview(data))  # type: ignore[arg-type]
    return buffer


def download(
    runtime: MetalRuntime, queue: Any, buffer: Any, count: int, offset: int = 0
) -> np.ndarray:
    found = np.empty(count, np.float32)
    runtime.download(queue, buffer, offset, memoryview(found))  # type: ignore[arg-type]
    runtime.synchronise(queue)
    return found


def tensor(buffer: Any, offset: int = 0) -> Any:
    """What a launch gets: a tensor at an offset in its buffer."""
    return SimpleNamespace(buffer=SimpleNamespace(handle=buffer), offset=offset)


def test_devices(devices: list[Device]) -> None:
    """The one that macOS prefers is the first."""
    assert MetalRuntime.devices() == ["Emulated M0 (experimental)", "Emulated M1 (experimental)"]
    assert "experimental" in str(runtime_of("metal", 1).facts()["state"])
    assert len(devices) == 2


def test_another_number(devices: list[Device]) -> None:
    del devices
    with pytest.raises(UsageError, match="no device metal:2") as caught:
        MetalRuntime(2)
    assert "metal:1 is Emulated M1" in str(caught.value.help)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated(monkeypatch, 0):
        assert not MetalRuntime.devices()
        with pytest.raises(UsageError, match="macOS has no GPU for Metal here"):
            MetalRuntime(0)


@pytest.mark.parametrize(
    ("platform", "message", "help"),
    [
        ("linux", "Metal is in macOS only, and this is linux", "vulkan"),
        ("darwin", "Metal needs PyObjC", "pip install 'relaxpy[metal]'"),
    ],
)
def test_without_pyobjc(
    platform: str, message: str, help: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "Metal", None)
    monkeypatch.setattr(metal.sys, "platform", platform)
    metal._frameworks.cache_clear()
    metal._devices.cache_clear()
    assert MetalRuntime.devices() == ()
    with pytest.raises(UsageError, match=message) as caught:
        MetalRuntime(0)
    assert help in str(caught.value.help)


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 1023])
def test_bytes_that_are_no_whole_words(nbytes: int, runtime: MetalRuntime) -> None:
    """macOS copies whole words; the others' bytes stay."""
    queue = runtime.open_queue()
    data = np.arange(nbytes, dtype=np.uint8)
    first, second = upload(runtime, queue, data), runtime.allocate(nbytes, queue)
    runtime.copy(queue, first, 0, second, 0, nbytes)
    found = np.empty(nbytes, np.uint8)
    runtime.download(queue, second, 0, memoryview(found))  # type: ignore[arg-type]
    runtime.synchronise(queue)
    np.testing.assert_array_equal(found, data)


def test_uploads_come_in_order(runtime: MetalRuntime) -> None:
    """A copy that was enqueued before sees what was there, and the host may change its data at once."""
    queue = runtime.open_queue()
    data = np.zeros(4, np.float32)
    buffer, copied = upload(runtime, queue, data), runtime.allocate(16, queue)
    runtime.copy(queue, buffer, 0, copied, 0, 16)
    data[:] = 1
    runtime.upload(queue, buffer, 0, memoryview(data))  # type: ignore[arg-type]
    data[:] = 2
    assert download(runtime, queue, copied, 4).tolist() == [0] * 4
    assert download(runtime, queue, buffer, 3, 4).tolist() == [1] * 3


def test_too_much_memory(
    runtime: MetalRuntime, devices: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MemoryError):
        runtime.allocate((1 << 28) + 1, runtime.open_queue())
    monkeypatch.setattr(devices[0], "newBufferWithLength_options_", lambda length, options: None)
    with pytest.raises(MemoryError):
        runtime.allocate(4, runtime.open_queue())


def test_a_launch(runtime: MetalRuntime) -> None:
    """Numbers in their places, first elements, no groups at all."""
    (kernel,) = runtime.load([IMAGE.encode()], [info()])
    queue = runtime.open_queue()
    x = upload(runtime, queue, np.arange(100, dtype=np.float32))
    y = upload(runtime, queue, np.zeros(100, np.float32))
    launch = runtime.launcher(kernel, queue)
    launch((2, 1, 1, 64, 1, 1, 90), (), tensor(x, 40), tensor(y, 8), 0.5)
    launch((0, 1, 1, 64, 1, 1, 90), (), tensor(x), tensor(y), 7.0)
    found = download(runtime, queue, y, 100)
    assert found.tolist() == [0, 0, *(i + 10.5 for i in range(90)), *[0] * 8]


def test_more_launches_than_a_command_buffer_has(runtime: MetalRuntime) -> None:
    (kernel,) = runtime.load([IMAGE.encode()], [info()])
    queue = runtime.open_queue()
    x = upload(runtime, queue, np.zeros(64, np.float32))
    launch = runtime.launcher(kernel, queue)
    for _ in range(200):
        launch((1, 1, 1, 64, 1, 1, 64), (), tensor(x), tensor(x), 1.0)
    assert download(runtime, queue, x, 64).tolist() == [200] * 64


def test_threads_on_one_queue(runtime: MetalRuntime) -> None:
    """An encoder is used by one thread at a time."""
    (kernel,) = runtime.load([IMAGE.encode()], [info()])
    queue = runtime.open_queue()
    launch = runtime.launcher(kernel, queue)

    def work(by: float) -> None:
        x = upload(runtime, queue, np.zeros(64, np.float32))
        for turn in range(1, 60):
            launch((1, 1, 1, 64, 1, 1, 64), (), tensor(x), tensor(x), by)
            if turn % 7 == 0:
                assert download(runtime, queue, x, 64).tolist() == [turn * by] * 64

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, by) for by in (1.0, 2.0, 3.0, 4.0)]:
            done.result()


def test_queues_in_order(runtime: MetalRuntime) -> None:
    """What one makes, another one reads behind it."""
    (kernel,) = runtime.load([IMAGE.encode()], [info()])
    queues = [runtime.open_queue() for _ in range(2)]
    launches = [runtime.launcher(kernel, queue) for queue in queues]
    x = upload(runtime, queues[0], np.zeros(64, np.float32))
    for turn in range(50):
        launches[turn % 2]((1, 1, 1, 64, 1, 1, 64), (), tensor(x), tensor(x), 1.0)
        runtime.wait(queues[1 - turn % 2], queues[turn % 2])
    assert download(runtime, queues[0], x, 64).tolist() == [50] * 64


@pytest.mark.parametrize(
    ("numbers", "by"),
    [((1 << 32, 1, 1, 64, 1, 1, 1), 0.0), ((1, 1, 1, 64, 1, 1, 1 << 63), 0.0), ((1, 1, 1, 64, 1, 1, 1), 1e300)],
)  # fmt: skip
def test_numbers_that_do_not_fit(
    numbers: tuple[int, ...], by: float, runtime: MetalRuntime
) -> None:
    (kernel,) = runtime.load([IMAGE.encode()], [info()])
    queue = runtime.open_queue()
    x = upload(runtime, queue, np.zeros(64, np.float32))
    with pytest.raises(DeviceError, match=r"too large|does not fit"):
        runtime.launcher(kernel, queue)(numbers, (), tensor(x), tensor(x), by)
    assert download(runtime, queue, x, 64).tolist() == [0] * 64


def refused(runtime: MetalRuntime, *images: Image, threads: Any = 64) -> ExecutableError:
    kernels = [info(i, f"kernel {i}", threads) for i in range(len(images))]
    with pytest.raises(ExecutableError) as caught:
        runtime.load([image.encode() for image in images], kernels)
    return caught.value


def test_sources_that_do_not_compile(runtime: MetalRuntime) -> None:
    """The error names the kernel, also among others."""
    wrong = replace(IMAGE, code=SOURCE.replace("float", "flaot").replace("add", "sub").encode())
    error = refused(runtime, IMAGE, replace(wrong, kernel="add"))
    assert error.code == "object-code"
    assert "metal:0 (Emulated M0) does not compile the kernel 'kernel 1'" in error.message
    assert "flaot" in error.message


def test_a_kernel_that_is_not_there(runtime: MetalRuntime) -> None:
    image = replace(IMAGE, code=SOURCE.replace("add", "sub").encode())
    assert "an image has no kernel 'add'" in refused(runtime, image).message


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((*IMAGE.args, {"scalar": 2, "dtype": "float64"}), "a number of float64"),
        (tuple({"memory": i} for i in range(31)), "31 buffers, and Metal's kernels take 30"),
        (({"size": 6, "dtype": "int64"},) * 513, "4104 bytes of numbers"),
    ],
)
def test_images_that_metal_has_no_place_for(args: Any, message: str, runtime: MetalRuntime) -> None:
    """A launch of them would end the process."""
    error = refused(runtime, replace(IMAGE, args=args))
    assert message in error.message


def test_groups_that_are_too_large(runtime: MetalRuntime, devices: list[Device]) -> None:
    """Metal tells it of each kernel, by the registers that it needs."""
    devices[0].threads = 32
    error = refused(runtime, IMAGE)
    assert error.code == "device-features"
    assert "groups of 64 threads; metal:0 (Emulated M0) runs 32" in error.message


def test_no_kernels(runtime: MetalRuntime) -> None:
    assert list(runtime.load([], [])) == []
