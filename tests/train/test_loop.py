"""Training over batches: the end, callbacks, resumption, and what is no number."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError, UsageError
from relaxpy.train import SGD, Report, Step, early_stop, fit
from tests.sweeps import quick_target

LINE = relaxpy.parse("""
@R.function
def main(w: R.Tensor((3,), "float32"), x: R.Tensor(("n", 3), "float32"), y: R.Tensor(("n",), "float32")):
    return R.mean(R.square(R.subtract(R.matmul(x, w), y)))
""")
TRUTH = np.array([1, -2, 0.5], np.float32)


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(number).standard_normal((5 + number % 2, 3), np.float32)
    return x, x @ TRUTH


@pytest.fixture(scope="module")
def step() -> Step:
    found = Step(LINE.main, SGD(0.1), (0,))
    found.use(relaxpy.VirtualMachine(found.build(quick_target())))
    return found


def test_the_end(step: Step) -> None:
    """Of the batches, of the number of steps, or of a callback; the losses fall, and are those of the steps."""
    start = [np.zeros(3, np.float32)]
    whole = fit(step, start, map(batch, range(40)))
    assert len(whole.losses) == 40
    assert whole.losses[-1] < 1e-3 * whole.losses[0]
    np.testing.assert_allclose(whole.weights[0].numpy(), TRUTH, atol=0.05)
    again = fit(step, start, map(batch, range(40)), steps=7)
    assert again.losses == whole.losses[:7]
    more = fit(step, again.weights, map(batch, range(7, 40)), state=again.state)
    assert again.losses + more.losses == whole.losses
    seen: list[int] = []

    def third(report: Report) -> bool:
        seen.append(report.number)
        return report.number == 3

    ended = fit(
        step, start, map(batch, range(40)), callbacks=[third, lambda r: seen.append(-r.number)]
    )
    assert ended.ended
    assert seen == [1, -1, 2, -2, 3, -3]


def test_early_stop(step: Step) -> None:
    """Training ends after so many steps without a new least value."""
    values = iter([3.0, 2.0, 2.5, 2.0, 1.0, 1.0, 1.5, 9.0])
    stop = early_stop(2, lambda _: next(values))
    ended = fit(step, [TRUTH.copy()], map(batch, range(40)), callbacks=[stop])
    assert (len(ended.losses), ended.ended) == (4, True)
    with pytest.raises(UsageError, match="patience"):
        early_stop(0)


def test_a_loss_that_is_no_number(step: Step) -> None:
    """Training ends at its step; `check_numbers` names the operator."""
    wrong = [batch(0), (np.full((2, 3), 1e30, np.float32), np.ones(2, np.float32))]
    with pytest.raises(UsageError, match="the loss of step 2 is inf") as error:
        fit(step, [np.ones(3, np.float32)], wrong)
    assert error.value.code == "not-a-number"
    checked = Step(LINE.main, SGD(0.1), (0,), check_numbers=True)
    checked.use(relaxpy.VirtualMachine(checked.build(quick_target())))
    with pytest.raises(RelaxError, match=r"NaN or infinite.*\n.*<text>:4") as found:
        fit(checked, [np.ones(3, np.float32)], wrong)
    assert found.value.code == "not-a-number"


def test_several_batches_are_a_step() -> None:
    """Their mean gradient; the last step has those that are left."""
    found = Step(LINE.main, SGD(0.1), (0,), accumulate=True)
    found.use(relaxpy.VirtualMachine(found.build(quick_target())))
    start, even = [np.zeros(3, np.float32)], [batch(2 * n) for n in range(5)]
    parts = fit(found, start, even, accumulate=2)
    together = [
        tuple(np.concatenate(pair) for pair in zip(*even[n : n + 2], strict=True))
        for n in (0, 2, 4)
    ]
    whole = fit(found, start, together)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5)
    np.testing.assert_allclose(parts.weights[0].numpy(), whole.weights[0].numpy(), rtol=1e-5)
    with pytest.raises(UsageError, match="accumulate is a positive number"):
        fit(found, start, even, accumulate=0)
