"""What the tests of schedule rules share: small tensor programs, and running them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi_orcjit

from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.knobs import Choices
from relaxpy.backend.schedule import ScheduledKernel, schedule_kernel
from relaxpy.backend.verify import check_scheduled
from relaxpy.target import Target
from relaxpy.tir.tvm import te, tirx, tvm, tvm_ffi

HOST = Target.parse("llvm")
AVX2 = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")
LINE = 64
"""Bytes of a cache line."""

n, m, d = (tirx.Var(name, "int64") for name in "nmd")


def i64(value: Any) -> Any:
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def f32(value: float) -> Any:
    return tirx.FloatImm("float32", value)


def tensor(*shape: Any, dtype: str = "float32", name: str = "x") -> Any:
    return te.placeholder([i64(dim) for dim in shape], dtype, name=name)


def compute(shape: Sequence[Any], body: Callable[..., Any], name: str = "out") -> Any:
    if not shape:
        return te.compute((), lambda *_: body(), name=name)
    return te.compute([i64(dim) for dim in shape], body, name=name)


def over(extent: Any, name: str = "k") -> Any:
    return te.reduce_axis((i64(0), i64(extent)), name=name)


class Kernel:
    """A program scheduled and compiled for this machine; called with numpy arrays, parallel and serial."""

    def __init__(
        self,
        folder: Path,
        tensors: Sequence[Any],
        target: Target = HOST,
        choices: Choices | None = None,
    ) -> None:
        self.tensors = tensors
        self.func = te.create_prim_func(list(tensors))
        self.scheduled: ScheduledKernel = schedule_kernel(self.func, target, choices)
        check_scheduled(self.scheduled)
        self.library = load(
            folder,
            {"parallel": self.scheduled.parallel, "serial": self.scheduled.serial},
            target,
        )

    @property
    def rule(self) -> str:
        return self.scheduled.rule

    def __call__(
        self, *inputs: np.ndarray, out: tuple[int, ...], dtype: str = "float32"
    ) -> np.ndarray:
        """The one output, after checking that both forms agree to the bit and write nothing beside it."""
        results = []
        for form in ("parallel", "serial"):
            size = int(np.prod(out, dtype=np.int64))
            beyond = np.array(77).astype(dtype)
            memory = np.full(size + 64, beyond, dtype)
            view = memory[:size].reshape(out)
            self.library[form](*(as_tensor(x) for x in inputs), as_tensor(view))
            assert (memory[size:] == beyond).all(), "wrote beyond its output"
            results.append(view)
        np.testing.assert_array_equal(*results)
        return results[0]


def as_tensor(array: np.ndarray) -> Any:
    """A tensor over the array's own memory; one without elements is made anew (DLPack takes no strides of 0)."""
    return (
        tvm_ffi.from_dlpack(array)
        if array.size
        else tvm.runtime.empty(array.shape, str(array.dtype))
    )


def load(folder: Path, kernels: dict[str, Any], target: Target = HOST) -> Any:
    path = folder / f"kernels{len(list(folder.iterdir()))}.o"
    path.write_bytes(compile_object(kernels, target))
    return tvm_ffi_orcjit.default_session().load_module(str(path))


def in_lines(size: int, dtype: np.dtype) -> np.ndarray:
    """Bytes of 77 from the start of a cache line on."""
    memory = np.full(size * dtype.itemsize + LINE, 77, "uint8")
    start = -memory.ctypes.data % LINE
    return memory[start : start + size * dtype.itemsize].view(dtype)


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same values, one element past an aligned address."""
    memory = np.empty(array.size + 1, array.dtype)
    memory[1:] = array.reshape(-1)
    return memory[1:].reshape(array.shape)


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return unaligned((np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype))


def sizes(count: int) -> Iterator[tuple[int, ...]]:
    """Extents around a vector's length, none and one among them."""
    few = (0, 1, 5, 33)
    return itertools.product((0, 1, 3, 16, 37, 130) if count < 3 else few, repeat=count)
