"""Random checkpoints of models of pictures, by transformers, in odd sizes, and what transformers makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TOKENS = 41
END = 40
TEXTS = {
    "hidden_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 26, "vocab_size": TOKENS,
    "max_position_embeddings": 11, "eos_token_id": END,
}  # fmt: skip
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 23,
    "patch_size": 7,
}
"""Three patches a side, and two pixels that nobody reads."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTForImageClassification", {**SIZES, "intermediate_size": 37, "num_labels": 5}),
    "vit without a head": ("ViTModel", {**SIZES, "intermediate_size": 37, "qkv_bias": False, "image_size": [23, 17]}),
    "dinov2": ("Dinov2ForImageClassification", {**SIZES, "num_labels": 3}),
    "dinov2 with gates": ("Dinov2Model", {**SIZES, "use_swiglu_ffn": True}),
    "clip": (
        "CLIPModel",
        {"text_config": TEXTS, "vision_config": {**SIZES, "intermediate_size": 37}, "projection_dim": 13},
    ),
    "siglip": (
        "SiglipModel",
        {
            "text_config": {**TEXTS, "projection_size": 24},
            "vision_config": {**SIZES, "intermediate_size": 37},
        },
    ),
}  # fmt: skip


def reference(name: str) -> Any:
    """transformers' model of a case, with random weights of a size that hides no mistake."""
    import torch
    import transformers

    kind, settings = CASES[name]
    made: Any = getattr(transformers, kind)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = made(made.config_class(**settings)).eval()
    with torch.no_grad():
        for place, weight in model.named_parameters():
            one = ("norm" in place and place.endswith("weight")) or "lambda" in place
            if weight.ndim:
                weight.copy_(torch.randn_like(weight) * 0.2 + float(one))
    return model


def write(name: str, place: Path) -> Any:
    """The same, saved in a folder, with how pictures are resized, and a tokenizer of words where it reads texts."""
    model = reference(name)
    model.save_pretrained(place)
    height, width = (
        sides if isinstance(sides := CASES[name][1].get("image_size", 23), list) else (sides, sides)
    )
    settings: dict[str, Any] = {"size": {"height": height, "width": width}, "do_center_crop": False}
    (place / "preprocessor_config.json").write_text(json.dumps(settings))
    if hasattr(model.config, "text_config"):
        write_tokenizer(place)
    return model


def write_tokenizer(place: Path) -> None:
    """Words of colors and shapes; texts end with `END`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = "<pad> <unk> this is a photo of . red green blue gray circle square star".split()
    vocab = {word: number for number, word in enumerate(words)} | {"<end>": END}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", END)]
    )
    tokenizer.save(str(place / "tokenizer.json"))
    options = {"pad_token": {"content": "<pad>"}, "tokenizer_class": "PreTrainedTokenizerFast"}
    (place / "tokenizer_config.json").write_text(json.dumps(options))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)
