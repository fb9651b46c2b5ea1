"""A program for the emulated driver, written by hand: `main(x)` is 4 x, by two launches of a kernel that doubles.

    python -m tests.runtime.devices.cuda.program FILE

runs it from a file, in a process where TVM cannot be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from relaxpy.runtime import Executable, VirtualMachine, load
from relaxpy.runtime.bytecode import (
    HOST_SLOT,
    Alloc,
    Const,
    Copy,
    Heap,
    IntOp,
    Kernel,
    KernelImage,
    KernelInfo,
    KernelParam,
    Reg,
    Requirement,
    Return,
    Slot,
    TensorPattern,
)
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.kernel_params import symbol_of
from tests.runtime.devices.cuda.kernels import ptx
from tests.runtime.support import function, times

N = Heap(0)
LAUNCH = (IntOp("floordiv", (IntOp("add", (N, 63)), 64)), 1, 1, 64, 1, 1, N)
PARAMS = (KernelParam("float32", (N,)), KernelParam("float32", (N,), access="write"))
SYMBOL = symbol_of("twice", PARAMS, LAUNCH)
CODE = ptx(SYMBOL, (".u64 .ptr", ".u64 .ptr", ".s64"))
BODY = f"""
#include <string.h>
void {SYMBOL}__launch(const unsigned grid[3], const unsigned block[3], unsigned shared, const char *params) {{
  float *x, *y;
  long long n;
  memcpy(&x, params, 8), memcpy(&y, params + 8, 8), memcpy(&n, params + 16, 8);
  for (long long i = 0; i < (long long)grid[0] * block[0] && i < n; i++) y[i] = 2 * x[i];
}}
"""
"""For the host (`emulation.add_kernel`)."""
IMAGE = Image(
    SYMBOL,
    ({"memory": 0}, {"memory": 1}, {"size": 6, "dtype": "int64"}),
    CODE,
    limits={"threads": 64},
    format="ptx",
)


def executable(slots: Sequence[str] = ("gpu",)) -> Executable:
    """With several slots, each launch is in the next one."""
    places = [1 + i % len(slots) for i in range(2)]
    there = TensorPattern((N,), 1, "float32", places[0])
    kernels = [
        KernelInfo("twice", (KernelImage(SYMBOL, SYMBOL, 0, launch=LAUNCH, needs=0),), PARAMS, slot)
        for slot in places
    ]
    body = [
        Alloc(0, 1, 0, 1, "float32", 0, 0, places[0]),
        Kernel(0, 0, (Reg(0), Reg(1)), N),
        Copy(1, 2, 1, places[1]),
        Alloc(1, 3, 0, 1, "float32", -1, 0, places[1]),
        Kernel(1, 1, (Reg(2), Reg(3)), N),
        Return(1, 3),
    ]
    constant = [Const(0, 0, 0, 1), Return(0, 0)]
    main = function("main", [("x", there)], body, storages=[times(0, 4)])
    return Executable(
        (
            replace(main, storage_slots=(places[0],)),
            function("constant", [], constant),
        ),
        kernels=tuple(kernels),
        objects=(IMAGE.encode(),),
        constants=(np.arange(3, dtype=np.float32),),
        requirements=(Requirement("", "compute_80"),),
        slots=(HOST_SLOT, *(Slot(name, "cuda") for name in slots)),
    )


class _Refuse:
    """Lets nothing of TVM be imported."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name.partition(".")[0] in ("tvm", "tvm_ffi", "tvm_ffi_orcjit", "apache_tvm"):
            raise ImportError(f"{name} is not here")


def main(file: str) -> None:
    finder: Any = _Refuse()
    sys.meta_path.insert(0, finder)
    vm = VirtualMachine(load(file))
    for n in (1, 1000, 0):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(vm["main"](x).numpy(), 4 * x)
    np.testing.assert_array_equal(vm["constant"]().numpy(), [0, 1, 2])
    assert not {"tvm", "tvm_ffi", "relaxpy.tir"} & {*sys.modules}


if __name__ == "__main__":
    main(sys.argv[1])
