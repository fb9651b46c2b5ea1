"""What is kept beside an optimiser's own state: weights in float32, and running averages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.train import EMA, SGD, AdamW, MasterWeights, Optimizer, Step
from tests.sweeps import quick_target

SHORT = relaxpy.parse("""
@R.function
def main(
    w: R.Tensor((5, 3), "bfloat16"), b: R.Tensor((3,), "float32"),
    x: R.Tensor(("n", 5), "bfloat16"), y: R.Tensor(("n", 3), "float32"),
) -> R.Tensor((), "float32"):
    found = R.add(R.astype(R.matmul(x, w), "float32"), b)
    return R.mean(R.square(R.subtract(found, y)))
""")
BFLOAT16 = ml_dtypes.bfloat16
torchs: Any = torch.optim


def made(optimizer: Optimizer) -> Step:
    step = Step(SHORT["main"], optimizer, (0, 1))  # type: ignore[arg-type]
    step.use(relaxpy.VirtualMachine(step.build(quick_target())))
    return step


def beginning() -> list[Any]:
    rng = np.random.default_rng(7)
    w, b = (rng.standard_normal(s, np.float32) for s in ((5, 3), (3,)))
    return [w.astype(BFLOAT16), b]


def batch(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    n = (3, 1, 8)[number % 3]
    x = rng.standard_normal((n, 5), np.float32).astype(BFLOAT16)
    return x, rng.standard_normal((n, 3), np.float32)


@pytest.fixture(scope="module")
def both() -> Step:
    return made(MasterWeights(EMA(AdamW(0.01), 0.9)))


def theirs(w: list[torch.Tensor], other: Any, number: int) -> None:
    """A step of torch on weights in float32."""
    x, y = batch(number)
    other.zero_grad()
    product = torch.tensor(x.astype(np.float32)).bfloat16() @ w[0].bfloat16()
    torch.autograd.backward(torch.square(product.float() + w[1] - torch.tensor(y)).mean())
    other.step()


def close(got: Any, want: torch.Tensor, start: Any) -> None:
    """Equal but for roundings of bfloat16 in gradients."""
    wanted, begun = want.detach().numpy(), np.asarray(start, np.float32)
    assert np.abs(np.asarray(got) - wanted).max() < 0.03 * np.abs(wanted - begun).max()


def test_master_weights(both: Step) -> None:
    """Those of AdamW on weights in float32. A weight in float32 has no master."""
    mine, state = beginning(), both.start(beginning())
    w = [torch.tensor(each.astype(np.float32), requires_grad=True) for each in mine]
    other = torchs.AdamW(w, 0.01)
    for number in range(12):
        _, mine, state = both(mine, state, *batch(number))
        theirs(w, other, number)
    # the first weight's state: two of AdamW, the average, the master
    names = [[slot.name for slot in own] for own in both.program.slots]
    assert names == [
        ["exp_avg", "exp_avg_sq", "average", "master"],
        ["exp_avg", "exp_avg_sq", "average"],
    ]
    master = state[1][0][3].numpy()
    assert {each.numpy().dtype for each in state[1][0]} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(mine[0].numpy(), master.astype(BFLOAT16))
    for got, want, start in zip([master, mine[1].numpy()], w, beginning(), strict=True):
        close(got, want, start)


def test_averages_are_of_the_masters(both: Step) -> None:
    mine, state = beginning(), both.start(beginning())
    averages = [np.asarray(each, np.float32) for each in mine]
    for number in range(5):
        _, mine, state = both(mine, state, *batch(number))
        masters = [state[1][0][3].numpy(), mine[1].numpy()]
        averages = [0.9 * a + (1 - 0.9) * m for a, m in zip(averages, masters, strict=True)]
    for got, want in zip(both.slot(state, "average"), averages, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    with pytest.raises(UsageError, match="the state of b has no master") as error:
        both.slot(state, "master")
    assert "exp_avg, exp_avg_sq, average" in str(error.value)


def test_small_steps_add_up() -> None:
    """Steps below half a unit of the weight's last place are lost without a master."""
    lost, kept = made(SGD(4e-4)), made(MasterWeights(SGD(4e-4)))
    one: list[Any] = [np.full((5, 3), 2, BFLOAT16), np.zeros(3, np.float32)]
    x, y = np.full((3, 5), 0.5, BFLOAT16), np.full((3, 3), 4.0, np.float32)
    results: list[Any] = []
    for step in (lost, kept):
        mine: Any = one
        state = step.start(one)
        for _ in range(60):
            _, mine, state = step(mine, state, x, y)
        results.append(mine[0].numpy().astype(np.float32))
    np.testing.assert_array_equal(results[0], 2)
    assert (results[1] < 2).all()


def test_it_goes_on_where_it_was_saved(both: Step, tmp_path: Path) -> None:
    """To the bit; torch's state has what torch knows, and goes on with masters of the weights given."""
    mine, state = beginning(), both.start(beginning())
    for number in range(3):
        _, mine, state = both(mine, state, *batch(number))
    both.save(tmp_path / "at.safetensors", mine, state)
    w = [torch.tensor(each.numpy().astype(np.float32), requires_grad=True) for each in mine]
    other = torchs.AdamW(w, 0.01)
    other.load_state_dict(both.state_dict(state))
    again = both.load_state_dict(other.state_dict(), mine)
    np.testing.assert_array_equal(again[1][0][3], mine[0].numpy().astype(np.float32))
    for got, want in zip(again[1][0][:2], state[1][0][:2], strict=True):
        np.testing.assert_array_equal(got, want.numpy())
    _, mine, state = both(mine, state, *batch(3))
    saved, before = both.load(tmp_path / "at.safetensors")
    _, saved, before = both(saved, before, *batch(3))
    flat = [*mine, *(each for own in state[1] for each in own)]
    other_flat = [*saved, *(each for own in before[1] for each in own)]
    for got, want in zip(other_flat, flat, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    with pytest.raises(UsageError, match="trains 2 parameters, got 0 weights"):
        both.load_state_dict(other.state_dict())


def test_torch_has_the_state_in_bfloat16() -> None:
    """Without masters the state is of the weight's dtype."""
    step = made(SGD(0.01, 0.9))
    _, _, state = step(beginning(), step.start(beginning()), *batch(0))
    found = step.state_dict(state)
    buffer = found["state"][0]["momentum_buffer"]
    assert buffer.dtype == torch.bfloat16
    back = step.load_state_dict(found)
    np.testing.assert_array_equal(back[1][0][0], state[1][0][0].numpy())


def test_wrong_decay() -> None:
    with pytest.raises(UsageError, match="decay is at least 0 and below 1, got 1"):
        EMA(SGD(), 1)
