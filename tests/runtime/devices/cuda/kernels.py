"""A kernel for the emulated driver, `x[i] *= by` for i < n, as PTX and as C for the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from relaxpy.runtime.bytecode import Heap, KernelImage, KernelInfo, KernelParam
from relaxpy.runtime.devices.base import Launcher
from relaxpy.runtime.devices.cuda.device import CudaRuntime
from relaxpy.runtime.devices.cuda.stream import Stream
from relaxpy.runtime.devices.image import Argument, Image
from relaxpy.runtime.devices.registry import runtime_of
from tests.runtime.devices.cuda import emulation

N = Heap(0)
SCALE_C = """
#include <string.h>
void scale__launch(const unsigned grid[3], const unsigned block[3], unsigned shared, const char *params) {
  float *x, by;
  long long n;
  memcpy(&x, params, 8), memcpy(&by, params + 8, 4), memcpy(&n, params + 16, 8);
  for (long long i = 0; i < (long long)grid[0] * block[0] && i < n; i++) x[i] *= by;
}
"""
ARGS: tuple[Argument, ...] = (
    {"memory": 0},
    {"scalar": 1, "dtype": "float32"},
    {"size": 6, "dtype": "int64"},
)
LAUNCH = (1, 1, 1, 64, 1, 1, N)
PARAMS = (KernelParam("float32", (N,), access="read-write"), KernelParam("float32", None))


def ptx(name: str, params: Sequence[str], threads: int = 1024) -> bytes:
    """The PTX of a kernel without a body; parameters are ".u64 .ptr", ".f32"."""
    given = ", ".join(f".param {param} {name}_param_{i}" for i, param in enumerate(params))
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    return f"{head}.visible .entry {name}({given})\n.maxntid {threads}\n{{\n ret;\n}}\n".encode()


SCALE = Image("scale", ARGS, ptx("scale", (".u64 .ptr", ".f32", ".u64")), format="ptx")


def info(
    name: str = "scale", params: Sequence[KernelParam] = PARAMS, launch: Any = LAUNCH
) -> KernelInfo:
    return KernelInfo(name, (KernelImage(name, name, launch=launch),), tuple(params))


@cache
def _with_body() -> None:
    emulation.add_kernel(SCALE.code, SCALE_C)


def runtime(index: int = 0) -> CudaRuntime:
    found = runtime_of("cuda", index)
    assert isinstance(found, CudaRuntime)
    return found


def scale_on(stream: Stream, index: int = 0) -> Launcher:
    """The launcher of the kernel in a queue of a device."""
    _with_body()
    there = runtime(index)
    (kernel,) = there.load([SCALE.encode()], [info()])
    return there.launcher(kernel, stream)
