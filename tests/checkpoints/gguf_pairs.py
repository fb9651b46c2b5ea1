"""Pairs of GGUF files of random LLaVAs, written as llama.cpp's converters write them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from relaxpy.models.checkpoint import read_weights
from tests.checkpoints.gguf_files import write_gguf
from tests.models.llava_checkpoints import IMAGE, TEMPLATE

_NAMES = {
    "encoder.layers": "blk", "embeddings.": "", "_proj.": ".", "self_attn.": "attn_",
    "layer_norm": "ln", "layrnorm": "ln", "mlp.fc1": "ffn_down", "mlp.fc2": "ffn_up", "embedding": "embd",
    "multi_modal_projector.linear_1": "mm.0", "multi_modal_projector.linear_2": "mm.2",
}  # fmt: skip
"""What the older converter replaces in transformers' names, in this order."""


def f16(_name: str, array: np.ndarray) -> Kind:
    """As most are published: matrices in 2 bytes."""
    return Kind.F16 if array.ndim > 1 else Kind.F32


def q8_0(_name: str, array: np.ndarray) -> Kind:
    """Matrices in 8 bits, where blocks fit."""
    return Kind.F32 if array.ndim == 1 else Kind.F16 if array.shape[-1] % 32 else Kind.Q8_0


def write_pair(
    hf: Path,
    place: Path,
    kind: Callable[[str, np.ndarray], Kind] = lambda _name, _array: Kind.F32,
    vocabulary: Callable[[gguf.GGUFWriter], None] | None = None,
    new_names: bool = False,
    **changes: Any,
) -> tuple[Path, Path, dict[str, np.ndarray]]:
    """The pair of the LLaVA in a folder, `model.gguf` and `mmproj.gguf`, and its tensors as they are after they were
    rounded, by transformers' names. `changes` are fields of the projector after `clip.`, `__` for a dot; None: without
    it. With `new_names` the feed-forward networks have the names of the converters of today."""
    config = json.loads((hf / "config.json").read_text())
    tensors = read_weights(hf)
    texts = {
        name.replace("language_model.", ""): x
        for name, x in tensors.items()
        if name.startswith("language_model.")
    }
    model, mmproj = place / "model.gguf", place / "mmproj.gguf"
    rounded = write_gguf(model, config["text_config"], texts, more=vocabulary or add_vocabulary)
    layers = (
        config["vision_config"]["num_hidden_layers"] + 1 + config.get("vision_feature_layer", -2)
    )
    writer = gguf.GGUFWriter(mmproj, "clip")
    for key, value in {**projector_fields(config["vision_config"], layers), **changes}.items():
        _add(writer, f"clip.{key.replace('__', '.')}", value)
    for name, array in tensors.items():
        if name in _left_out(tensors, layers) or name.startswith("language_model."):
            continue
        own = name.replace(".vision_model.", ".").replace("vision_tower.", "v.")
        for theirs, ours in _NAMES.items():
            own = own.replace(theirs, ours)
        own = _exchanged(own) if new_names else own
        array = np.ascontiguousarray(array, np.float32)
        data = gguf.quantize(array, chosen := kind(own, array))
        writer.add_tensor(own, data, raw_dtype=chosen)
        rounded[name] = gguf.dequantize(data, chosen).reshape(array.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, mmproj, rounded


def projector_fields(vision: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The fields of a projector's file."""
    act = vision.get("hidden_act", "quick_gelu")
    return {
        "has_text_encoder": False, "has_vision_encoder": True, "has_llava_projector": True, "projector_type": "mlp",
        "vision.image_size": vision["image_size"], "vision.patch_size": vision["patch_size"],
        "vision.embedding_length": vision["hidden_size"], "vision.feed_forward_length": vision["intermediate_size"],
        "vision.projection_dim": vision.get("projection_dim", 0), "vision.block_count": layers,
        "vision.attention.head_count": vision["num_attention_heads"],
        "vision.attention.layer_norm_epsilon": float(vision["layer_norm_eps"]),
        "vision.image_mean": [0.48145466, 0.4578275, 0.40821073],
        "vision.image_std": [0.26862954, 0.26130258, 0.27577711], "use_gelu": act != "quick_gelu",
    }  # fmt: skip


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
        list: writer.add_array,
    }  # fmt: skip
    if value is not None:
        adders[type(value)](key, value)


def _exchanged(name: str) -> str:
    return name.replace("ffn_down", "-").replace("ffn_up", "ffn_down").replace("-", "ffn_up")


def _left_out(tensors: Mapping[str, np.ndarray], layers: int) -> set[str]:
    """What the converter leaves out: the last layers, and what makes one vector of a picture."""
    found = {name for name in tensors if "post_layernorm" in name or ".head." in name}
    inside = {name: re.search(r"encoder\.layers\.(\d+)\.", name) for name in tensors}
    return found | {name for name, place in inside.items() if place and int(place[1]) >= layers}


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """The tokenizer of `tests.models.llava_checkpoints.write_tokenizer`, with the template."""
    add_tokens(writer, "<image>")
    writer.add_chat_template(TEMPLATE)


def add_tokens(writer: gguf.GGUFWriter, *more: str) -> None:
    """The same without the template, and with other tokens after those of texts."""
    from tests.llm.checkpoints import byte_level

    fields = json.loads(byte_level(IMAGE))
    vocab = sorted(fields["model"]["vocab"], key=fields["model"]["vocab"].get)
    control = {*more, *(each["content"] for each in fields["added_tokens"])}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*vocab, *more])
    writer.add_token_types([3 if each in control else 1 for each in (*vocab, *more)])
    merges = fields["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    for name, add in (
        ("<s>", writer.add_bos_token_id), ("</s>", writer.add_eos_token_id), ("<unk>", writer.add_unk_token_id),
    ):  # fmt: skip
        if name in vocab:
            add(vocab.index(name))
    writer.add_add_bos_token(False)
