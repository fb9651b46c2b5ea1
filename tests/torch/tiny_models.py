"""Every model type of transformers, tiny, by one rule: fields of its configuration are shrunk by their names, inputs are
made by the names of `forward`'s parameters."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

SMALL: tuple[tuple[str, int], ...] = (
    (r"num_hidden_layers|num_layers|n_layers?|depth|num_\w*_layers|\w+_layers", 2),
    (r"(num_|n_)?(key_value|kv)_heads?|num_kv_heads|num_key_value_heads|n_kv_heads?|multi_query_group_num", 2),
    (r"(\w+_)?(num_|n_)?(attention_)?heads?|n_head|num_attention_heads|\w+_attention_heads", 4),
    (r"(\w+_)?head_dim|d_kv|(\w+_)?head_size|qk_nope_head_dim|qk_rope_head_dim|v_head_dim|d_head|kv_channels", 8),
    (r"vocab_size|\w*vocab_size\w*", 99),
    (r"max_position_embeddings|n_positions|max_\w*positions|max_sequence_length|max_\w*position\w*|n_ctx|seq_length|max_seq_len\w*", 64),
    (r"intermediate_size|d_ff|ffn_dim|\w*ffn_dim|n_inner|\w*intermediate_size|ffn_hidden_size|dim_feedforward|\w*ffn_size|\w*mlp_dim", 64),
    (r"hidden_size|d_model|n_embd|(\w+_)?embed_dim|hidden_dim|dim|\w*hidden_size|embedding_size|\w*embedding_size|projection_dim|\w*hidden_dim|d_embed|embed_dim|\w*embed_size|\w*channels_hidden", 32),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts|\w*num_experts", 4),
    (r"num_experts_per_tok(en)?|\w*top_?k|num_selected_experts", 2),
    (r"n_group|topk_group|first_k_dense_replace|n_shared_experts|num_nextn_predict_layers", 1),
    (r"q_lora_rank|kv_lora_rank|\w*lora_rank", 16),
    (r"image_size|crop_size|input_size", 32),
    (r"patch_size|tubelet_size", 8),
    (r"num_frames", 2),
    (r"num_mel_bins|feature_size|input_feat_per_channel|n_mels", 16),
    (r"max_source_positions|max_target_positions", 64),
    (r"num_queries|num_query_tokens|num_latents", 6),
    (r"type_vocab_size", 2),
    (r"sliding_window|attention_window|window_size|local_attention|chunk_size", 4),
    (r"num_buckets|relative_attention_num_buckets", 8),
    (r"state_size|mamba_d_state|ssm_state_size|conv_kernel_size|num_conv_pos_embeddings", 4),
    (r"num_conv_pos_embedding_groups", 2),
    (r"num_labels", 3),
)  # fmt: skip
"""Names of fields → their small value; the first that fits."""

SMALL_LIST = {
    r"depths|layer_depths": 1,
    r"num_heads|num_attention_heads": 2,
    r"hidden_sizes|embed_dims?|out_features_dims|channels|encoder_hidden_sizes|block_out_channels": 16,
    r"conv_dim": 16,
}
"""Names of lists of integers → the small value of each (sizes grow, as 16, 32, …)."""

TOKENS = (
    "pad",
    "bos",
    "eos",
    "decoder_start",
    "sep",
    "cls",
    "mask",
    "unk",
    "image",
    "video",
    "audio",
    "boi",
    "eoi",
)


def _small(name: str, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if name.endswith(("token_id", "token_index", "_id")):
            return min(value, 90 + len(name) % 8)
        for pattern, small in SMALL:
            if re.fullmatch(pattern, name):
                return min(value, small)
        return value
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
        for pattern, small in SMALL_LIST.items():
            if re.fullmatch(pattern, name):
                if small == 16:
                    return type(value)(
                        16 * 2**i if name != "conv_dim" else 16 for i in range(len(value))
                    )
                return type(value)(min(v, small) for v in value)
        if "token_id" in name:
            return type(value)(min(v, 90) for v in value)
    return value


def tiny_config(cls: type) -> Any:
    """A small configuration of this class."""
    plain = cls()
    return cls(**_fields(cls, plain))


def _fields(cls: type, plain: Any) -> dict[str, Any]:
    names = [
        n for n in inspect.signature(cls.__init__).parameters if n not in ("self", "kwargs", "args")
    ]
    subs = getattr(cls, "sub_configs", None) or {}
    given: dict[str, Any] = {}
    for name in names:
        value = getattr(plain, name, None)
        if name in subs:
            sub = type(value) if hasattr(value, "to_dict") else subs[name]
            if value is not None and hasattr(sub, "model_type") and sub.__name__ != "AutoConfig":
                given[name] = _fields(sub, value)
                if sub.model_type:
                    given[name]["model_type"] = sub.model_type
            continue
        if hasattr(value, "to_dict"):
            continue
        small = _small(name, value)
        if name == "layer_types" and isinstance(value, (list, tuple)):
            small = list(dict.fromkeys(value))[:2]
            small = (small * 2)[:2]
        if small != value:
            given[name] = small
    return given


@dataclass(frozen=True)
class Tiny:
    """A tiny model and how it is called."""

    model: torch.nn.Module
    inputs: Mapping[str, Any]
    """One call."""
    sizes: Mapping[str, Mapping[int, str]]
    """Which sizes vary, by name."""
    config: Any

    def call(self, batch: int, length: int) -> dict[str, Any]:
        return make_inputs(self.model, self.config, batch, length)[0]


def tiny_model(kind: str) -> Tiny:
    """The tiny model of a type of transformers."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    config_class = CONFIG_MAPPING[kind]
    model_class = MODEL_MAPPING[config_class]
    if isinstance(model_class, (tuple, list)):
        model_class = model_class[0]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        config = tiny_config(config_class)
        config._attn_implementation = "sdpa" if model_class._supports_sdpa else "eager"
        model = model_class(config).eval()
    if sum(p.numel() for p in model.parameters()) > 20_000_000:
        raise ValueError("not tiny")
    inputs, sizes = make_inputs(model, config, 3, 11)
    return Tiny(model, inputs, sizes, config)


