"""Images that are loaded, and those that are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import ExecutableError
from relaxpy.runtime.bytecode import KernelParam
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.devices.cuda.emulation import Emulation, add_kernel, needs_emulation
from tests.runtime.devices.cuda.kernels import ARGS, SCALE, N, info, ptx, runtime

pytestmark = needs_emulation


def test_a_code_with_two_kernels_is_loaded_once(driver: Emulation) -> None:
    code = SCALE.code + ptx("other", (".u64 .ptr",))
    other: Any = ({"memory": 0},)
    images = [replace(SCALE, code=code), Image("other", other, code, format="ptx")]
    second = info("other", info().params[:1] if info().params else ())
    second = replace(second, images=(replace(second.image, object=1),))
    first, last = runtime().load([image.encode() for image in images], [info(), second])
    assert first.module is last.module


def test_shared_memory_beyond_48_kib_is_asked_for(driver: Emulation) -> None:
    image = replace(SCALE, limits={"dynamic-shared": 100 << 10, "shared": 1024, "threads": 64})
    queue = runtime().queue()
    (kernel,) = runtime().load([image.encode()], [info()])
    tensor = queue.new((2,), "float32")
    runtime().launcher(kernel, queue.raw)((1, 1, 1, 64, 1, 1, 2), (2,), tensor, 1.0)
    queue.synchronise()


@pytest.mark.parametrize(
    ("image", "code", "message"),
    [
        (b"", "object-code", "is not a CUDA image"),
        (replace(SCALE, format="text").encode(), "object-code", "is text, and CUDA loads cubin and PTX"),
        (replace(SCALE, code=b"hello").encode(), "object-code", "does not load the ptx of the kernel 'scale': a PTX JIT compilation failed"),
        (replace(SCALE, code=ptx("scales", (".u64",))).encode(), "object-code", "an image has no kernel 'scale': named symbol not found"),
        (replace(SCALE, args=ARGS[:2]).encode(), "object-code", "number 2 is 8 bytes at byte 16 of the code, and none is described"),
        (replace(SCALE, args=(*ARGS, ARGS[0])).encode(), "object-code", "number 3 is none of the code, and 8 bytes at byte 24 is described"),
        (replace(SCALE, args=(ARGS[0], ARGS[2], ARGS[1])).encode(), "object-code", "number 1 is 4 bytes at byte 8 of the code, and 8 bytes at byte 8 is"),
        (replace(SCALE, args=({"first": 0, "itemsize": 4},)).encode(), "object-code", "is no argument of a CUDA kernel"),
        (replace(SCALE, limits={"threads": 2048}).encode(), "device-features", "needs 2048 threads of a block; cuda:0 .Emulated GPU 0. has 1024"),
        (replace(SCALE, limits={"shared": 48 << 10, "dynamic-shared": 150 << 10}).encode(), "device-features", "needs 202752 bytes of shared memory; .* has 166912"),
        (replace(SCALE, code=ptx("scale", (".u64 .ptr", ".f32", ".u64"), 128), limits={"threads": 256}).encode(), "device-features", "is launched with 256 threads of a block, and its registers are enough for 128"),
    ],
)  # fmt: skip
def test_images_that_cannot_be_loaded(
    driver: Emulation, image: bytes, code: str, message: str
) -> None:
    with pytest.raises(ExecutableError, match=message) as caught:
        runtime().load([image], [info()])
    assert caught.value.code == code


def test_what_the_compiler_of_the_driver_says(driver: Emulation) -> None:
    with pytest.raises(ExecutableError) as caught:
        runtime().load([replace(SCALE, code=b"hello").encode()], [info()])
    assert caught.value.notes[0] == "the driver is for CUDA 13.0"
    assert "there is no kernel" in caught.value.notes[1]


def test_ptx_of_a_newer_compiler(driver: Emulation) -> None:
    """Seen on an H200: a driver for CUDA 13.0 takes PTX up to 9.0."""
    known, newer = (
        replace(SCALE, code=SCALE.code.replace(b".version 8.0", version)).encode()
        for version in (b".version 9.0", b".version 9.1")
    )
    runtime().load([known], [info()])
    with pytest.raises(ExecutableError, match="CUDA_ERROR_UNSUPPORTED_PTX_VERSION") as caught:
        runtime().load([newer], [info()])
    assert any("Unsupported .version" in note for note in caught.value.notes)


def test_an_older_driver_tells_no_parameters(driver: Emulation) -> None:
    driver.configure(version=12000)
    runtime().load([replace(SCALE, args=ARGS[:2]).encode()], [info()])


SOURCE = b"""
extern "C" __global__ void __launch_bounds__(128) many(float *x, bool b, short s, float by, char c, double d,
                                                       unsigned char u, long long n, int m) {
  __shared__ float t[256];
  extern __shared__ float more[];
  t[threadIdx.x] = by;
  __syncthreads();
  more[threadIdx.x] = t[threadIdx.x ^ 1];
  __syncthreads();
  long long i = blockIdx.x * 128LL + threadIdx.x;
  if (i < n && b) x[i] *= more[threadIdx.x] + s + c + d + u + m;
}
"""
ON_THE_HOST = """
#include <string.h>
void many__launch(const unsigned grid[3], const unsigned block[3], unsigned shared, const char *params) {
  struct { float *x; _Bool b; short s; float by; char c; double d; unsigned char u; long long n; int m; } a;
  memcpy(&a, params, sizeof a - 4);
  float values[] = {a.b, a.s, a.by, a.c, a.d, a.u, a.n, a.m, shared};
  memcpy(a.x, values, sizeof values);
}
unsigned long long many__pointers = 1;
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "compute_90"])
def test_parameters_are_those_of_the_compiled_code(driver: Emulation, arch: str) -> None:
    """NVRTC's code says where each parameter is; arguments are packed there."""
    code = compiled(SOURCE, arch)
    add_kernel(code, ON_THE_HOST)
    driver.configure(capability=90, version=13090)  # as new as NVRTC
    dtypes = ["bool", "int16", "float32", "int8", "float64", "uint8"]
    args: Any = (
        {"memory": 0},
        *({"scalar": i + 1, "dtype": dtype} for i, dtype in enumerate(dtypes)),
        {"size": 6, "dtype": "int64"},
        {"size": 7, "dtype": "int32"},
    )
    params = (KernelParam("float32", (N,)), *(KernelParam(dtype, None) for dtype in dtypes))
    limits = {"threads": 128, "shared": 1024, "dynamic-shared": 512}
    format = "ptx" if arch.startswith("compute") else "cubin"
    image = Image("many", args, code, limits=limits, format=format)
    launch = (1, 1, 1, 128, 1, 1, N, N)
    (kernel,) = runtime().load([image.encode()], [info("many", params, launch)])
    assert kernel.most_threads == 128
    queue = runtime().queue()
    x = queue.upload(from_numpy(np.zeros(9, np.float32)))
    numbers = (1, 1, 1, 128, 1, 1, 10, -7)
    runtime().launcher(kernel, queue.raw)(numbers, (10,), x, True, -5, 2.5, -3, 0.125, 250)
    np.testing.assert_array_equal(x.numpy(), [1, -5, 2.5, -3, 0.125, 250, 10, -7, 512])


def compiled(source: bytes, arch: str) -> bytes:
    """Cubin or PTX by NVRTC."""
    nvrtc: Any = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        _, program = nvrtc.nvrtcCreateProgram(source, b"test.cu", 0, [], [])
    except RuntimeError as error:
        pytest.skip(f"NVRTC is not installed: {error}")
    (status,) = nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={arch}".encode()])
    assert not status
    what = "PTX" if arch.startswith("compute") else "CUBIN"
    _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    code = bytes(size)
    getattr(nvrtc, f"nvrtcGet{what}")(program, code)
    return code.rstrip(b"\0") if what == "PTX" else code
