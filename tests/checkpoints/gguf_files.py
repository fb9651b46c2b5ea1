"""GGUF files of tiny models, written with the package gguf as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3, "gemma": gguf.MODEL_ARCH.GEMMA, "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3, "phi3": gguf.MODEL_ARCH.PHI3, "gpt2": gguf.MODEL_ARCH.GPT2,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
}  # fmt: skip


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    kind: Callable[[str, np.ndarray], Kind] = lambda *_: Kind.F32,
    more: Callable[[gguf.GGUFWriter], None] = lambda _: None,
    parts: int = 0,
) -> dict[str, np.ndarray]:
    """Write a model of transformers. `kind` gives the type of a tensor by the file's name; with `parts` it is in several
    files, of so many tensors each. Returns what the tensors are after quantisation, as transformers has them."""
    model = ARCHITECTURES[config["model_type"]]
    layers = config.get("num_hidden_layers") or config["n_layer"]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[model], split_max_tensors=parts)
    _metadata(writer, config, layers)
    more(writer)
    names = gguf.get_tensor_name_map(model, layers)
    rounded = {}

    def write(new: str, array: np.ndarray) -> np.ndarray:
        is_number = array.ndim == 1 or new.endswith(("bias", "ffn_gate_inp.weight"))
        array = np.ascontiguousarray(array, np.float32)
        own = Kind.F32 if is_number else kind(new, array)
        data = quantized(array, own)
        writer.add_tensor(new, data, raw_dtype=own)
        return gguf.dequantize(data, own).reshape(array.shape)

    for name, tensor in tensors.items():
        if ".experts." in name:
            continue
        base, own = (name, "weight") if name.endswith("sinks") else name.rsplit(".", 1)
        new = names.get_name(base)
        if new is None:
            raise KeyError(name)
        there, back = changed(config, name)
        rounded[name] = back(write(f"{new}.{own}", there(tensor)))
    for layer in range(layers):
        _write_experts(layer, tensors, rounded, write)
    for name, array in _factors(config).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rounded


def _write_experts(
    layer: int,
    tensors: Mapping[str, np.ndarray],
    rounded: dict[str, np.ndarray],
    write: Callable[[str, np.ndarray], np.ndarray],
) -> None:
    """Those of a layer: Qwen's are a tensor each, gpt-oss' gate and up are in turns."""
    place, new = f"model.layers.{layer}.mlp.experts", f"blk.{layer}.ffn"
    for own in ("gate", "up", "down"):
        names = [f"{place}.{e}.{own}_proj.weight" for e in range(len(tensors))]
        names = [name for name in names if name in tensors]
        if names:
            found = write(f"{new}_{own}_exps.weight", np.stack([tensors[n] for n in names]))
            rounded |= dict(zip(names, found, strict=True))
    for kind, end in (("weight", ""), ("bias", "_bias")):
        if f"{place}.gate_up_proj{end}" not in tensors:
            continue
        both, down = (tensors[f"{place}.{n}_proj{end}"] for n in ("gate_up", "down"))
        own = [both[..., ::2], both[..., 1::2], down]
        for n, each in enumerate(("gate", "up", "down")):
            array = own[n].swapaxes(1, 2) if kind == "weight" else own[n]
            found = write(f"{new}_{each}_exps.{kind}", array)
            own[n] = found.swapaxes(1, 2) if kind == "weight" else found
        joined = np.stack(own[:2], axis=-1)
        rounded[f"{place}.gate_up_proj{end}"] = joined.reshape(both.shape)
        rounded[f"{place}.down_proj{end}"] = own[2]


def quantized(array: np.ndarray, kind: Kind) -> np.ndarray:
    """The array in blocks. gguf writes no K-quants; there, random blocks of about the array's size."""
    try:
        return gguf.quantize(array, kind)
    except NotImplementedError:
        from relaxpy.checkpoints.gguf_blocks import TYPES
        from tests.checkpoints.test_gguf_blocks import random_blocks

        blocks = TYPES[int(kind)][1]
        assert not isinstance(blocks, str)
        data = random_blocks(blocks, array.shape)
        size = float(np.abs(gguf.dequantize(data, kind)).mean() / max(np.abs(array).mean(), 1e-9))
        pieces = data.reshape(-1, blocks.nbytes)
        for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(kind.name, (0, 2)):
            half = np.ascontiguousarray(pieces[:, at : at + 2]).view(np.float16)
            pieces[:, at : at + 2] = (half / size).astype(np.float16).view(np.uint8)
        return data.reshape(*array.shape[:-1], -1)


