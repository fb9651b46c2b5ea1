"""Rotary embeddings: frequencies against transformers, rotation against complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.models.rope import LinearScaling, Llama3Scaling, Rope, rotate

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {"rope_theta": 500000.0, **LLAMA3},
        {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0},
    ],
)
def test_frequencies_are_those_of_transformers(parameters: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=64, num_attention_heads=2, rope_parameters=parameters)
    expected = LlamaRotaryEmbedding(config).inv_freq.numpy()
    rope = Rope.from_dict({"rope_parameters": parameters})
    np.testing.assert_allclose(rope.frequencies(32), expected, rtol=1e-6)


def test_fields_of_older_configurations() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "type": "llama3"}}
    assert Rope.from_dict(old) == Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 64))
    assert Rope.from_dict({"rope_theta": 2e4, "rope_scaling": None}) == Rope(2e4)
    linear = Rope.from_dict({"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert linear == Rope(scaling=LinearScaling(2.0))
    assert Rope.from_dict({}) == Rope()


@pytest.mark.parametrize(
    ("scaling", "match"),
    [
        ({"rope_type": "yarn"}, "unknown type of rotary embeddings 'yarn'"),
        ({"rope_type": "linear"}, "lack factor"),
    ],
)
def test_scalings_that_are_refused(scaling: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Rope.from_dict({"rope_scaling": scaling})


class Turned(nn.Module):
    def forward(self, x: nn.Tensor, past: nn.Tensor) -> nn.Tensor:
        angles = Rope(100.0).angles(past.shape[0], x.shape[1], 6)
        return rotate(x, *angles)


@pytest.fixture(scope="module")
def turned() -> Any:
    x = nn.spec.Tensor(("b", "s", 3, 6), "float32")
    mod, _ = Turned().export({"forward": {"x": x, "past": nn.spec.Tensor(("p",), "int8")}})
    return relaxpy.VirtualMachine(relaxpy.build(mod))["forward"]


@pytest.mark.parametrize(("seq", "past"), [(1, 0), (5, 0), (3, 7), (1, 1000), (0, 4)])
def test_pairs_turn_like_complex_numbers(turned: Any, seq: int, past: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, seq, 3, 6), dtype=np.float32)
    found = turned(x, np.zeros(past, np.int8)).numpy()
    pairs = x[..., :3] + 1j * x[..., 3:].astype(np.float64)
    angles = np.arange(past, past + seq)[:, None] * Rope(100.0).frequencies(6).astype(np.float64)
    expected = pairs * np.exp(1j * angles)[:, None, :]
    np.testing.assert_allclose(
        found, np.concatenate([expected.real, expected.imag], -1), atol=1e-4 if past > 99 else 1e-6
    )