def _find(config: Any, *names: str) -> Any:
    """A field of a configuration, or of one inside it."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    for sub in vars(config).values():
        if hasattr(sub, "to_dict"):
            found = _find(sub, *names)
            if found is not None:
                return found
    return None


def make_inputs(
    model: Any, config: Any, batch: int, length: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of `forward` by name, and the sizes that vary."""
    rng = torch.Generator().manual_seed(batch * 1000 + length)
    names = inspect.signature(model.forward).parameters
    vocab = _find(config, "vocab_size") or 99
    vocab = min(vocab, 80)
    image = _find(config, "image_size", "img_size") or 32
    image = image if isinstance(image, (tuple, list)) else (image, image)
    channels = _find(config, "num_channels", "in_channels", "in_chans") or 3
    ids = lambda n: torch.randint(3, vocab, (batch, n), generator=rng)
    made: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    if ("input_ids" in names and "inputs_embeds" not in names) or "input_ids" in names:
        made["input_ids"], sizes["input_ids"] = ids(length), {0: "batch", 1: "length"}
        if "attention_mask" in names:
            mask = torch.ones(batch, length, dtype=torch.long)
            if batch > 1 and length > 2:
                mask[0, -2:] = 0
            made["attention_mask"], sizes["attention_mask"] = mask, {0: "batch", 1: "length"}
        if "bbox" in names:
            made["bbox"] = torch.randint(0, 9, (batch, length, 4), generator=rng).sort(-1).values
            sizes["bbox"] = {0: "batch", 1: "length"}
    if "decoder_input_ids" in names:
        made["decoder_input_ids"], sizes["decoder_input_ids"] = (
            ids(length),
            {0: "batch", 1: "length"},
        )
    if "pixel_values" in names:
        made["pixel_values"] = torch.randn(batch, channels, *image[:2], generator=rng)
        sizes["pixel_values"] = {0: "batch"}
    if "pixel_values_videos" in names and "pixel_values" not in names:
        frames = _find(config, "num_frames", "frames_per_clip") or 2
        made["pixel_values_videos"] = torch.randn(
            batch, frames, channels, *image[:2], generator=rng
        )
        sizes["pixel_values_videos"] = {0: "batch"}
    if "input_values" in names and "input_ids" not in names:
        made["input_values"] = torch.randn(batch, 1200 + 100 * length, generator=rng)
        sizes["input_values"] = {0: "batch", 1: "samples"}
    if "input_features" in names and "input_ids" not in names:
        mels = (
            _find(
                config,
                "num_mel_bins",
                "feature_size",
                "input_feat_per_channel",
                "feature_projection_input_dim",
            )
            or 16
        )
        frames = 2 * (_find(config, "max_source_positions") or 32)
        if (
            (getattr(model, "main_input_name", "") == "input_features")
            and "conv1" in str(model)[:4000]
            and "whisper" in config.model_type
        ):
            made["input_features"], sizes["input_features"] = (
                torch.randn(batch, mels, frames, generator=rng),
                {0: "batch"},
            )
        else:
            made["input_features"] = torch.randn(batch, 40 + 4 * length, mels, generator=rng)
            sizes["input_features"] = {0: "batch", 1: "frames"}
    if "use_cache" in names:
        made["use_cache"] = False
    if not any(isinstance(v, torch.Tensor) for v in made.values()):
        raise ValueError(f"no inputs for {sorted(names)}")
    sizes |= {name: None for name in made if name not in sizes}
    return made, sizes


def kinds() -> list[str]:
    """All types of the installed transformers that have a model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(kind for kind in CONFIG_MAPPING if kind in MODEL_MAPPING_NAMES)