def changed(
    config: Mapping[str, Any], name: str
) -> tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]:
    """What llama.cpp's converter does with a tensor, and its inverse."""
    kind = config["model_type"]
    if kind in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]

        def there(x: np.ndarray) -> np.ndarray:
            parts = x.reshape(heads, 2, len(x) // heads // 2, *x.shape[1:])
            return parts.swapaxes(1, 2).reshape(x.shape)

        def back(x: np.ndarray) -> np.ndarray:
            parts = x.reshape(heads, len(x) // heads // 2, 2, *x.shape[1:])
            return parts.swapaxes(1, 2).reshape(x.shape)

        return there, back
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return lambda x: x + 1, lambda x: x - 1
    if kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return lambda x: x.T, lambda x: x.T
    if kind == "gpt_neox" and "query_key_value" in name:
        heads = config["num_attention_heads"]

        def apart(x: np.ndarray) -> np.ndarray:
            return x.reshape(heads, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)

        def together(x: np.ndarray) -> np.ndarray:
            return x.reshape(3, heads, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)

        return apart, together
    return lambda x: x, lambda x: x


def _metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any], layers: int) -> None:
    def of(*names: str) -> Any:
        return next((config[n] for n in names if config.get(n) is not None), None)

    hidden, heads = of("hidden_size", "n_embd"), of("num_attention_heads", "n_head")
    writer.add_context_length(of("max_position_embeddings", "n_positions"))
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(of("intermediate_size", "n_inner") or 4 * hidden)
    writer.add_head_count(heads)
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] != "gpt2":
        writer.add_head_count_kv(of("num_key_value_heads") or heads)
    if (eps := of("rms_norm_eps")) is not None:
        writer.add_layer_norm_rms_eps(eps)
    if (eps := of("layer_norm_eps", "layer_norm_epsilon")) is not None:
        writer.add_layer_norm_eps(eps)
    given = of("rope_parameters") or {}
    rope = given.get("full_attention", given)
    width = of("head_dim") or hidden // heads
    if of("head_dim"):
        writer.add_key_length(width)
        writer.add_value_length(width)
    if config["model_type"] != "gpt2":
        writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1) * width))
        writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if local := given.get("sliding_attention"):
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if (count := of("num_experts", "num_local_experts")) is not None:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(of("moe_intermediate_size", "intermediate_size"))
    if config["model_type"] in ("gemma2", "gemma3_text", "phi3", "gpt_oss"):
        writer.add_sliding_window(of("sliding_window") or 0)
    if cap := of("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(cap)
    if cap := of("final_logit_softcapping"):
        writer.add_final_logit_softcapping(cap)
    if config["model_type"] == "gpt_neox":
        writer.add_parallel_residual(config["use_parallel_residual"])
    writer.add_tokenizer_model("none")


def _factors(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The factors of Llama 3's rotary embeddings."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") != "llama3":
        return {}
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    frequencies = rope["rope_theta"] ** -(np.arange(0, width, 2) / width)
    length, low, high = (
        rope[n] for n in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    turns = length * frequencies / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    factors = 1 / ((1 - smooth) / rope["factor"] + smooth)
    return {"rope_freqs.weight": factors.astype(np.float32)}
