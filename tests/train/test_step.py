"""Training: steps beside torch's optimisers, real data, and a transformer's losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.train import (
    SGD,
    Adam,
    AdamW,
    Lion,
    Muon,
    Optimizer,
    Step,
    constant,
    cosine,
    linear,
)
from tests.sweeps import quick_target, sweep

MLP = relaxpy.parse("""
@R.function
def main(
    w1: R.Tensor((64, 32), "float32"), b1: R.Tensor((32,), "float32"),
    w2: R.Tensor((32, 10), "float32"), b2: R.Tensor((10,), "float32"),
    x: R.Tensor(("n", 64), "float32"), y: R.Tensor(("n",), "int64"),
) -> R.Tensor((), "float32"):
    h = R.nn.relu(R.add(R.matmul(x, w1), b1))
    scores = R.nn.log_softmax(R.add(R.matmul(h, w2), b2))
    return R.nn.nll_loss(scores, y)
""")
mlp: Any = MLP["main"]


def weights(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    shapes = ((64, 32), (32,), (32, 10), (10,))
    return [
        rng.uniform(-1, 1, s).astype(np.float32) / math.sqrt(s[0])
        if len(s) == 2
        else np.zeros(s, np.float32)
        for s in shapes
    ]


def theirs(w: list[torch.Tensor], x: Any, y: Any) -> torch.Tensor:
    h = torch.relu(torch.tensor(x) @ w[0] + w[1])
    return torch.nn.functional.cross_entropy(h @ w[2] + w[3], torch.tensor(y))


torchs: Any = torch.optim
OPTIMIZERS: dict[str, tuple[Optimizer, Callable[[Any], Any]]] = {
    "SGD": (SGD(0.1), lambda w: torchs.SGD(w, 0.1)),
    "momentum": (SGD(0.1, 0.9, 0.01), lambda w: torchs.SGD(w, 0.1, 0.9, weight_decay=0.01)),
    "Nesterov": (SGD(0.1, 0.9, nesterov=True), lambda w: torchs.SGD(w, 0.1, 0.9, nesterov=True)),
    "Adam": (Adam(0.01), lambda w: torchs.Adam(w, 0.01)),
    "decay": (Adam(0.01, weight_decay=0.1), lambda w: torchs.Adam(w, 0.01, weight_decay=0.1)),
    "AdamW": (AdamW(0.01, weight_decay=0.1), lambda w: torchs.AdamW(w, 0.01, weight_decay=0.1)),
}


@sweep(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_torchs(name: str) -> None:
    """Twenty steps from the same weights, with batches of different sizes, in one executable."""
    optimizer, make = OPTIMIZERS[name]
    rng, mine = np.random.default_rng(1), weights()
    step = Step(mlp, optimizer, (0, 1, 2, 3))
    state = step.start(mine)
    w = [torch.tensor(each, requires_grad=True) for each in weights()]
    other = make(w)
    for number in range(20):
        n = (1, 7, 16)[number % 3]
        x, y = rng.standard_normal((n, 64), np.float32), rng.integers(0, 10, n)
        loss, mine, state = step(mine, state, x, y)
        other.zero_grad()
        want = theirs(w, x, y)
        torch.autograd.backward(want)
        other.step()
        np.testing.assert_allclose(loss.numpy(), want.detach().numpy(), rtol=2e-4, atol=1e-6)
    for got, each in zip(mine, w, strict=True):
        np.testing.assert_allclose(got.numpy(), each.detach().numpy(), rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_digits() -> None:
    """scikit-learn's handwritten digits: more than 97 % of those that were not trained on."""
    datasets: Any = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int64)
    seen = 1437
    w: Any = weights()
    step = Step(mlp, AdamW(1e-2), (0, 1, 2, 3))
    state = step.start(w)
    for epoch in range(20):
        for at in range(0, seen, 64):
            last = min(at + 64, seen)
            _, w, state = step(w, state, x[at:last], y[at:last], lr=1e-2 * 0.9**epoch)
    w1, b1, w2, b2 = (each.numpy() for each in w)
    right = np.argmax(np.maximum(x[seen:] @ w1 + b1, 0) @ w2 + b2, 1) == y[seen:]
    assert right.mean() > 0.97


