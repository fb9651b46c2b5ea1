"""Linear layers, embeddings, and the layers that do nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from tests.sweeps import quick_target


class Layers(nn.Module):
    """One method a layer, so that they share one build."""

    def __init__(self) -> None:
        self.fc = nn.Linear(4, 3)
        self.plain = nn.Linear(4, 3, bias=False)
        self.norm = nn.LayerNorm(4, eps=1e-3)
        self.rms = nn.RMSNorm(4, eps=1e-3)
        self.table = nn.Embedding(7, 4)
        self.row = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def linear(self, x: nn.Tensor) -> Any:
        return self.fc(x), self.plain(x)

    def layer_norm(self, x: nn.Tensor) -> nn.Tensor:
        return self.norm(x)

    def rms_norm(self, x: nn.Tensor) -> nn.Tensor:
        return self.rms(x)

    def embedding(self, indices: nn.Tensor) -> nn.Tensor:
        return self.table(indices)

    def in_a_row(self, x: nn.Tensor) -> nn.Tensor:
        return self.row(x)


X = nn.spec.Tensor(("n", "m", 4), "float32")
SPEC = {
    "linear": {"x": X},
    "layer_norm": {"x": X},
    "rms_norm": {"x": X},
    "embedding": {"indices": nn.spec.Tensor(("n",), "int64")},
    "in_a_row": {"x": X},
}


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(p.shape, dtype=np.float32)
        for name, p in Layers().named_parameters()
    }


@pytest.fixture(scope="module")
def vm(weights: dict[str, np.ndarray]) -> relaxpy.VirtualMachine:
    model = Layers()
    model.load(weights)
    mod, params = model.export(SPEC)
    return relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params=params))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, 5, 4), dtype=np.float32)


def test_linear(vm: relaxpy.VirtualMachine, weights: dict[str, np.ndarray], x: np.ndarray) -> None:
    """The weight is (out, in); without a bias, the product alone."""
    with_bias, without = vm["linear"](x)
    np.testing.assert_allclose(
        with_bias.numpy(), x @ weights["fc.weight"].T + weights["fc.bias"], atol=1e-5, rtol=0
    )
    np.testing.assert_allclose(without.numpy(), x @ weights["plain.weight"].T, atol=1e-5, rtol=0)


def test_layer_norm(
    vm: relaxpy.VirtualMachine, weights: dict[str, np.ndarray], x: np.ndarray
) -> None:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    expected = (x - mean) / np.sqrt(variance + 1e-3) * weights["norm.weight"] + weights["norm.bias"]
    np.testing.assert_allclose(vm["layer_norm"](x).numpy(), expected, atol=1e-5, rtol=0)


def test_rms_norm(
    vm: relaxpy.VirtualMachine, weights: dict[str, np.ndarray], x: np.ndarray
) -> None:
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * weights["rms.weight"]
    np.testing.assert_allclose(vm["rms_norm"](x).numpy(), expected, atol=1e-5, rtol=0)


def test_embedding(vm: relaxpy.VirtualMachine, weights: dict[str, np.ndarray]) -> None:
    indices = np.array([6, 0, 3, 3])
    np.testing.assert_array_equal(
        vm["embedding"](indices).numpy(), weights["table.weight"][indices]
    )


def test_module_list(
    vm: relaxpy.VirtualMachine, weights: dict[str, np.ndarray], x: np.ndarray
) -> None:
    expected = x
    for i in (0, 1):
        expected = expected @ weights[f"row.{i}.weight"].T + weights[f"row.{i}.bias"]
    np.testing.assert_allclose(vm["in_a_row"](x).numpy(), expected, atol=1e-5, rtol=0)
