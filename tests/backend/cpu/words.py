"""Shared by the tests of attention by dot products of bfloat16: the target, kernels, and the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from tests.backend.cpu.rules.test_attention import Case, reference

B = "bfloat16"
SERIAL = "serial"


def words_target() -> CpuTarget:
    """This machine, which has dot products, without LLVM's optimisations."""
    target = CpuTarget.host()
    if Arithmetic.of(B, B, "float32", target).group == 1:
        pytest.skip("this processor has no dot products of bfloat16 that are faster")
    return replace(target, opt_level=0)


def words_kernels(cases: Mapping[str, Case], serial: str) -> Kernels:
    """The parallel kernels of all cases, and the serial one of the case `serial`, as `SERIAL`."""
    target = words_target()
    programs: dict[str, PrimFunc] = {}
    for name, case in cases.items():
        scheduled = schedule_kernel(case.program().func, target)
        programs[name.replace(" ", "_")] = PrimFunc(scheduled.parallel)
        if name == serial:
            programs[SERIAL] = PrimFunc(scheduled.serial)
    return Kernels(programs, target, schedule=False)


def run(kernels: Kernels, name: str, inputs: list[np.ndarray]) -> np.ndarray:
    out = np.full((*inputs[0].shape[:3], inputs[2].shape[3]), 77, inputs[0].dtype)
    kernels.run(name.replace(" ", "_"), inputs, [out])
    return out.astype(np.float32)


def agrees(kernels: Kernels, name: str, case: Case, inputs: list[np.ndarray]) -> None:
    """Powers and results are rounded to bfloat16."""
    exact = reference(case, [each.astype(np.float32) for each in inputs])
    np.testing.assert_allclose(run(kernels, name, inputs), exact, rtol=1e-2, atol=1e-2)
