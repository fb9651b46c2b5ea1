"""Tiny checkpoints of models with an encoder, of random weights, and the texts of transformers beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.whisper_checkpoints import SIZES as WHISPER

_BART: dict[str, Any] = {
    "vocab_size": 97, "encoder_layers": 2, "encoder_attention_heads": 2, "decoder_layers": 2, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 56, "encoder_ffn_dim": 72, "d_model": 40, "max_position_embeddings": 48, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None, "init_std": 0.25,
}  # fmt: skip
_T5: dict[str, Any] = {
    "vocab_size": 97, "d_model": 40, "d_kv": 24, "d_ff": 56, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 3,
    "n_positions": 48, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "pad_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
MOONSHINE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 40, "intermediate_size": 56, "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2,
    "max_position_embeddings": 48, "initializer_range": 0.25, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
"""A head of 20 numbers, of which 18 are rotated."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "whisper": ("Whisper", WHISPER),
    "whisper of 128 mels": ("Whisper", {**WHISPER, "num_mel_bins": 128}),
    "moonshine": ("Moonshine", MOONSHINE),
    "bart": ("Bart", _BART),
    "mbart": ("MBart", {**_BART, "scale_embedding": True, "activation_function": "relu"}),
    "marian": ("Marian", {**_BART, "scale_embedding": True, "activation_function": "swish"}),
    "m2m_100": ("M2M100", _BART),
    "t5": ("T5", _T5),
    "flan-t5": ("T5", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5", _T5),
    "umt5": ("UMT5", _T5),
}
"""By name: the class of transformers, and the fields of the configuration."""
MARIAN = "MarianMTModel"


def class_of(name: str) -> Any:
    """The class of a case's model in transformers."""
    transformers: Any = pytest.importorskip("transformers")
    kind = CASES[name][0]
    return getattr(transformers, MARIAN if kind == "Marian" else f"{kind}ForConditionalGeneration")


def seq2seq(name: str, folder: Path) -> Any:
    """The model of a case, written to the folder. All that has a place in a checkpoint has numbers of its own."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    kind, sizes = CASES[name]
    model = class_of(name)(getattr(transformers, f"{kind}Config")(**sizes)).eval()
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    with torch.no_grad():
        for parameter, x in model.named_parameters():
            if "relative_attention_bias" in parameter or "groupnorm" in parameter:
                x.normal_()
        if name == "flan-t5":
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return model


def given_to(given: np.ndarray) -> Any:
    """An input as transformers takes a batch of it: features of sound have an axis of bands, samples none."""
    torch: Any = pytest.importorskip("torch")
    return torch.from_numpy(given if given.ndim == 2 and len(given) == 1 else given[None])
