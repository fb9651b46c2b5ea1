"""A recurrent network of characters trains: its loss and its gradients are torch's, compiled once for all lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import relaxpy
from tests.sweeps import full

RNG = np.random.default_rng(3)
CHARACTERS, WIDTH, HIDDEN = 7, 4, 5


@full
def test_a_network_of_characters_has_torchs_gradients() -> None:
    """Of one character, and of sequences of an odd length."""
    mod = relaxpy.parse(f"""
@R.function
def main(
    e: R.Tensor(({CHARACTERS}, {WIDTH}), "float32"), w: R.Tensor(({4 * HIDDEN}, {WIDTH}), "float32"),
    u: R.Tensor(({4 * HIDDEN}, {HIDDEN}), "float32"), p: R.Tensor(({4 * HIDDEN},), "float32"),
    q: R.Tensor(({4 * HIDDEN},), "float32"), o: R.Tensor(({CHARACTERS}, {HIDDEN}), "float32"),
    x: R.Tensor(("t", "b"), "int64"), y: R.Tensor(("t", "b"), "int64"),
) -> R.Tensor((), "float32"):
    t, b = T.int64(), T.int64()
    done = R.nn.lstm(R.take(e, x, axis=0), (w, u, p, q))
    scores = R.reshape(R.linear(done[0], o), (t * b, {CHARACTERS}))
    return R.nn.nll_loss(R.nn.log_softmax(scores), R.reshape(y, (t * b,)))
""")
    rows = 4 * HIDDEN
    shapes = (
        (CHARACTERS, WIDTH),
        (rows, WIDTH),
        (rows, HIDDEN),
        (rows,),
        (rows,),
        (CHARACTERS, HIDDEN),
    )
    weights = [RNG.uniform(-0.8, 0.8, shape).astype(np.float32) for shape in shapes]
    both = relaxpy.value_and_grad(mod.main, tuple(range(6)))
    for length, batch in ((5, 3), (1, 1)):
        x, y = RNG.integers(0, CHARACTERS, (2, length, batch))
        value, grads = both(*weights, x, y)
        theirs = [torch.tensor(each, requires_grad=True) for each in weights]
        functional: Any = torch.nn.functional
        zeros = torch.zeros((1, batch, HIDDEN))
        found: Any = torch.lstm(
            theirs[0][torch.tensor(x)],
            (zeros, zeros),
            theirs[1:5],
            True,
            1,
            0.0,
            True,
            False,
            False,
        )
        loss = functional.cross_entropy(
            (found[0] @ theirs[5].T).reshape(-1, CHARACTERS), torch.tensor(y).reshape(-1)
        )
        loss.backward()
        np.testing.assert_allclose(value.numpy(), loss.detach().numpy(), rtol=1e-5)
        for got, want in zip(grads, theirs, strict=True):
            assert want.grad is not None
            np.testing.assert_allclose(got.numpy(), want.grad.numpy(), rtol=1e-4, atol=1e-6)
