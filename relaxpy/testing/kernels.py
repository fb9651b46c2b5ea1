"""Tensor programs compiled and run by themselves, without a module around them: many in one object, since a kernel costs 20 ms that
way and 60 ms alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relaxpy.runtime.bytecode import KernelInfo
from relaxpy.runtime.kernels import ffi, load_kernels
from relaxpy.runtime.tensor import from_numpy
from relaxpy.schedule import schedule_kernel
from relaxpy.tir.compile import compile_object
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.target import Target


class Kernels:
    """Compiled tensor programs, by name."""

    def __init__(self, programs: Mapping[str, PrimFunc], target: Target | None = None) -> None:
        """Schedule and compile `programs` for `target` (this machine). Names must be identifiers."""
        target = target or Target.host()
        scheduled = {name: schedule_kernel(program.func, target) for name, program in programs.items()}
        self.rules = {name: kernel.rule for name, kernel in scheduled.items()}
        """Which schedule rule each program took."""
        compiled = compile_object({name: kernel.parallel for name, kernel in scheduled.items()}, target)
        infos = [KernelInfo(name, name, name) for name in programs]
        handles = load_kernels(compiled, infos)
        self._handles = {info.name: handle.parallel for info, handle in zip(infos, handles, strict=True)}

    def run(
        self, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], scalars: Sequence[int] = ()
    ) -> None:
        """Call a program; it writes `outputs`, which must be C-contiguous."""
        tensors = [ffi().from_dlpack(from_numpy(array)) for array in (*inputs, *outputs)]
        self._handles[name](*tensors, *scalars)
