"""Recurrent layers by groups of threads: which they are, and their numbers on the emulated driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.gpu.schedule.recurrent import arrange_recurrent
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import Tuple, Var
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.target import Target
from tests.backend.recurrent_cases import Case
from tests.e2e.devices import machine
from tests.runtime.devices.cuda import compiled as cuda

pytestmark = cuda.needs_cuda
CASES = {
    "lstm": Case(hidden=35, state=17, direction="bidirectional", lengths=True, peepholes=True),
    "gru": Case(cell="gru", hidden=33, direction="reverse", lengths=True, options={"reset_after": False}),
    "rnn": Case(cell="rnn", hidden=300, dtype="float16", options={"batch_first": True}),
}  # fmt: skip


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "opencl", "vulkan", "metal"])
def test_which_they_are(target: str) -> None:
    """Those whose sums fit into the memory that a group shares."""
    chosen = Target.parse(target)
    assert schedule_kernel(Case(hidden=640).program().func, chosen).rule == "recurrent"
    assert arrange_recurrent(Case(hidden=720).program().func, chosen) is None


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    case = CASES[name]
    close = 4e-3 if case.dtype == "float16" else 1e-5
    with cuda.emulated_compiled():
        for length, batch in ((3, 2), (1, 1), (0, 2)):
            given = case.inputs(length, batch)
            mod, arrays = module(case, given)
            found = machine(mod, cuda.TARGET)["main"](*arrays)
            for got, want in zip(found, case.reference(given), strict=True):
                np.testing.assert_allclose(
                    got.numpy().astype(np.float32), want.astype(np.float32), rtol=close, atol=close
                )


def module(case: Case, given: list[Any]) -> tuple[relaxpy.IRModule, list[np.ndarray]]:
    """A module with the one call, and its arguments."""
    params: list[Var] = []
    args: list[Any] = []
    for number, x in enumerate(given):
        if isinstance(x, tuple):
            args.append(Tuple(()))
            continue
        params.append(Var(f"x{number}", TensorType(x.shape, str(x.dtype))))
        args.append(params[-1])
    builder = BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(case.op(*args)))
    return builder.get(), [x for x in given if not isinstance(x, tuple)]
