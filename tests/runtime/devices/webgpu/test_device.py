"""Devices of wgpu: memory, copies, recorded launches, limits, and what goes wrong."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime.bytecode import Heap, KernelImage, KernelInfo, KernelParam
from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.devices.registry import runtime_of
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.devices.vulkan.device import VulkanRuntime
from relaxpy.runtime.devices.webgpu import device as webgpu
from relaxpy.runtime.devices.webgpu.queue import Pipeline
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.devices.webgpu.support import needs_vulkan

TIMES = """
struct Numbers { zero: u32, groups: u32, n: u32, n_high: u32, by: f32, first: u32, first_high: u32, pad: u32 }
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<uniform> numbers: Numbers;
@compute @workgroup_size(4) fn times(@builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) grid: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
  let i = (group.x + group.z * grid.x) * 4u + thread.x;
  if (i < numbers.n) { x[numbers.first + i] = x[numbers.first + i] * numbers.by; }
}
"""
ARGS = (
    {"memory": 0, "access": "read-write"},
    {"size": 6, "dtype": "int64", "most": (1 << 31) - 1},
    {"scalar": 1, "dtype": "float32"},
    {"first": 0, "itemsize": 4},
)
PARAMS = (KernelParam("float32", (Heap(0),)), KernelParam("float32", None))
LAUNCH = (1, 1, 1, 4, 1, 1, Heap(0))
INFO = KernelInfo("times", (KernelImage("times", "times", launch=LAUNCH),), params=PARAMS)
IMAGE = Image("times", ARGS, TIMES.encode())


def runtime() -> VulkanRuntime:
    found = runtime_of("vulkan", 0)
    assert isinstance(found, VulkanRuntime)
    return found


def loaded(image: Image = IMAGE) -> Pipeline:
    (kernel,) = runtime().load([image.encode()], [INFO])
    return kernel


def launcher(queue: Queue) -> Callable[..., object]:
    return runtime().launcher(loaded(), queue.raw)


def upload(queue: Queue, array: np.ndarray) -> DeviceTensor:
    return queue.upload(from_numpy(array))


def grid(n: int, groups: int | None = None) -> tuple[int, ...]:
    return (-(-n // 4) if groups is None else groups, 1, 1, 4, 1, 1, n)


@needs_vulkan
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 1001])
def test_copies(count: int) -> None:
    """To a device, there, and back, of any number of bytes; also between queues."""
    queue, other = runtime().queue(), runtime().queue()
    x = np.arange(count, dtype=np.uint8)
    tensor = upload(queue, x)
    np.testing.assert_array_equal(tensor.numpy(), x)
    np.testing.assert_array_equal(tensor.copy().numpy(), x)
    np.testing.assert_array_equal(other.take(tensor).numpy(), x)


@needs_vulkan
def test_a_kernel() -> None:
    """It is given memory, where the tensor begins in it, sizes and numbers."""
    queue = runtime().queue()
    tensor = upload(queue, np.arange(8, dtype=np.float32))
    tail = DeviceTensor(tensor.buffer, 12, (5,), "float32", queue)
    launcher(queue)(grid(5), (5,), tail, 3.0)
    np.testing.assert_array_equal(tensor.numpy(), [0, 1, 2, 9, 12, 15, 18, 21])


@needs_vulkan
def test_launches_see_what_was_written_before_them() -> None:
    """Recorded launches are submitted before anything is written: a write would come before all of them."""
    queue = runtime().queue()
    x = upload(queue, np.full(4, 1, np.float32))
    twice = launcher(queue)
    twice(grid(4), (4,), x, 2.0)
    runtime().upload(
        queue.raw, x.buffer.handle, 0, memoryview(np.full(4, 10, np.float32)).cast("B")
    )
    twice(grid(4), (4,), x, 2.0)
    np.testing.assert_array_equal(x.numpy(), np.full(4, 20))


@needs_vulkan
def test_many_launches() -> None:
    """More than are recorded at once, each with its own numbers."""
    queue = runtime().queue()
    x = upload(queue, np.ones(4, np.float32))
    times = launcher(queue)
    for _ in range(150):
        times(grid(4), (4,), x, 2.0)
        times(grid(4), (4,), x, 0.5)
    times(grid(3), (3,), x, 7.0)
    np.testing.assert_array_equal(x.numpy(), [7, 7, 7, 1])


@needs_vulkan
def test_an_empty_grid_runs_nothing() -> None:
    queue = runtime().queue()
    x = upload(queue, np.ones(1, np.float32))
    launcher(queue)(grid(0), (0,), x, 3.0)
    np.testing.assert_array_equal(x.numpy(), [1])


@needs_vulkan
def test_bind_groups_go_with_their_memory() -> None:
    """Those of memory that is gone are dropped, from the memory that is still there too."""
    queue = runtime().queue()
    kernel, known = loaded(), {}
    kept, other = runtime().allocate(16, queue.raw), runtime().allocate(16, queue.raw)
    numbers = (0, 1, 4, 1.0, 0)
    queue.raw.launch(kernel, known, ((kept, 0, 16),), numbers, (1, 1, 1))
    queue.raw.launch(kernel, known, ((other, 0, 16),), numbers, (1, 1, 1))
    assert len(known) == 2
    runtime().free(other, queue.raw)
    assert [part[0] for (part,) in known] == [kept]
    assert not other.groups
    assert len(kept.groups) == 1
    queue.synchronise()


@needs_vulkan
def test_memory_is_given_back() -> None:
    """Bind groups hold no memory that nobody uses."""
    queue = runtime().queue()
    times, handles = launcher(queue), []
    for _ in range(3):
        x = upload(queue, np.ones(4, np.float32))
        times(grid(4), (4,), x, 2.0)
        assert x.numpy()[0] == 2
        handles.append(weakref.ref(x.buffer.handle.buffer))
    del x
    queue.pool.release()
    gc.collect()
    assert [handle() for handle in handles] == [None] * 3


@needs_vulkan
@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"\x7fELF", "is not a WGSL image"),
        (IMAGE.encode()[:20], "is not a WGSL image"),
        (IMAGE.encode()[:-40], "does not compile the kernel 'times'"),
        (replace(IMAGE, code=b"Once upon a time").encode(), "does not compile the kernel 'times'"),
        (replace(IMAGE, code=b"").encode(), "does not compile the kernel 'times'"),
        (
            replace(IMAGE, kernel="thrice").encode(),
            "is the kernel 'thrice', and 'times' is expected",
        ),
        (
            replace(IMAGE, args=({"memory": 0, "access": "read"}, *ARGS[1:])).encode(),
            "does not compile the kernel 'times'",
        ),
        (replace(IMAGE, args=({"memory": 1}, *ARGS[1:])).encode(), "{'memory': 1}, which is no"),
    ],
)
def test_images_that_cannot_be_loaded(image: bytes, message: str) -> None:
    with pytest.raises(ExecutableError, match=message) as caught:
        runtime().load([image], [INFO])
    assert caught.value.code == "object-code"


@needs_vulkan
def test_a_limit_that_the_device_has_not() -> None:
    """The error names it, with both values; nothing is compiled."""
    image = replace(IMAGE, limits={"max-storage-buffers-per-shader-stage": 1 << 20})
    with pytest.raises(ExecutableError) as caught:
        runtime().load([image.encode()], [INFO])
    assert caught.value.code == "device-features"
    assert "'times' needs max-storage-buffers-per-shader-stage of 1048576; vulkan:0 has" in str(
        caught.value
    )


@needs_vulkan
def test_grids() -> None:
    """Too many groups along x continue along z; what cannot is refused."""
    queue = runtime().queue()
    x = upload(queue, np.ones(4, np.float32))
    times = launcher(queue)
    times(grid(4, 100_000), (4,), x, 3.0)
    np.testing.assert_array_equal(x.numpy(), np.full(4, 3))
    with pytest.raises(DeviceError, match="1 × 70000 × 1 groups is too large: 65535 along an axis"):
        times((1, 70_000, 1, 4, 1, 1, 4), (4,), x, 3.0)
    with pytest.raises(DeviceError, match="beyond the 32 bits of WGSL's integers"):
        times(grid(4, 1 << 30), (4,), x, 3.0)
    with pytest.raises(DeviceError, match="a size of 2147483648 is beyond the 32 bits"):
        times((1, 1, 1, 4, 1, 1, 1 << 31), (4,), x, 3.0)
    np.testing.assert_array_equal(x.numpy(), np.full(4, 3))


@needs_vulkan
def test_tensors_that_a_kernel_cannot_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large buffer a kernel gets the part that the tensor is in; a tensor that is too large is refused."""
    queue, device = runtime().queue(), runtime()
    monkeypatch.setattr(device, "_window", 512)
    x = upload(queue, np.ones(1000, np.float32))
    part = DeviceTensor(x.buffer, 2004, (9,), "float32", queue)
    times = launcher(queue)
    times(grid(9), (9,), part, 3.0)
    times(grid(5), (5,), DeviceTensor(x.buffer, 2004, (5,), "float32", queue), 2.0)
    found = x.numpy()
    np.testing.assert_array_equal(found[501:510], [6] * 5 + [3] * 4)
    assert found.sum() == 1000 + 5 * 5 + 4 * 2
    with pytest.raises(DeviceError, match="has 4000 bytes, and a kernel on vulkan:0 may get 512"):
        times(grid(9), (9,), x, 3.0)


