"""Rotary embeddings: frequencies against transformers, rotation against complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.nn.rotary import LinearScaling, Llama3Scaling, Rope, rotate
from relaxpy.testing.interpret import interpret
from tests.sweeps import quick_target

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
        ({"rope_type": "yarns"}, "unknown type of rotary embeddings 'yarns'"),
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
    return relaxpy.VirtualMachine(relaxpy.build(mod, quick_target()))["forward"]


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


SCALED: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "partial": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "rope_theta": 5e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "beta_fast": 16,
        "truncate": False,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + i / 16 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 16,
    },
}
"""`rope_parameters` of a model with heads of width 16 and 64 positions."""


class Angles(nn.Module):
    """The angles of all scalings, for positions from `past` on, and given as a tensor."""

    def __init__(self) -> None:
        self.ropes = {
            name: Rope.from_dict({"rope_parameters": given, "max_position_embeddings": 64})
            for name, given in SCALED.items()
        }

    def forward(self, x: nn.Tensor, past: Any) -> Any:
        return tuple(rope.angles(past, x.shape[0], 16) for rope in self.ropes.values())

    def given(self, positions: nn.Tensor) -> Any:
        return tuple(rope.angles_at(positions, 16) for rope in self.ropes.values())


@pytest.fixture(scope="module")
def angles() -> Any:
    specs = {
        "forward": {"x": nn.spec.Tensor(("n",), "int8"), "past": nn.spec.Int()},
        "given": {"positions": nn.spec.Tensor(("b", "n"), "int64")},
    }
    mod, _ = Angles().export(specs)
    relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)
    return mod, relaxpy.VirtualMachine(relaxpy.build(mod, quick_target()))


@pytest.mark.parametrize(("past", "count"), [(0, 5), (14, 2), (15, 2), (63, 1), (60, 40)])
def test_angles_are_those_of_transformers(angles: Any, past: int, count: int) -> None:
    """Before and after the length from which dynamic NTK and LongRoPE scale."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    _, vm = angles
    found = vm["forward"](np.zeros(count, np.int8), past)
    positions = np.arange(past, past + count)[None]
    also = vm["given"](positions)
    for name, ours, given in zip(SCALED, found, also, strict=True):
        config = LlamaConfig(
            hidden_size=32,
            num_attention_heads=2,
            max_position_embeddings=64,
            rope_parameters=dict(SCALED[name]),
        )
        theirs = LlamaRotaryEmbedding(config)
        if name == "partial":  # Llama's own default takes no part of a head
            half = LlamaConfig(hidden_size=16, num_attention_heads=2, rope_parameters=None)
            theirs = LlamaRotaryEmbedding(half)
        expected = theirs(torch.zeros(1), torch.from_numpy(positions))
        for part, direct, wanted in zip(ours, given, expected, strict=True):
            pairs = wanted[0].numpy()[:, None, : wanted.shape[-1] // 2]
            np.testing.assert_allclose(part.numpy(), pairs, atol=3e-5, err_msg=name)
            np.testing.assert_allclose(direct.numpy()[0], pairs, atol=3e-5, err_msg=name)


def test_angles_of_the_interpreter(angles: Any) -> None:
    mod, vm = angles
    x = np.zeros(3, np.int8)
    for ours, wanted in zip(interpret(mod, "forward", x, 62), vm["forward"](x, 62), strict=True):
        for a, b in zip(ours, wanted, strict=True):
            np.testing.assert_allclose(a, b.numpy(), atol=3e-5)


class Rotated(nn.Module):
    def __init__(self) -> None:
        self.whole = nn.RotaryEmbedding(8)
        self.half = nn.RotaryEmbedding(8, Rope(partial=0.5))
        self.neighbours = nn.RotaryEmbedding(8, interleaved=True)

    def forward(self, x: nn.Tensor) -> Any:
        return self.whole(x, 3), self.half(x, 3), self.neighbours(x, 3)


def test_parts_and_neighbours() -> None:
    """A part of a head stays; neighbours as pairs are the halves of a head in another order."""
    mod, _ = Rotated().export({"forward": {"x": nn.spec.Tensor(("b", "s", 2, 8))}})
    x = np.random.default_rng(0).standard_normal((1, 3, 2, 8), dtype=np.float32)
    whole, half, neighbours = interpret(mod, "forward", x)
    np.testing.assert_array_equal(half[..., 4:], x[..., 4:])
    assert np.abs(half[..., :4] - x[..., :4]).max() > 0.1
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    turned = interpret(mod, "forward", x[..., order])[0]
    np.testing.assert_allclose(neighbours[..., order], turned, atol=1e-6)
    assert whole.shape == x.shape


def test_fields_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="must be even, got 3 of 6"):
        nn.RotaryEmbedding(6, Rope(partial=0.5))
    with pytest.raises(UsageError, match="lack factor, max_position_embeddings"):
        Rope.from_dict({"rope_scaling": {"type": "dynamic"}})
    few = Rope.from_dict({"rope_parameters": SCALED["longrope"]})
    with pytest.raises(UsageError, match="have 8 factors"):
        few.frequencies(32)
