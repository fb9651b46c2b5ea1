"""Launches: how arguments are packed, what the device refuses, threads and contexts, and the time that a launch takes."""

from __future__ import annotations

import ctypes
import math
import struct
import timeit
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy.runtime.bytecode import KernelParam
from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.devices.cuda.driver import bindings
from relaxpy.runtime.devices.cuda.launch import layout, offsets
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.devices.cuda.emulation import Emulation, add_kernel, needs_emulation
from tests.runtime.devices.cuda.kernels import N, info, ptx, runtime, scale_on

TYPES = {"int8": ".s8", "uint16": ".u16", "bool": ".u8", "int32": ".s32", "float16": ".b16", "bfloat16": ".b16",
         "float32": ".f32", "float64": ".f64", "int64": ".u64", "uint64": ".u64"}  # fmt: skip


def test_arguments_lie_as_in_a_structure_of_c() -> None:
    dtypes = ["int8", "memory", "bool", "uint16", "int8", "int32", "float64", "float16", "int64"]
    fields = {"int8": ctypes.c_int8, "memory": ctypes.c_void_p, "bool": ctypes.c_bool, "uint16": ctypes.c_uint16,
              "int32": ctypes.c_int32, "float64": ctypes.c_double, "float16": ctypes.c_uint16, "int64": ctypes.c_int64}  # fmt: skip
    args: list[Any] = [
        {"memory": i} if dtype == "memory" else {"scalar": i, "dtype": dtype}
        for i, dtype in enumerate(dtypes)
    ]
    structure = type(
        "Packed",
        (ctypes.Structure,),
        {"_fields_": [(f"f{i}", fields[d]) for i, d in enumerate(dtypes)]},
    )
    places = [getattr(structure, f"f{i}") for i in range(len(dtypes))]
    assert offsets(args) == [(place.offset, place.size) for place in places]
    assert layout(args).size == places[-1].offset + places[-1].size


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ([{"first": 0, "itemsize": 4}], "is no argument of a CUDA kernel"),
        ([{"scalar": 0, "dtype": "float8_e4m3fn"}], "is no argument of a CUDA kernel"),
        ([{"memory": 1 << 40}], "it takes argument number 1099511627776 of its program"),
        ([{"memory": 0}] * 513, "its arguments have 4104 bytes, and 4096 are the most"),
    ],
)
def test_arguments_that_cannot_be_packed(args: list[Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        layout(args)


@needs_emulation
@pytest.mark.parametrize(
    ("dtype", "value", "want"),
    [
        ("int8", -5, struct.pack("b", -5)),
        ("bool", True, b"\1"),
        ("uint64", 2**64 - 1, b"\xff" * 8),
        ("float64", 0.1, struct.pack("d", 0.1)),
        ("float32", 0.1, np.float32(0.1).tobytes()),
        ("float32", 1e39, np.float32(np.inf).tobytes()),
        ("float32", 3, np.float32(3).tobytes()),
        ("float16", -1e6, np.float16(-np.inf).tobytes()),
        ("float16", 0.1, np.float16(0.1).tobytes()),
        ("bfloat16", 0.1, np.array(0.1, ml_dtypes.bfloat16).tobytes()),
        ("bfloat16", 1.00390625, np.array(1.00390625, ml_dtypes.bfloat16).tobytes()),
        ("bfloat16", 3.4e38, np.array(np.inf, ml_dtypes.bfloat16).tobytes()),
        ("bfloat16", math.inf, np.array(np.inf, ml_dtypes.bfloat16).tobytes()),
    ],
)
def test_scalars_arrive_rounded_to_their_dtype(
    driver: Emulation, dtype: str, value: Any, want: bytes
) -> None:
    code = ptx("see", (".u64 .ptr", TYPES[dtype]))
    add_kernel(code, SEE)
    (got,) = seen(code, dtype, [value], len(want))
    assert got == want


@needs_emulation
def test_a_scalar_that_is_not_a_number(driver: Emulation) -> None:
    code = ptx("see", (".u64 .ptr", ".b16"))
    add_kernel(code, SEE)
    for dtype in ("float16", "bfloat16"):
        (got,) = seen(code, dtype, [math.nan], 2)
        kind: Any = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
        assert np.isnan(np.frombuffer(got, kind).astype("f4")[0])


SEE = """
#include <string.h>
void see__launch(const unsigned grid[3], const unsigned block[3], unsigned shared, const char *params) {
  char *out;
  memcpy(&out, params, 8);
  memcpy(out, params + 8, 8);
}
"""
"""Writes its scalar to its tensor."""


def seen(code: bytes, dtype: str, values: list[Any], size: int) -> list[bytes]:
    """What a kernel gets as its scalar, of `size` bytes."""
    queue = runtime().queue()
    out = queue.upload(from_numpy(np.zeros(8, np.uint8)))
    args: Any = ({"memory": 0}, {"scalar": 1, "dtype": dtype})
    params = (KernelParam("uint8", (8,)), KernelParam(dtype, None))
    image = Image("see", args, code, format="ptx")
    (kernel,) = runtime().load([image.encode()], [info("see", params, (1,) * 6)])
    launch = runtime().launcher(kernel, queue.raw)
    got: list[bytes] = []
    for value in values:
        launch((1,) * 6, (), out, value)
        got.append(out.numpy().tobytes()[:size])
    return got


@needs_emulation
def test_empty_grids_are_skipped(driver: Emulation) -> None:
    """The driver refuses them."""
    queue = runtime().queue()
    tensor = queue.upload(from_numpy(np.ones(2, np.float32)))
    launch = scale_on(queue.raw)
    for place in range(3):
        grid = [int(i != place) for i in range(3)]
        launch((*grid, 64, 1, 1, 2), (2,), tensor, 3.0)
    np.testing.assert_array_equal(tensor.numpy(), [1, 1])


@needs_emulation
@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ((1, 65536, 1, 64, 1, 1, 2), "its grid of 1 × 65536 × 1 blocks is larger than 2147483647 × 65535 × 65535"),
        ((1, 1, 65536, 64, 1, 1, 2), "its grid of 1 × 1 × 65536 blocks is larger"),
        ((1 << 31, 1, 1, 64, 1, 1, 2), "its grid of 2147483648 × 1 × 1 blocks is larger"),
        ((1 << 40, 1, 1, 64, 1, 1, 2), "has one that is beyond the integers"),
        ((-1, 1, 1, 64, 1, 1, 2), "has one that is beyond the integers"),
        ((1, 1, 1, 1025, 1, 1, 2), "its blocks have 1025 threads, and it runs with 1024"),
        ((1, 1, 1, 64, 1, 1, 1 << 63), "has one that is beyond the integers"),
    ],
)  # fmt: skip
def test_launches_that_are_refused(
    driver: Emulation, numbers: tuple[int, ...], problem: str
) -> None:
    """The device goes on after them."""
    queue = runtime().queue()
    tensor = queue.upload(from_numpy(np.ones(2, np.float32)))
    launch = scale_on(queue.raw)
    with pytest.raises(DeviceError, match=problem):
        launch(numbers, (2,), tensor, 3.0)
    launch((1, 1, 1, 64, 1, 1, 2), (2,), tensor, 3.0)
    np.testing.assert_array_equal(tensor.numpy(), [3, 3])