BLOCK = """
@R.function
def main(
    e: R.Tensor((16, 24), "float32"), qkv: R.Tensor((72, 24), "float32"), o: R.Tensor((24, 24), "float32"),
    up: R.Tensor((48, 24), "float32"), down: R.Tensor((24, 48), "float32"), g1: R.Tensor((24,), "float32"),
    g2: R.Tensor((24,), "float32"), ids: R.Tensor(("b", "t"), "int64"), next: R.Tensor(("b", "t"), "int64"),
) -> R.Tensor((), "float32"):
    b, t = T.int64(), T.int64()
    x = R.reshape(R.take(e, R.reshape(ids, R.shape([b * t])), axis=0), R.shape([b, t, 24]))
    h = R.linear(R.nn.rms_norm(x, g1, axes=[-1]), qkv)
    parts = R.split(h, 3, axis=2)
    q = R.reshape(parts[0], R.shape([b, t, 2, 12]))
    k = R.reshape(parts[1], R.shape([b, t, 2, 12]))
    v = R.reshape(parts[2], R.shape([b, t, 2, 12]))
    a = R.reshape(R.nn.attention(q, k, v, causal_mask="TopLeft"), R.shape([b, t, 24]))
    x1 = R.add(x, R.linear(a, o))
    m = R.linear(R.nn.silu(R.linear(R.nn.rms_norm(x1, g2, axes=[-1]), up)), down)
    x2 = R.reshape(R.add(x1, m), R.shape([b * t, 24]))
    scores = R.nn.log_softmax(R.linear(x2, e))
    return R.nn.nll_loss(scores, R.reshape(next, R.shape([b * t])))
"""


