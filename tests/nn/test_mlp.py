"""Gated networks and mixtures of experts are those of transformers."""

from __future__ import annotations

import pytest

from relaxpy import nn
from relaxpy.errors import UsageError
from tests.nn.against_torch import Case, Layers, torch

pytest.importorskip("transformers")
SIZES = ({"b": 2, "n": 7}, {"b": 1, "n": 1}, {"b": 3, "n": 40}, {"b": 2, "n": 0})
"""With one token most experts have none."""


@pytest.fixture(scope="module")
def layers() -> Layers:
    from transformers import LlamaConfig, MixtralConfig, Qwen3MoeConfig
    from transformers.models.llama.modeling_llama import LlamaMLP
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    mixtral = MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
    qwen = Qwen3MoeConfig(
        **sizes,
        moe_intermediate_size=5,
        num_experts=6,
        num_experts_per_tok=3,
        norm_topk_prob=False,
        hidden_act="gelu",
    )
    for config in (mixtral, qwen):
        config._experts_implementation = "eager"
    pairs = {
        "swiglu": (nn.GatedMLP(8, 12), LlamaMLP(LlamaConfig(**sizes, hidden_act="silu"))),
        "geglu": (
            nn.GatedMLP(8, 12, "gelu_pytorch_tanh", bias=True),
            LlamaMLP(LlamaConfig(**sizes, hidden_act="gelu_pytorch_tanh", mlp_bias=True)),
        ),
        "mixtral": (nn.MixtureOfExperts(8, 12, 4, 2), MixtralSparseMoeBlock(mixtral)),
        "qwen3": (
            nn.MixtureOfExperts(8, 5, 6, 3, "gelu", normalize=False),
            Qwen3MoeSparseMoeBlock(qwen),
        ),
    }
    return Layers(
        {
            name: Case(ours, theirs, "b n 8", SIZES, atol=1e-5)
            for name, (ours, theirs) in pairs.items()
        }
    )


@pytest.mark.parametrize("name", ["swiglu", "geglu", "mixtral", "qwen3"])
def test_equals_transformers(layers: Layers, name: str) -> None:
    layers.check(name)


def test_wrong_options() -> None:
    with pytest.raises(UsageError, match="unknown activation 'gel'"):
        nn.GatedMLP(8, 12, "gel")
    with pytest.raises(UsageError, match="top_k must be from 1 to 4, got 5"):
        nn.MixtureOfExperts(8, 12, 4, 5)
    with pytest.raises(UsageError, match="missing: bias"):
        nn.Linear(2, 2).load_state_dict({"weight": torch.zeros(2, 2)})
