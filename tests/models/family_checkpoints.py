"""Tiny checkpoints of every family, written by transformers with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

SIZES = {
    "vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
TOKENS = {name: SIZES[name] for name in SIZES if name.endswith(("_id", "vocab_size"))}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
FAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 9}),
    "mistral without a window": ("Mistral", {"sliding_window": None, "rope_parameters": LINEAR}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen2 without a window": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"rms_norm_eps": 1e-3}),
    "gemma": ("Gemma", {}),
    "gemma2": (
        "Gemma2",
        {
            "sliding_window": 7, "query_pre_attn_scalar": 40, "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
        },
    ),
    "gemma3": ("Gemma3", {"sliding_window": 5, "rope_parameters": FAR, "query_pre_attn_scalar": 30}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_moe with windows": (
        "Qwen3Moe",
        {
            "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 2,
            "use_sliding_window": True, "sliding_window": 6,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 7, "swiglu_limit": 0.5,
            "rope_parameters": {
                "rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0, "truncate": False,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "gpt2": (
        "GPT2",
        {"n_embd": 32, "n_inner": 48, "n_layer": 3, "n_head": 4, "n_positions": 128, "layer_norm_epsilon": 1e-3},
    ),
    "gpt2 of usual width": (
        "GPT2",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "activation_function": "relu"},
    ),
    "gpt_neox": ("GPTNeoX", {"num_key_value_heads": None, "head_dim": None}),
    "gpt_neox one after the other": (
        "GPTNeoX",
        {
            "num_key_value_heads": None, "head_dim": None, "use_parallel_residual": False, "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 11}),
    "phi3 in part": (
        "Phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    ),
}  # fmt: skip
"""By name: the class of transformers, and settings beside the sizes."""


def checkpoint(name: str, folder: Path, **more: Any) -> Any:
    """A model of transformers with random weights, written to the folder."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")

    kind, settings = CASES[name]
    suffix = "Text" if kind == "Gemma3" else ""
    sizes = TOKENS if kind == "GPT2" else SIZES
    config = getattr(transformers, f"{kind}{suffix}Config")(**{**sizes, **settings, **more})
    if kind == "Gemma3":
        config.layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config._attn_implementation = "eager"  # the only one with a soft cap
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for own, weight in model.named_parameters():
            # Norms and biases start with numbers that would hide mistakes.
            weight.copy_(torch.randn_like(weight) * 0.2 + (_is_norm(own) and "emma" not in kind))
    model.save_pretrained(folder)
    return model


def _is_norm(name: str) -> bool:
    return name.endswith("weight") and ("norm" in name or "ln_" in name)


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([length, seed]).integers(0, SIZES["vocab_size"], length)