def transformer(w: list[torch.Tensor], ids: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    e, qkv, o, up, down, g1, g2 = w
    functional: Any = torch.nn.functional
    b, t = ids.shape
    x = e[ids]
    q, k, v = (functional.rms_norm(x, (24,), g1, 1e-5) @ qkv.T).split(24, 2)
    heads = (each.reshape(b, t, 2, 12).transpose(1, 2) for each in (q, k, v))
    a = functional.scaled_dot_product_attention(*heads, is_causal=True)
    x = x + a.transpose(1, 2).reshape(b, t, 24) @ o.T
    x = x + functional.silu(functional.rms_norm(x, (24,), g2, 1e-5) @ up.T) @ down.T
    return functional.cross_entropy((x @ e.T).reshape(-1, 16), following.reshape(-1))


@pytest.mark.slow
def test_a_transformers_losses_are_torchs() -> None:
    """Thirty steps, of three shapes."""
    rng = np.random.default_rng(0)
    shapes = ((16, 24), (72, 24), (24, 24), (48, 24), (24, 48))
    mine: Any = [0.2 * rng.standard_normal(s, np.float32) for s in shapes]
    mine += [np.ones(24, np.float32), np.ones(24, np.float32)]
    w = [torch.tensor(each, requires_grad=True) for each in mine]
    step = Step(relaxpy.parse(BLOCK).main, AdamW(3e-3), range(7))
    state, other = step.start(mine), torchs.AdamW(w, 3e-3)
    first = last = 0.0
    for number in range(30):
        b, t = ((4, 16), (2, 9), (1, 33))[number % 3]
        begin = rng.integers(0, 16, (b, 1))
        ids = (begin + 3 * np.arange(t + 1)) % 16
        loss, mine, state = step(mine, state, ids[:, :-1].copy(), ids[:, 1:].copy())
        other.zero_grad()
        want = transformer(w, torch.tensor(ids[:, :-1]), torch.tensor(ids[:, 1:]))
        torch.autograd.backward(want)
        other.step()
        last = float(loss.numpy())
        first = first or last
        np.testing.assert_allclose(last, float(want.detach()), rtol=1e-3)
    assert last < 0.7 * first


QUADRATIC = relaxpy.parse("""
@R.function
def main(
    w: R.Tensor((5, 3), "float32"), b: R.Tensor((3,), "float32"),
    x: R.Tensor(("n", 5), "float32"), y: R.Tensor(("n", 3), "float32"),
) -> R.Tensor((), "float32"):
    return R.mean(R.square(x @ w + b - y))
""")
quadratic: Any = QUADRATIC["main"]


def lion(w: Any, g: Any, mean: Any, lr: float, decay: float) -> tuple[Any, Any]:
    """The paper's algorithm 2."""
    w = w * (1 - lr * decay) - lr * np.sign(0.9 * mean + 0.1 * g)
    return w, 0.99 * mean + 0.01 * g


def gradients(w: Any, b: Any, x: Any, y: Any) -> tuple[Any, Any]:
    off = 2 * (x @ w + b - y) / y.size
    return x.T @ off, off.sum(0)


def batch(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    n = (3, 1, 8)[number % 3]
    return rng.standard_normal((n, 5), np.float32), rng.standard_normal((n, 3), np.float32)


def beginning() -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(s, np.float32) for s in ((5, 3), (3,))]


def test_lion_is_the_papers() -> None:
    step = Step(quadratic, Lion(1e-2, weight_decay=0.1), (0, 1))
    mine: Any = beginning()
    state, theirs = step.start(mine), [(each, np.zeros_like(each)) for each in mine]
    for number in range(12):
        x, y = batch(number)
        found = gradients(theirs[0][0], theirs[1][0], x, y)
        theirs = [lion(w, g, m, 1e-2, 0.1) for (w, m), g in zip(theirs, found, strict=True)]
        _, mine, state = step(mine, state, x, y)
    for got, (want, _) in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_torchs(adjust: str, nesterov: bool) -> None:
    """With AdamW for the bias, as Muon is used. Torch's steps of Newton and Schulz are of bfloat16."""
    options: dict[str, Any] = {"nesterov": nesterov, "adjust_lr_fn": adjust, "weight_decay": 0.05}
    step = Step(quadratic, [Muon(0.02, **options), AdamW(0.01)], (0, 1))
    mine: Any = beginning()
    state, w = step.start(mine), [torch.tensor(each, requires_grad=True) for each in mine]
    others = torchs.Muon(w[:1], 0.02, **options), torchs.AdamW(w[1:], 0.01)
    for number in range(8):
        x, y = batch(number)
        _, mine, state = step(mine, state, x, y)
        loss = torch.square(torch.tensor(x) @ w[0] + w[1] - torch.tensor(y)).mean()
        torch.autograd.backward(loss)
        for other in others:
            other.step()
            other.zero_grad()
    for got, want, start in zip(mine, w, beginning(), strict=True):
        moved = np.abs(want.detach().numpy() - start).max()
        assert np.abs(got.numpy() - want.detach().numpy()).max() < 0.02 * moved


def test_gradients_are_clipped() -> None:
    step = Step(quadratic, SGD(0.5), (0, 1), clip_norm=0.3)
    mine: Any = beginning()
    state, w = step.start(mine), [torch.tensor(each, requires_grad=True) for each in mine]
    other = torchs.SGD(w, 0.5)
    for number in range(6):
        x, y = batch(number)
        if number == 3:  # short gradients are as they are
            x, y = x * 0, w[1].detach().numpy() + 1e-3 * y
        _, mine, state = step(mine, state, x, y)
        other.zero_grad()
        loss = torch.square(torch.tensor(x) @ w[0] + w[1] - torch.tensor(y)).mean()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(w, 0.3)
        other.step()
    for got, want in zip(mine, w, strict=True):
        np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_schedules() -> None:
    assert [constant(3)(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert [linear(4, least=0.5)(step) for step in (0, 2, 4, 9)] == [1.0, 0.75, 0.5, 0.5]
    wave = [cosine(6, 2)(step) for step in (0, 1, 2, 4, 6)]
    np.testing.assert_allclose(wave, [1 / 3, 2 / 3, 1, 0.5, 0], atol=1e-12)
    with pytest.raises(UsageError, match="warmup is 4 steps: it must be at least 0, and less than"):
        cosine(4, 4)
    step = Step(quadratic, SGD(0.5), (0, 1), schedule=linear(4))
    mine: Any = beginning()
    state, w = step.start(mine), [torch.tensor(each, requires_grad=True) for each in mine]
    other = torchs.SGD(w, 0.5)
    for number in range(5):
        x, y = batch(number)
        _, mine, state = step(mine, state, x, y)
        other.param_groups[0]["lr"] = 0.5 * (1 - number / 4)
        other.zero_grad()
        loss = torch.square(torch.tensor(x) @ w[0] + w[1] - torch.tensor(y)).mean()
        torch.autograd.backward(loss)
        other.step()
    for got, want in zip(mine, w, strict=True):
        np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_it_goes_on_where_it_was_saved(tmp_path: Any) -> None:
    """To the bit, in a step that is built anew; and what was saved is not changed by later steps."""
    path, optimizers = tmp_path / "at.safetensors", [Muon(0.02), AdamW(0.01)]
    step = Step(quadratic, optimizers, (0, 1))
    mine: Any = beginning()
    state = step.start(mine)
    for number in range(6):
        if number == 3:
            step.save(path, mine, state)
        _, mine, state = step(mine, state, *batch(number))
    last = [each.numpy() for each in mine]
    again = Step(quadratic, optimizers, (0, 1))
    mine, state = again.load(path)
    for number in range(3, 6):
        _, mine, state = again(mine, state, *batch(number))
    for got, want in zip(mine, last, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    with pytest.raises(UsageError, match="do not match the step: 4 problems") as error:
        Step(quadratic, SGD(), (0,)).load(path)
    assert "unexpected: b.exp_avg_sq" in str(error.value)
    with pytest.raises(UsageError, match=r"cannot be read"):
        step.load(tmp_path / "none")


@sweep(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torch_goes_on(name: str) -> None:
    """Three steps here and three of torch, and the other way round, are six of either."""
    optimizer, make = OPTIMIZERS[name]
    step = Step(quadratic, optimizer, (0, 1))

    def torch_steps(w: list[torch.Tensor], other: Any, numbers: range) -> None:
        for x, y in map(batch, numbers):
            other.zero_grad()
            loss = torch.square(torch.tensor(x) @ w[0] + w[1] - torch.tensor(y)).mean()
            torch.autograd.backward(loss)
            other.step()

    mine: Any = beginning()
    w = [torch.tensor(each, requires_grad=True) for each in mine]
    other, state = make(w), step.start(mine)
    torch_steps(w, other, range(3))
    for number in range(3):
        _, mine, state = step(mine, state, *batch(number))
    continued = [torch.tensor(each.numpy().copy(), requires_grad=True) for each in mine]
    second = make(continued)
    second.load_state_dict(step.state_dict(state))
    torch_steps(continued, second, range(3, 6))
    mine = [each.detach().numpy().copy() for each in w]
    state = step.load_state_dict(other.state_dict())
    for number in range(3, 6):
        _, mine, state = step(mine, state, *batch(number))
    torch_steps(w, other, range(3, 6))
    for want, one, two in zip(w, mine, continued, strict=True):
        np.testing.assert_allclose(one.numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            two.detach().numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5
        )


def test_another_state_is_refused() -> None:
    w = [torch.tensor(each, requires_grad=True) for each in beginning()]
    other = torchs.Adam(w)
    torch.autograd.backward(w[0].sum() + w[1].sum())
    other.step()
    with pytest.raises(UsageError, match="states do not match the step: 6 problems") as error:
        Step(quadratic, SGD(0.1, 0.9), (0, 1)).load_state_dict(other.state_dict())
    assert "weight 0: exp_avg is no state of SGD" in str(error.value)
    with pytest.raises(UsageError, match="1 problem"):
        Step(quadratic, Adam(), (0,)).load_state_dict(other.state_dict())
    turned: Any = relaxpy.parse(QUADRATIC.script().replace("(5, 3)", "(3, 5)").replace(
        "R.matmul(x, w)", "R.matmul(x, R.permute_dims(w))"
    ))["main"]  # fmt: skip
    with pytest.raises(UsageError, match=r"do not match") as error:
        Step(turned, Adam(), (0, 1)).load_state_dict(other.state_dict())
    assert "weight 0: exp_avg is (5, 3), and the weight (3, 5)" in str(error.value)
    step = Step(quadratic, Lion(), (0, 1))
    with pytest.raises(UsageError, match="torch has no optimiser Lion"):
        step.state_dict(step.start(beginning()))


def test_arrays_of_the_caller_stay() -> None:
    mine: Any = beginning()
    step = Step(quadratic, SGD(0.1), (0, 1))
    kept = [each.copy() for each in mine]
    _, one, state = step(mine, step.start(mine), *batch(0))
    copied = one[0].copy()
    _, two, _ = step(one, state, *batch(1))
    for got, want in zip(mine, kept, strict=True):
        np.testing.assert_array_equal(got, want)
    assert np.shares_memory(one[0].numpy(), two[0].numpy())
    assert not np.array_equal(copied.numpy(), two[0].numpy())
    new = Step(quadratic, SGD(0.1), (0, 1), donate=False)
    _, one, state = new(mine, new.start(mine), *batch(0))
    _, two, _ = new(one, state, *batch(1))
    assert not np.shares_memory(one[0].numpy(), two[0].numpy())
    np.testing.assert_array_equal(one[0].numpy(), copied.numpy())


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="trains 2 parameters, got 1 optimisers"):
        Step(quadratic, [SGD()], (0, 1))
    with pytest.raises(
        UsageError, match=r"Muon is for matrices, and a weight has the shape \(3,\)"
    ):
        Step(quadratic, Muon(), (0, 1))
    with pytest.raises(UsageError, match="adjust_lr_fn is one of original, match_rms_adamw"):
        Muon(adjust_lr_fn="adam")
    with pytest.raises(UsageError, match=r"x is trained, and is .*: a weight is a tensor of known"):
        Step(mlp, SGD(), (0, 4))
    step = Step(mlp, SGD(), (0, 1))
    with pytest.raises(UsageError, match="trains 2 parameters, got 1 weights"):
        step([np.zeros((64, 32), np.float32)], step.start([]))


def test_packed_weights_stay() -> None:
    """Weights that are packed come last, whatever a packer makes of them, and are not trained."""
    step = Step(mlp, SGD(0.1), (0, 1), packed=("w2", "b2"))
    vm = relaxpy.VirtualMachine(step.build(quick_target()))
    step.use(vm)
    w1, b1, w2, b2 = weights()
    packed = vm.pack({"w2": w2, "b2": b2})["step"]
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((7, 64), np.float32), rng.integers(0, 10, 7)
    loss, new, _ = step([w1, b1], step.start([w1, b1]), x, y, packed=packed)
    w = [torch.tensor(each, requires_grad=n < 2) for n, each in enumerate((w1, b1, w2, b2))]
    wanted = theirs(w, x, y)
    torch.autograd.backward(wanted)
    np.testing.assert_allclose(loss.numpy(), wanted.detach().numpy(), rtol=1e-5)
    for own, each in zip(new, w[:2], strict=True):
        assert each.grad is not None
        np.testing.assert_allclose(
            own.numpy(), (each - 0.1 * each.grad).detach().numpy(), atol=1e-6
        )


def test_parts_of_a_batch() -> None:
    """Three parts of equal size are one batch; a part alone is a step as always."""
    step = Step(mlp, AdamW(0.01), (0, 1, 2, 3), accumulate=True, clip_norm=0.5)
    vm = relaxpy.VirtualMachine(step.build(quick_target()))
    step.use(vm)
    plain = Step(mlp, AdamW(0.01), (0, 1, 2, 3), clip_norm=0.5)
    plain.use(relaxpy.VirtualMachine(plain.build(quick_target())))
    rng, sums = np.random.default_rng(1), None
    x, y = rng.standard_normal((15, 64), np.float32), rng.integers(0, 10, 15)
    w: Any = weights()
    losses: list[float] = []
    for at in (0, 5):
        loss, sums = step.add(w, sums, x[at : at + 5], y[at : at + 5])
        losses.append(float(loss.numpy()))
    loss, w, state = step(w, step.start(w), x[10:], y[10:], sums=sums)
    losses.append(float(loss.numpy()))
    whole, other, theirs = plain(weights(), plain.start(weights()), x, y)
    np.testing.assert_allclose(np.mean(losses), float(whole.numpy()), rtol=1e-5)
    for _ in range(2):
        for a, b in zip(w, other, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), atol=2e-5)
        _, w, state = step(w, state, x, y)
        _, other, theirs = plain(other, theirs, x, y)
    with pytest.raises(UsageError, match="sums no gradients"):
        plain.add(other, None, x, y)
