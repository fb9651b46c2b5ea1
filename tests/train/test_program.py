"""Steps whose loss is scaled, beside torch's `GradScaler`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.train import SGD, LossScale, MasterWeights, Step, fit
from tests.sweeps import quick_target

SMALL = relaxpy.parse("""
@R.function
def main(
    w: R.Tensor((5, 3), "float16"), x: R.Tensor(("n", 5), "float16"), y: R.Tensor(("n", 3), "float32"),
) -> R.Tuple(R.Tensor((), "float32"), R.Tensor(("n", 3), "float32")):
    found = R.astype(R.matmul(x, w), "float32")
    off = R.subtract(found, y)
    return (R.multiply(R.mean(R.square(off)), R.const(1e-8, "float32")), off)
""")
SCALE = LossScale(init_scale=2.0**24, growth_interval=3)
RATE = 1e7


@pytest.fixture(scope="module")
def step() -> Step:
    found = Step(
        SMALL["main"],  # type: ignore[arg-type]
        MasterWeights(SGD(RATE, 0.9)),
        (0,),
        has_aux=True,
        accumulate=True,
        loss_scale=SCALE,
    )
    found.use(relaxpy.VirtualMachine(found.build(quick_target())))
    return found


def beginning() -> list[Any]:
    return [np.random.default_rng(7).standard_normal((5, 3)).astype(np.float16)]


def batch(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    n = (4, 2, 8)[number % 3]
    x = rng.standard_normal((n, 5)).astype(np.float16)
    if number in (2, 7):
        x[0, 0] = np.inf
    return x, rng.standard_normal((n, 3), np.float32)


def test_the_scale_is_torchs(step: Step) -> None:
    """It shrinks after gradients that are not finite, for which weights stay, and grows after three good steps. Without
    it the gradients, of 1e-9, are zeros in float16."""
    mine, state = beginning(), step.start(beginning())
    w = torch.tensor(mine[0].astype(np.float32), requires_grad=True)
    other: Any = torch.optim.SGD([w], RATE, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)  # type: ignore[attr-defined]
    for number in range(12):
        x, y = batch(number)
        before = mine[0] if number == 0 else mine[0].numpy().copy()
        (loss, off), mine, state = step(mine, state, x, y)
        assert off.shape == y.shape
        other.zero_grad()
        want = torch.square(torch.tensor(x.astype(np.float32)) @ w - torch.tensor(y)).mean() * 1e-8
        torch.autograd.backward(scaler.scale(want))
        scaler.step(other)
        scaler.update()
        assert float(state[2][0].numpy()) == scaler.get_scale()
        if number in (2, 7):
            np.testing.assert_array_equal(mine[0].numpy(), before)
        else:
            np.testing.assert_allclose(loss.numpy(), want.detach().numpy(), rtol=1e-2)
    assert int(state[0].numpy()) == 10  # steps that were taken
    moved = np.abs(w.detach().numpy() - beginning()[0]).max()
    assert moved > 0.1
    assert np.abs(step.slot(state, "master")[0].numpy() - w.detach().numpy()).max() < 0.02 * moved


def test_parts_and_resumption(step: Step, tmp_path: Path) -> None:
    """Sums are of scaled gradients, in float32; what was saved goes on to the bit, with the scale."""
    whole = fit(step, beginning(), [batch(1), batch(4), batch(10), batch(1)], accumulate=2)
    half = fit(step, beginning(), [batch(1), batch(4)], accumulate=2)
    step.save(tmp_path / "at", half.weights, half.state)
    weights, state = step.load(tmp_path / "at")
    assert int(np.asarray(state[2][1])) == 1
    more = fit(step, weights, [batch(10), batch(1)], state=state, accumulate=2)
    assert half.losses + more.losses == whole.losses
    np.testing.assert_array_equal(more.weights[0].numpy(), whole.weights[0].numpy())
    x, y = (np.concatenate(pair) for pair in zip(batch(1), batch(4), strict=True))
    together = fit(step, beginning(), [(x, y)])
    for got, want in zip(
        step.slot(half.state, "master"), step.slot(together.state, "master"), strict=True
    ):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-3, atol=2e-3)
    with pytest.raises(UsageError, match="the state has the scale"):
        step.add(beginning(), None, *batch(1))
