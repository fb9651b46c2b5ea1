"""Tiny checkpoints of Whisper, written by transformers with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

SIZES = {
    "vocab_size": 131, "num_mel_bins": 80, "encoder_layers": 2, "encoder_attention_heads": 3, "decoder_layers": 2,
    "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "encoder_ffn_dim": 96, "d_model": 48,
    "max_source_positions": 75, "max_target_positions": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3, "suppress_tokens": None, "begin_suppress_tokens": None, "init_std": 0.3,
}  # fmt: skip
FRAMES = 2 * SIZES["max_source_positions"]  # type: ignore[operator]


def whisper(folder: Path, **more: Any) -> Any:
    """A model of transformers, written to the folder. Its logits are of size 10: large enough that texts differ."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.WhisperConfig(**{**SIZES, **more})
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return model


def sound(rng: np.random.Generator, frames: int = FRAMES, mels: int = 80) -> np.ndarray:
    """Random log-mel features."""
    return rng.standard_normal((mels, frames)).astype(np.float32)


def logits(model: Any, features: np.ndarray, tokens: Any) -> np.ndarray:
    """The logits (tokens, vocabulary) by transformers."""
    torch: Any = pytest.importorskip("torch")
    with torch.no_grad():
        given = torch.from_numpy(features[None]), torch.tensor([[*tokens]])
        return model(given[0], decoder_input_ids=given[1]).logits[0].float().numpy()


def greedy(
    model: Any, features: np.ndarray, prompt: Any, count: int, hidden: Any = (), first: Any = ()
) -> tuple[int, ...]:
    """The text that transformers' logits give: without the tokens `hidden`, and at first without those of `first`."""
    text = [*prompt]
    for _ in range(count):
        row = logits(model, features, text)[-1].copy()
        row[[*hidden, *(first if len(text) == len(prompt) else ())]] = -np.inf
        text.append(int(row.argmax()))
        if text[-1] == 2:
            break
    return tuple(text[len(prompt) :])
