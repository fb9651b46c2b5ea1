"""DecomposeOps: what a call becomes, and what is computed when building."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import PassError
from relaxpy.ir.expr import Call
from relaxpy.op.binary import Add
from relaxpy.op.create import Zeros
from relaxpy.op.linear_algebra import Linear
from relaxpy.op.memory import CheckDim
from relaxpy.op.recurrent_steps import RecurrentSteps
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import (
    BindParams,
    DeadCodeElimination,
    DecomposeOps,
    Normalize,
    PassContext,
    Sequential,
)

SOURCE = """
@R.function
def main(
    x: R.Tensor(("n", "b", 4), "float32"), w: R.Tensor((12, 4), "float32"), u: R.Tensor((12, 3), "float32"),
    v: R.Tensor((12,), "float32"), lengths: R.Tensor(("c",), "int64"),
):
    y = R.nn.lstm(x, (w, u, v, v, w, u, v, v), lengths=lengths, direction="bidirectional", gates="iofg")
    return y
"""


def test_example() -> None:
    check_example(DecomposeOps())


def test_a_program_without_such_calls_stays() -> None:
    mod = relaxpy.parse(
        "@R.function\ndef main(x: R.Tensor((3,), 'float32')):\n    return R.nn.relu(x)"
    )
    mod = Normalize()(mod)
    assert DecomposeOps()(mod) is mod


def test_constants_are_joined_when_building() -> None:
    """The gates are put in order, directions joined, and biases added."""
    rng = np.random.default_rng(0)
    shapes = {"w": (12, 4), "u": (12, 3), "v": (12,)}
    params = {n: rng.uniform(-1, 1, s).astype(np.float32) for n, s in shapes.items()}
    mod = relaxpy.parse(SOURCE)
    context = PassContext(params=params)
    after = Sequential((BindParams(), Normalize(), DecomposeOps(), DeadCodeElimination()))(
        mod, context
    )
    values = [binding.value for binding in after.graph_function("main").body.bindings]
    called = {type(value.op) for value in values if isinstance(value, Call)}
    assert called == {Linear, Add, Zeros, CheckDim, RecurrentSteps}
    x = rng.uniform(-1, 1, (5, 2, 4)).astype(np.float32)
    given = x, *params.values(), np.array([2, 5])
    for got, want in zip(
        interpret(after, "main", given[0], given[-1]), interpret(mod, "main", *given), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_sizes_that_deduction_left_open_are_checked() -> None:
    after = DecomposeOps()(Normalize()(relaxpy.parse(SOURCE)))
    zeros = [np.zeros(s, np.float32) for s in ((5, 2, 4), (12, 4), (12, 3), (12,))]
    with pytest.raises(relaxpy.RelaxError, match="size 0 of lengths does not fit"):
        interpret(after, "main", *zeros, np.zeros(3, np.int64))


def test_an_unknown_rank_is_refused() -> None:
    source = SOURCE.replace('x: R.Tensor(("n", "b", 4), "float32")', 'x: R.Tensor("float32")')
    with pytest.raises(PassError, match=r"nn.lstm: the .* is unknown"):
        DecomposeOps()(Normalize()(relaxpy.parse(source)))
