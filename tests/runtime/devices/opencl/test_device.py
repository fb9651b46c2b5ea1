"""OpenCL devices: memory, copies, kernels, and what goes wrong."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime import Device
from relaxpy.runtime.bytecode import Heap, KernelImage, KernelInfo, KernelParam
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.devices.opencl import device as opencl
from relaxpy.runtime.devices.opencl.device import OpenCLRuntime
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.devices.registry import runtime_of
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.devices.opencl.support import needs_opencl

TWICE = """
__kernel void twice(__global float* x, long n, float by, long first) {
  long i = get_global_id(0);
  if (i < n) x[first + i] = x[first + i] * by;
}
"""
ARGS = (
    {"memory": 0},
    {"size": 6, "dtype": "int64"},
    {"scalar": 1, "dtype": "float32"},
    {"first": 0, "itemsize": 4},
)
PARAMS = (KernelParam("float32", (Heap(0),)), KernelParam("float32", None))
LAUNCH = (1, 1, 1, 4, 1, 1, Heap(0))
INFO = KernelInfo("twice", (KernelImage("twice", "twice", launch=LAUNCH),), params=PARAMS)
IMAGE = Image("twice", ARGS, TWICE.encode())
THRICE = TWICE.replace("twice", "thrice").replace("* by", "* by * 3")


def runtime() -> OpenCLRuntime:
    found = runtime_of("opencl", 0)
    assert isinstance(found, OpenCLRuntime)
    return found


def upload(queue: Queue, array: np.ndarray) -> DeviceTensor:
    return queue.upload(from_numpy(array))


@needs_opencl
def test_devices_are_named() -> None:
    assert len(OpenCLRuntime.devices()) >= 1
    assert str(Device.of("opencl")) == "opencl:0"


@needs_opencl
def test_copies() -> None:
    """To a device, there, and back; also between queues."""
    queue, other = runtime().queue(), runtime().queue()
    x = np.arange(5, dtype=np.float32)
    tensor = upload(queue, x)
    np.testing.assert_array_equal(tensor.numpy(), x)
    np.testing.assert_array_equal(tensor.copy().numpy(), x)
    np.testing.assert_array_equal(other.take(tensor).numpy(), x)


@needs_opencl
def test_a_kernel() -> None:
    """It is given memory, where the tensor begins in it, sizes and numbers."""
    queue = runtime().queue()
    tensor = upload(queue, np.arange(8, dtype=np.float32))
    tail = DeviceTensor(tensor.buffer, 12, (5,), "float32", queue)
    (kernel,) = runtime().load([Image("twice", ARGS, TWICE.encode()).encode()], [INFO])
    launch = runtime().launcher(kernel, queue.raw)
    launch((2, 1, 1, 4, 1, 1, 5), (5,), tail, 3.0)
    np.testing.assert_array_equal(tensor.numpy(), [0, 1, 2, 9, 12, 15, 18, 21])


@needs_opencl
def test_an_empty_grid_runs_nothing() -> None:
    queue = runtime().queue()
    tensor = upload(queue, np.ones(1, np.float32))
    (kernel,) = runtime().load([Image("twice", ARGS, TWICE.encode()).encode()], [INFO])
    launch = runtime().launcher(kernel, queue.raw)
    launch((0, 1, 1, 4, 1, 1, 0), (0,), tensor, 3.0)
    np.testing.assert_array_equal(tensor.numpy(), [1])


@needs_opencl
@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"\x7fELF", "is not an OpenCL image"),
        (IMAGE.encode()[:20], "is not an OpenCL image"),
        (IMAGE.encode()[:-40], "does not compile the kernel 'twice'"),
        (replace(IMAGE, code=b"Once upon a time").encode(), "does not compile the kernel 'twice'"),
        (replace(IMAGE, code=b"").encode(), "has no kernel 'twice'"),
        (
            Image("thrice", ARGS, THRICE.encode()).encode(),
            "is the kernel 'thrice', and 'twice' is expected",
        ),
        (replace(IMAGE, code=THRICE.encode()).encode(), "has no kernel 'twice'"),
        (replace(IMAGE, args=ARGS[:3]).encode(), "it has 4, and 3 are described"),
        (replace(IMAGE, args=(*ARGS, *ARGS)).encode(), "it has 4, and 8 are described"),
        (
            replace(IMAGE, args=(*ARGS[:2], {"scalar": 1, "dtype": "float64"}, ARGS[3])).encode(),
            "arguments of the kernel 'twice' are not as described: .*ARG_SIZE",
        ),
        (replace(IMAGE, args=({"memory": 1}, *ARGS[1:])).encode(), "{'memory': 1}, which is no"),
        (replace(IMAGE, args=({"memory": 2}, *ARGS[1:])).encode(), "{'memory': 2}, which is no"),
        (
            replace(IMAGE, args=(ARGS[0], {"size": 7, "dtype": "int64"}, *ARGS[2:])).encode(),
            "takes number 7 of a launch, and 6 to 6 are sizes",
        ),
        (replace(IMAGE, extensions=("cl_no_such",)).encode(), "needs cl_no_such, which"),
    ],
)
def test_images_that_cannot_be_loaded(image: bytes, message: str) -> None:
    with pytest.raises(ExecutableError, match=message) as caught:
        runtime().load([image], [INFO])
    assert caught.value.code == "object-code"


@needs_opencl
def test_a_file_whose_images_are_swapped() -> None:
    """A kernel would run instead of another one."""
    first = replace(IMAGE, kernel="thrice", code=THRICE.encode()).encode()
    image = KernelImage("thrice", "thrice", 1, launch=LAUNCH)
    infos = [INFO, replace(INFO, name="thrice", images=(image,))]
    runtime().load([IMAGE.encode(), first], infos)
    with pytest.raises(ExecutableError, match="'twice' is in another one's image"):
        runtime().load([first, IMAGE.encode()], infos)


@needs_opencl
def test_a_launch_without_a_grid() -> None:
    info = replace(INFO, images=(KernelImage("twice", "twice", launch=(1, 1, 1)),))
    with pytest.raises(ExecutableError, match="launched with 3 numbers, and a grid is 6"):
        runtime().load([IMAGE.encode()], [info])


@needs_opencl
def test_no_memory() -> None:
    with pytest.raises(MemoryError):
        runtime().allocate(1 << 60, runtime().open_queue())


@needs_opencl
def test_no_such_device() -> None:
    """The error says which there are."""
    with pytest.raises(UsageError, match="no device opencl:99") as caught:
        runtime_of("opencl", 99)
    assert "opencl:0 is" in str(caught.value)


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    pytest.importorskip("pyopencl")
    monkeypatch.setattr(opencl, "_devices", tuple)
    with pytest.raises(UsageError, match="no OpenCL device here") as caught:
        OpenCLRuntime(0)
    assert "relaxpy[opencl]" in str(caught.value)


def test_without_pyopencl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without the package; nothing is listed, and nothing raised."""
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    opencl._devices.cache_clear()
    try:
        assert OpenCLRuntime.devices() == ()
        with pytest.raises(UsageError, match="needs pyopencl") as caught:
            OpenCLRuntime(0)
    finally:
        opencl._devices.cache_clear()
    assert "pip install 'relaxpy[opencl]'" in str(caught.value)
