"""Random checkpoints of LLaVA by transformers, in odd sizes, and what transformers makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.models.loaded import Scheme
from tests.sweeps import quick_target

IMAGE = 320
"""The token that stands for places of a picture."""
TOWER = {
    "hidden_size": 26,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 38,
    "patch_size": 7,
}
TEXT = {
    "vocab_size": 323, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "llava": {
        "vision_config": {"model_type": "clip_vision_model", "image_size": 23, "projection_dim": 13, **TOWER},
        "text_config": {"model_type": "llama", **TEXT},
    },
    "full, all layers, no bias": {
        "vision_config": {"model_type": "clip_vision_model", "image_size": 16, "projection_dim": 13, **TOWER},
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": False,
    },
    "siglip": {
        "vision_config": {"model_type": "siglip_vision_model", "image_size": 23, **TOWER},
        "text_config": {"model_type": "mistral", "head_dim": 8, **TEXT},
        "vision_feature_select_strategy": "full",
        "projector_hidden_act": "gelu_pytorch_tanh",
    },
}  # fmt: skip


SCHEME = Scheme(bits=None, activations=None)
TARGET = str(quick_target())
"""Of tests that need no others: one executable is built for all of them."""


def reference(name: str) -> Any:
    """transformers' model of a case, with random weights of a size that hides no mistake."""
    import torch
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(5)
    torch.set_num_threads(1)
    config = LlavaConfig(**CASES[name], image_token_id=IMAGE)
    model = LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for place, weight in model.named_parameters():
            one = "norm" in place and place.endswith("weight")
            weight.copy_(torch.randn_like(weight) * 0.2 + float(one))
    return model


def write(name: str, place: Path) -> Any:
    """The same, saved in a folder."""
    model = reference(name)
    model.save_pretrained(place)
    side = CASES[name]["vision_config"]["image_size"]
    settings = {
        "size": {"height": side, "width": side},
        "crop_size": {"height": side, "width": side},
    }
    (place / "preprocessor_config.json").write_text(
        json.dumps({**settings, "image_processor_type": "CLIPImageProcessor"})
    )
    return model


TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""That of LLaVA 1.5."""


def write_tokenizer(place: Path) -> None:
    """A tokenizer with the placeholder of pictures, and the chat template."""
    from tokenizers import Tokenizer

    from tests.llm.checkpoints import byte_level

    tokenizer = Tokenizer.from_str(byte_level(IMAGE))
    tokenizer.add_special_tokens(["<image>"])
    assert tokenizer.token_to_id("<image>") == IMAGE
    tokenizer.save(str(place / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "image_token": "<image>",
    }  # fmt: skip
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    (place / "chat_template.jinja").write_text(TEMPLATE)


def pixels(name: str, seed: int) -> np.ndarray:
    """A random picture (1, 3, height, width), as it is after the processor."""
    side = CASES[name]["vision_config"]["image_size"]
    return np.random.default_rng(seed).standard_normal((1, 3, side, side)).astype(np.float32)


def tokens_of(name: str) -> int:
    """The tokens of a picture."""
    config = CASES[name]
    patches = (config["vision_config"]["image_size"] // TOWER["patch_size"]) ** 2
    is_clip = config["vision_config"]["model_type"] == "clip_vision_model"
    return (
        patches + is_clip - (config.get("vision_feature_select_strategy", "default") == "default")
    )


def logits(model: Any, prompt: list[int], pictures: list[np.ndarray]) -> np.ndarray:
    """transformers' logits after each token of a prompt (tokens, vocabulary)."""
    import torch

    given: dict[str, Any] = {"input_ids": torch.tensor([prompt])}
    if pictures:
        given["pixel_values"] = torch.from_numpy(np.concatenate(pictures))
    with torch.no_grad():
        return model(**given).logits[0].numpy()
