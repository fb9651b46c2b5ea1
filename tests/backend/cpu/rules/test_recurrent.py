"""Recurrent layers with vectors, against the operator's reference: every cell and option, sizes, and processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.backend.schedule import ScheduledKernel, schedule_kernel
from relaxpy.backend.verify import check_scheduled
from relaxpy.ir.cell import PANEL
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.recurrent import recurrent_of
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import rewritten
from tests.backend.recurrent_cases import Case
from tests.sweeps import FULL, quick_target, sweep

TARGETS = ("llvm -opt-level=0", "llvm -mcpu=haswell", "llvm -mcpu=x86-64")


CASES = {
    "lstm": Case(hidden=PANEL),
    "lengths": Case(direction="bidirectional", lengths=True),
    "projection": Case(hidden=35, state=17, direction="bidirectional", lengths=True),
    "peepholes": Case(
        peepholes=True, direction="reverse", options={"clip": 0.6, "batch_first": True}
    ),
    "coupled": Case(hidden=1, options={"input_forget": True, "activations": ("hard_sigmoid", "relu", "softsign")}),
    "gru": Case(cell="gru", hidden=33, bias=True, direction="bidirectional", lengths=True),
    "before": Case(cell="gru", hidden=18, direction="reverse", lengths=True, options={"reset_after": False}),
    "rnn": Case(cell="rnn", hidden=50, direction="bidirectional"),
    "leaky": Case(cell="rnn", hidden=3, options={"activations": ("leaky_relu(0.3)",)}),
    "large": Case(hidden=160, lengths=True, direction="bidirectional"),
    "large projection": Case(hidden=190, state=131, lengths=True),
    "large before": Case(cell="gru", hidden=190, options={"reset_after": False}),
    "bfloat16": Case(hidden=21, dtype="bfloat16", lengths=True),
    "float16": Case(cell="gru", hidden=16, bias=True, dtype="float16"),
}  # fmt: skip
SIZES = ((1, 1), (5, 2), (3, 3), (4, 13), (0, 2), (2, 0), (7, 24))


def is_of(rule: str, scheduled: ScheduledKernel) -> PrimFunc:
    """The scheduled program, which this rule must have written."""
    check_scheduled(scheduled)
    assert scheduled.rule == rule
    return PrimFunc(scheduled.parallel)


@pytest.fixture(scope="module", params=[TARGETS[0], *(pytest.param(t, marks=[pytest.mark.slow, sweep]) for t in TARGETS[1:])])  # fmt: skip
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """All cases for this processor, and each for one other; for all in a full sweep."""
    cases = [*CASES]
    if request.param != TARGETS[0] and not FULL:
        cases = cases[TARGETS.index(request.param) - 1 :: len(TARGETS) - 1]
    target = Target.parse(TARGETS[0])
    if request.param != TARGETS[0]:
        target = quick_target(request.param)
    if not target.is_host_loadable:
        pytest.skip("this machine cannot run it")
    programs = {
        name.replace(" ", "_"): is_of(
            "recurrent", schedule_kernel(CASES[name].program().func, target)
        )
        for name in cases
    }
    return Kernels(programs, target, schedule=False)


def run(kernels: Kernels, name: str, inputs: list[Any]) -> list[np.ndarray]:
    """The results; nothing is written beyond them."""
    if name.replace(" ", "_") not in kernels:
        pytest.skip("tried for other processors")
    given = [x for x in inputs if not isinstance(x, tuple)]
    wanted = CASES[name].reference(inputs)
    memory = [np.full(x.size + 64, 77, x.dtype) for x in wanted]
    results = [m[: x.size].reshape(x.shape) for m, x in zip(memory, wanted, strict=True)]
    kernels.run(name.replace(" ", "_"), given, results)
    assert all((m[x.size :] == 77).all() for m, x in zip(memory, wanted, strict=True))
    return results


@sweep(3)
@pytest.mark.parametrize("name", CASES)
def test_against_the_reference(kernels: Kernels, name: str) -> None:
    case = CASES[name]
    close = {"bfloat16": 4e-2, "float16": 4e-3}.get(case.dtype, 1e-5)
    for length, batch in SIZES:
        inputs = case.inputs(length, batch)
        wanted = case.reference(inputs)
        for got, want in zip(run(kernels, name, inputs), wanted, strict=True):
            np.testing.assert_allclose(
                got.astype(np.float32), want.astype(np.float32), rtol=close, atol=close
            )


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_a_sequence_alone(kernels: Kernels, name: str) -> None:
    """Whatever else is in the batch; and those of two calls, one after the other."""
    case = CASES[name]
    axis = 0 if case.options.get("batch_first") else 1
    inputs = case.inputs(6, 9)
    if case.lengths:
        inputs[7] = np.full(9, 6)
    together = run(kernels, name, inputs)
    places = {0: axis, 2: 1, 3: 1, 7: 0}

    def alone(number: int, x: np.ndarray | tuple[()]) -> np.ndarray | tuple[()]:
        at = places.get(number)
        return x if at is None or isinstance(x, tuple) else np.take(x, [4], at)

    found = run(kernels, name, [alone(n, x) for n, x in enumerate(inputs)])
    for one, all_of, at in zip(found, together, (axis, 1, 1), strict=False):
        np.testing.assert_array_equal(one, np.take(all_of, [4], at))
    if case.direction != "forward":
        return
    state = list(inputs)
    outputs: list[np.ndarray] = []
    for part in np.split(inputs[0], [2], 1 - axis):
        state[0] = part
        if case.lengths:
            state[7] = np.full(9, part.shape[1 - axis])
        y, *state[2 : 2 + len(together) - 1] = run(kernels, name, state)
        outputs.append(y)
    np.testing.assert_array_equal(np.concatenate(outputs, 1 - axis), together[0])
    np.testing.assert_array_equal(state[2], together[1])


def test_what_is_recognised() -> None:
    """What a step computes is read from the program; one that differs in an operation is another program, whatever its
    block says."""
    func = CASES["peepholes"].program().func
    form = recurrent_of(func)
    assert form is not None
    assert form.step == CASES["peepholes"].op.steps
    assert form.batch_first
    assert form.x.peepholes is not None

    def other(node: tirx.Sub) -> Any:
        return node.a + node.b

    assert recurrent_of(func.with_body(rewritten(func.body, (tirx.Sub, other)))) is None


def test_what_is_left_to_the_rule_for_rows() -> None:
    """Sums in float64, sizes that are symbols, and directions that differ."""
    different = Case(
        cell="rnn", direction="bidirectional", options={"activations": ("tanh", "relu")}
    )
    double = Case(dtype="float64")
    for case in (different, double):
        is_of("rows", schedule_kernel(case.program().func, Target.parse("llvm")))
