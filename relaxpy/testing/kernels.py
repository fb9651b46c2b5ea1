"""Compiles and runs tensor programs without a module: many in one object, since a kernel then costs 20 ms instead of 60
ms."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaxpy.backend.base import CompileOptions
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule import ScheduledKernel
from relaxpy.backend.verify import check_scheduled
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.bytecode import HOST_SLOT, KernelInfo
from relaxpy.runtime.capsule import DLTensor
from relaxpy.runtime.devices.registry import runtime_of
from relaxpy.runtime.executable import Executable
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc


class Kernels:
    """Compiled tensor programs, by name."""

    rules: Mapping[str, str]
    """Name → the rule that scheduled the program; empty if nothing was scheduled here."""

    def __init__(
        self, programs: Mapping[str, PrimFunc], target: Target | None = None, schedule: bool = True
    ) -> None:
        """Compiles `programs` for `target` (default: this machine), either scheduled and verified, or unscheduled.
        Names must be identifiers."""
        target = target or Target.host()
        backend = backend_of(target)
        kernels: dict[str, ScheduledKernel] = {}
        self.rules = rules = dict[str, str]()
        for name, program in programs.items():
            func = program.func
            if schedule:
                scheduled = backend.schedule(func, target, {})
                check_scheduled(scheduled)
                func, rules[name] = scheduled.parallel, scheduled.rule
            kernels[name] = ScheduledKernel(func, func, "alone")  # one variant is enough here
        compiled = backend.compile(kernels, target, CompileOptions())
        infos = [KernelInfo(name, (image,)) for name, image in compiled.kernels.items()]
        self._load(compiled.objects, infos)

    @classmethod
    def of(cls, executable: Executable) -> Kernels:
        """The kernels of an executable, with the images that run on this machine."""
        kernels = cls.__new__(cls)
        kernels.rules = {}
        kernels._load(executable.objects, executable.images_here())
        return kernels

    def _load(self, objects: Sequence[bytes], infos: Sequence[KernelInfo]) -> None:
        handles: Sequence[Any] = runtime_of(HOST_SLOT.kind, 0).load(objects, infos)
        self._handles = {
            info.name: handle.run_parallel for info, handle in zip(infos, handles, strict=True)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def run(
        self,
        name: str,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        scalars: Sequence[int] = (),
    ) -> None:
        """Calls a kernel. It writes to `outputs`, which must be C-contiguous."""
        records = [record_of(array) for array in (*inputs, *outputs)]
        pointers = [ctypes.c_void_p(ctypes.addressof(record)) for record, _ in records]
        self._handles[name](*pointers, *scalars)


def record_of(array: np.ndarray) -> tuple[DLTensor, object]:
    """The DLTensor of an array, and the objects that must stay alive with it. It has no strides, since numpy's strides
    of an empty array are not compact."""
    compact = np.ascontiguousarray(array)
    kind = dtypes.info(dtypes.from_numpy(array.dtype))
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    record = DLTensor(
        compact.__array_interface__["data"][0],
        1,
        0,
        array.ndim,
        kind.code,
        kind.bits,
        1,
        ctypes.addressof(shape),
        0,
        0,
    )
    return record, (compact, shape)
