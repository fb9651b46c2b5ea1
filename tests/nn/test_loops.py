"""Loops in `forward`."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.analysis.well_formed import well_formed
from relaxpy.errors import RelaxError
from relaxpy.ir.dim import dim_op
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.nn import op, spec


class Iterated(nn.Module):
    """A layer that is applied as often as a row says, or until its result is small."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: nn.Tensor, times: int) -> tuple[nn.Tensor, nn.Tensor]:
        def body(i, y, rows):
            y = op.tanh(self.layer(y)) + x
            return i + 1, y, op.concat([rows, y[:1]])

        i, y, rows = op.while_loop(lambda i, y, rows: dim_op("lt", i, times), body, (0, x, x[:1]))
        (z,) = op.while_loop(lambda z: op.greater(op.sum(op.abs(z)), 0.5), lambda z: z * 0.5, (y,))
        return z * i, rows


def test_a_model_with_loops() -> None:
    model = Iterated()
    mod, _ = model.export({"forward": {"x": spec.Tensor(["n", 5], "float32"), "times": spec.Int()}})
    assert well_formed(mod) == []
    assert_structural_equal(mod, relaxpy.parse(mod.script()))
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((5, 5)) / 3, rng.standard_normal(5)
    w, b = w.astype(np.float32), b.astype(np.float32)
    exe = relaxpy.build(mod, params={"layer_weight": w, "layer_bias": b})
    forward = relaxpy.VirtualMachine(exe)["forward"]
    for n, times in ((3, 0), (3, 4), (1, 1)):
        x = rng.standard_normal((n, 5)).astype(np.float32)
        y, rows = x, [x[:1]]
        for _ in range(times):
            y = np.tanh(y @ w.T + b) + x
            rows.append(y[:1])
        while np.abs(y).sum() > 0.5:
            y = y * np.float32(0.5)
        found, kept = forward(x, times)
        np.testing.assert_allclose(found.numpy(), y * times, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(kept.numpy(), np.concatenate(rows), rtol=1e-4, atol=1e-5)


def test_a_variable_of_another_type_is_located() -> None:
    class Wrong(nn.Module):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return op.while_loop(
                lambda y: op.less(op.sum(y), 1), lambda y: op.astype(y, "float64"), (x,)
            )[0]

    with pytest.raises(RelaxError, match="loop-variable") as caught:
        Wrong().export({"forward": {"x": spec.Tensor(["n"], "float32")}})
    assert "test_loops.py" in str(caught.value)