@needs_vulkan
def test_no_memory() -> None:
    with pytest.raises(MemoryError):
        runtime().allocate(1 << 60, runtime().open_queue())


@needs_vulkan
def test_threads() -> None:
    """Each with a queue, or all with one."""
    shared = runtime().queue()

    def work(queue: Queue) -> Any:
        times = runtime().launcher(kernel, queue.raw)
        x = upload(queue, np.ones(64, np.float32))
        for _ in range(40):
            times(grid(64), (64,), x, 2.0)
            times(grid(64), (64,), x, 0.5)
        return x.numpy()

    kernel = loaded()
    queues = [shared, shared, runtime().queue(), runtime().queue()]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, queues):
            np.testing.assert_array_equal(found, np.ones(64))


@needs_vulkan
def test_no_such_device() -> None:
    """The error says which there are."""
    with pytest.raises(UsageError, match="no device vulkan:99") as caught:
        runtime_of("vulkan", 99)
    assert "vulkan:0 is" in str(caught.value)


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    pytest.importorskip("wgpu")
    monkeypatch.setattr(webgpu, "_adapters", lambda _: ())
    with pytest.raises(UsageError, match="no vulkan device here") as caught:
        VulkanRuntime(0)
    assert "mesa-vulkan-drivers" in str(caught.value)


def test_without_wgpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without the package; nothing is listed, and nothing raised."""
    monkeypatch.setitem(sys.modules, "wgpu", None)
    webgpu._adapters.cache_clear()
    try:
        assert VulkanRuntime.devices() == ()
        with pytest.raises(UsageError, match="need wgpu") as caught:
            VulkanRuntime(0)
    finally:
        webgpu._adapters.cache_clear()
    assert "pip install 'relaxpy[wgpu]'" in str(caught.value)
