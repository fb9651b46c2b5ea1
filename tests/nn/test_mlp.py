"""Gated networks and mixtures of experts are those of transformers."""

from __future__ import annotations

import pytest

from relaxpy import nn
from relaxpy.errors import UsageError
from tests.nn.against_torch import Case, Layers, torch

pytest.importorskip("transformers")
SIZES = ({"b": 2, "n": 7}, {"b": 1, "n": 1})


@pytest.fixture(scope="module")
def layers() -> Layers:
    from transformers import LlamaConfig, MixtralConfig
    from transformers.models.llama.modeling_llama import LlamaMLP
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    mixtral = MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
    theirs = MixtralSparseMoeBlock(mixtral)
    mixtral._experts_implementation = "eager"
    return Layers(
        {
            "gated": Case(
                nn.GatedMLP(8, 12, "gelu_pytorch_tanh"),
                LlamaMLP(LlamaConfig(**sizes, hidden_act="gelu_pytorch_tanh")),
                "b n 8",
                SIZES,
                atol=1e-4,
            ),
            "mixture": Case(nn.MixtureOfExperts(8, 12, 4, 2), theirs, "b n 8", SIZES, atol=1e-4),
        }
    )


@pytest.mark.parametrize("name", ["gated", "mixture"])
def test_equals_transformers(layers: Layers, name: str) -> None:
    layers.check(name)


def test_wrong_options() -> None:
    with pytest.raises(UsageError, match="unknown activation 'gel'"):
        nn.GatedMLP(8, 12, "gel")
    with pytest.raises(UsageError, match="top_k must be from 1 to 4, got 5"):
        nn.MixtureOfExperts(8, 12, 4, 5)
    with pytest.raises(UsageError, match="missing: bias"):
        nn.Linear(2, 2).load_state_dict({"weight": torch.zeros(2, 2)})