@needs_emulation
def test_sizes_beyond_what_a_kernel_is_right_for(driver: Emulation) -> None:
    queue = runtime().queue()
    args: Any = ({"size": 6, "dtype": "int32", "most": 100},)
    image = Image("small", args, ptx("small", (".u32",)), format="ptx")
    (kernel,) = runtime().load([image.encode()], [info("small", (), (1, 1, 1, 1, 1, 1, N))])
    launch = runtime().launcher(kernel, queue.raw)
    launch((1, 1, 1, 1, 1, 1, -100), (100,))
    for size in (101, -101):
        with pytest.raises(DeviceError, match="beyond the integers"):
            launch((1, 1, 1, 1, 1, 1, size), (size,))
    queue.synchronise()


@needs_emulation
def test_a_kernel_without_arguments(driver: Emulation) -> None:
    queue = runtime().queue()
    image = Image("nothing", (), ptx("nothing", ()), format="ptx")
    (kernel,) = runtime().load([image.encode()], [info("nothing", (), (1,) * 6)])
    runtime().launcher(kernel, queue.raw)((1,) * 6, ())
    queue.synchronise()


@needs_emulation
def test_threads_share_a_launcher(driver: Emulation) -> None:
    """Each packs its own arguments, in a thread where no context is current yet."""
    queue = runtime().queue()
    launch = scale_on(queue.raw)
    made = [queue.upload(from_numpy(np.ones(n, np.float32))) for n in range(1, 9)]

    def work(number: int) -> None:
        tensor = made[number]
        for _ in range(300):
            launch((1, 1, 1, 64, 1, 1, number + 1), (number + 1,), tensor, -1.0)
        launch((1, 1, 1, 64, 1, 1, number + 1), (number + 1,), tensor, float(number))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result()
    for number, tensor in enumerate(made):
        np.testing.assert_array_equal(tensor.numpy(), np.full(number + 1, number, np.float32))


@needs_emulation
def test_another_context_is_current(driver: Emulation) -> None:
    """That of another device, as torch has it. It is restored."""
    driver.configure(devices=2)
    queues = [runtime(index).queue() for index in range(2)]
    launches = [scale_on(queue.raw, index) for index, queue in enumerate(queues)]
    cu = bindings()
    _, theirs = cu.cuDevicePrimaryCtxRetain(cu.cuDeviceGet(1)[1])
    cu.cuCtxSetCurrent(theirs)
    tensors = [queue.upload(from_numpy(np.ones(3, np.float32))) for queue in queues]
    for launch, tensor in zip(launches, tensors, strict=True):
        launch((1, 1, 1, 64, 1, 1, 3), (3,), tensor, 5.0)
        assert int(cu.cuCtxGetCurrent()[1]) == int(theirs)
    for tensor in tensors:
        np.testing.assert_array_equal(tensor.numpy(), [5, 5, 5])


MICROSECONDS = 15
"""What a launch may take on a busy machine. It takes 1.4 on an idle one."""


@needs_emulation
def test_the_time_of_a_launch(driver: Emulation) -> None:
    """Of the host, without that of the driver: 3 arguments."""
    queue = runtime().queue()
    tensor = queue.upload(from_numpy(np.ones(10, np.float32)))
    launch = scale_on(queue.raw)
    numbers = (1, 1, 1, 64, 1, 1, 10)
    driver.skip_launches(True)
    seconds = timeit.repeat(lambda: launch(numbers, (10,), tensor, 3.0), number=2000, repeat=5)
    assert min(seconds) / 2000 < MICROSECONDS * 1e-6
