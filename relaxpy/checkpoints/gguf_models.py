"""Models in GGUF files, by transformers' names: what the metadata says as the fields of a `config.json`, and the
tensors as transformers has them. llama.cpp's converter renames tensors, and changes some:

* `llama`: rows of queries and keys are permuted, since ggml rotates neighbours
* `gemma`: norms have their 1 added
* `gpt2`: matrices are transposed; `gptneox`: queries, keys and values of all heads are one after the other
* mixtures of experts: a tensor has those of all experts; `gpt-oss`: gate and up are apart, and transposed
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from relaxpy.checkpoints.gguf import GgufFile, bad, read_gguf
from relaxpy.checkpoints.gguf_blocks import GgufRows
from relaxpy.checkpoints.stored import Checkpoint, Coded, Floats, Interleaved, Stored
from relaxpy.checkpoints.unread import unknown_fields, warn_unread
from relaxpy.errors import UsageError
from relaxpy.runtime.tensor import Array

_LLAMA = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""The names of a file, and transformers'; those of a layer without its number."""
_GEMMA2 = {
    **_LLAMA, "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_PHI3 = {**_LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_GPT2 = {
    "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
    "output": "lm_head", "attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
_GPTNEOX = {
    "token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
}  # fmt: skip

_QWEN3MOE = {
    **_LLAMA, "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj",
}  # fmt: skip
_GPT_OSS = {
    **_QWEN3MOE, "ffn_gate_inp": "mlp.router", "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
}  # fmt: skip

_TURNED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
"""The matrices that gpt2 has the other way."""


def _unchanged(_name: str, _stored: Stored, _fields: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _as_they_are(tensors: dict[str, Stored], _fields: Mapping[str, Any]) -> dict[str, Stored]:
    return tensors


def _values(value: object) -> list[Any]:
    """Those of a field that has many."""
    return cast(list[Any], value) if isinstance(value, list) else []


@dataclass(frozen=True)
class _Architecture:
    """How one architecture's files are read."""

    model_type: str
    """transformers' name of the family."""
    names: Mapping[str, str]
    layer: str = "model.layers"
    """Where transformers has the layers."""
    settings: Callable[[Metadata], dict[str, Any]] = lambda _: {}
    """The fields of a `config.json` beside those that all have."""
    change: Callable[[str, Stored, Mapping[str, Any]], dict[str, Any]] = _unchanged
    """The changes to a tensor of this name: fields of `Stored`."""
    regroup: Callable[[dict[str, Stored], Mapping[str, Any]], dict[str, Stored]] = _as_they_are
    """The tensors, where transformers has others of them."""


_FREE = frozenset(
    "vocab_size tensor_data_layout rope.scaling.finetuned rope.scaling.original_context_length "
    "feed_forward_length attention.layer_norm_epsilon attention.layer_norm_rms_epsilon attention.head_count_kv".split()
)
"""Fields of all architectures that change no number where they are not read."""
_PLAIN: Mapping[str, Any] = {
    "attention.causal": True, "expert_gating_func": 1, "expert_weights_scale": 1.0, "logit_scale": 1.0,
    "residual_scale": 1.0, "rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.factor": 1.0, "rope.scale_linear": 1.0, "expert_weights_norm": True,
}  # fmt: skip
"""Values at which further fields change nothing."""


@dataclass(frozen=True)
class Metadata:
    """The metadata of a file, with errors that name it."""

    file: GgufFile
    architecture: str
    used: set[str] = field(default_factory=set[str])
    """The names of the fields that were read."""

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A field of the architecture, of this type. Raises: UsageError (`bad-checkpoint`)."""
        key = f"{self.architecture}.{name}"
        self.used.add(name)
        value: Any = self.file.fields.get(key)
        if value is None:
            return default
        values = _values(value)
        if kind is int and values and len({*map(repr, values)}) == 1:
            value = values[0]  # a number for each layer
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            what = f"{len(values)} values" if values else repr(value)
            raise self.bad(f"{key} is {what}, and {kind.__name__} is supported")
        if kind is float:
            value = float(f"{value:.7g}")  # as a config.json has what was rounded to float32
        return value

    def need(self, name: str, kind: type = int) -> Any:
        """The same, of a field that must be there."""
        found = self.get(name, kind)
        if found is None:
            raise self.bad(f"it lacks the field {self.architecture}.{name}")
        return found

    def bad(self, reason: str) -> UsageError:
        return bad(self.file.path, reason)

    def unread(self) -> list[str]:
        """The fields that may change numbers or texts and were not read, with their values."""
        start = f"{self.architecture}."
        known = {start + name for name in {*self.used, *_FREE}}
        plain = {start + name: value for name, value in _PLAIN.items()}
        own = {
            name: value
            for name, value in self.file.fields.items()
            if name.startswith((start, "general.sampling."))
        }
        return unknown_fields(own, known, plain)

    def floats(self, tensor: str) -> list[float] | None:
        """The numbers of a tensor that is part of the configuration."""
        found = self.file.tensors.get(tensor)
        if found is None:
            return None
        if found.format != "F32" or len(found.shape) != 1:
            raise self.bad(f"tensor {tensor} is {found.format} {found.shape}, not a list of F32")
        return found.read().tolist()


def _rope(data: Metadata, head: int) -> dict[str, Any]:
    """The fields of rotary embeddings."""
    dims = data.get("rope.dimension_count", int, head)
    found: dict[str, Any] = {"rope_theta": data.get("rope.freq_base", float, 10000.0)}
    if dims != head:
        found["partial_rotary_factor"] = dims / head
    kind = data.get("rope.scaling.type", str, "linear")
    short, long = data.floats("rope_factors_short.weight"), data.floats("rope_factors_long.weight")
    factors = data.floats("rope_freqs.weight")
    if factors is not None:
        scaling: dict[str, Any] = {"rope_type": "factors", "factors": factors}
    elif short is not None and long is not None:
        scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        scaling["attention_factor"] = data.get("rope.scaling.attn_factor", float)
        original = data.get("rope.scaling.original_context_length", int)
        found["original_max_position_embeddings"] = original
    elif kind == "linear":
        factor = _factor(data)
        scaling = {"rope_type": "linear", "factor": factor} if factor != 1.0 else {}
    elif kind == "yarn":
        scaling = _yarn(data)
    elif kind in ("none", "longrope"):  # longrope without factors is none
        data.used.add("rope.scaling.factor")  # it is for other types
        scaling = {}
    else:
        raise data.bad(f"rope.scaling.type is {kind!r}, which is not supported")
    return {**found, "rope_scaling": {n: v for n, v in scaling.items() if v is not None} or None}


def _factor(data: Metadata) -> float:
    """The factor of longer contexts, by its name of today or that of 2023; 0 is none."""
    factor = data.get("rope.scaling.factor", float)
    older = data.get("rope.scale_linear", float)
    return (older if factor is None else factor) or 1.0


def _yarn(data: Metadata) -> dict[str, Any]:
    """The fields of YaRN."""
    factor, scale = _factor(data), data.get("rope.scaling.attn_factor", float, 1.0)
    found = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": data.get("rope.scaling.original_context_length", int),
        "attention_factor": data.get("rope.scaling.yarn_attn_factor", float),
        "beta_fast": data.get("rope.scaling.yarn_beta_fast", float),
        "beta_slow": data.get("rope.scaling.yarn_beta_slow", float),
    }
    of_all = data.get("rope.scaling.yarn_log_multiplier", float)
    if scale != 1.0 or of_all:  # factors of what follows from the factor

        def grown(by: float) -> float:
            return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

        own = found["attention_factor"]
        found["attention_factor"] = scale * (
            grown(1.0) / grown(of_all or 0.0) if own is None else own
        )
    return found


def _shared(data: Metadata) -> dict[str, Any]:
    """The fields of the families that resemble Llama."""
    heads, hidden = data.need("attention.head_count"), data.need("embedding_length")
    if heads < 1:
        raise data.bad(f"attention.head_count is {heads}")
    head = data.get("attention.key_length", int, hidden // heads)
    if data.get("attention.value_length", int, head) != head:
        raise data.bad("keys and values of other lengths are not supported")
    of_experts = data.get("expert_feed_forward_length", int)
    inner = data.get("feed_forward_length", int, of_experts)
    found = {
        "hidden_size": hidden,
        "num_hidden_layers": data.need("block_count"),
        "intermediate_size": data.need("feed_forward_length") if inner is None else inner,
        "num_attention_heads": heads,
        "num_key_value_heads": data.get("attention.head_count_kv", int, heads),
        "head_dim": head,
        "max_position_embeddings": data.need("context_length"),
        "tie_word_embeddings": "output.weight" not in data.file.tensors,
        **_rope(data, head),
    }
    epsilon = data.get("attention.layer_norm_rms_epsilon", float)
    return found if epsilon is None else {**found, "rms_norm_eps": epsilon}


def _llama(data: Metadata) -> dict[str, Any]:
    if data.get("expert_count", int, 0):
        raise data.bad("mixtures of experts of the architecture llama (Mixtral) are not supported")
    return {**_qwen(data), "mlp_bias": "blk.0.ffn_up.bias" in data.file.tensors}


def _qwen(data: Metadata) -> dict[str, Any]:
    return {**_shared(data), "attention_bias": "blk.0.attn_q.bias" in data.file.tensors}


def _qwen3_moe(data: Metadata) -> dict[str, Any]:
    return {
        **_qwen(data),
        **_experts(data),
        "moe_intermediate_size": data.need("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _experts(data: Metadata) -> dict[str, Any]:
    """The number of experts, and that of a token's. What other models do with them is refused."""
    for name in ("expert_shared_count", "expert_group_count"):
        if data.get(name, int, 0) > (name == "expert_group_count"):
            raise data.bad(f"{name} is {data.get(name, int)}, which is not supported")
    return {
        "num_experts": data.need("expert_count"),
        "num_experts_per_tok": data.need("expert_used_count"),
    }


def _gpt_oss(data: Metadata) -> dict[str, Any]:
    fields = {**_shared(data), **_experts(data)}
    # Files do not say that the ends of YaRN's ramp are not rounded, as in the model that they are made from.
    own: dict[str, Any] = fields.get("rope_scaling") or {}
    scaling = {"rope_type": "default", **own, "truncate": False}
    return {
        **fields,
        "num_local_experts": fields["num_experts"],
        "intermediate_size": data.need("expert_feed_forward_length"),
        "sliding_window": data.get("attention.sliding_window", int, 128),
        "rope_scaling": scaling,
    }


def _gemma(data: Metadata) -> dict[str, Any]:
    return {**_shared(data), "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(data: Metadata) -> dict[str, Any]:
    fields = _gemma(data)
    # The largest models of both generations divide the width by the heads; files do not say so.
    wide = fields["num_hidden_layers"] == {"gemma2": 46, "gemma3": 62}[data.architecture]
    scalar = fields["hidden_size"] / fields["num_attention_heads"] if wide else fields["head_dim"]
    found = {
        **fields,
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": data.get("attn_logit_softcapping", float),
        "final_logit_softcapping": data.get("final_logit_softcapping", float),
        "sliding_window": data.get("attention.sliding_window", int, 4096),
    }
    if data.architecture == "gemma3":
        local = data.get("rope.freq_base_swa", float, 10000.0)
        theta = data.get("rope.freq_base", float, 1000000.0)
        return {**found, "rope_theta": theta, "rope_local_base_freq": local}
    return found


def _phi3(data: Metadata) -> dict[str, Any]:
    window = data.get("attention.sliding_window", int, 0)
    return {**_shared(data), "sliding_window": window or None}


def _gpt2(data: Metadata) -> dict[str, Any]:
    return {
        "n_embd": data.need("embedding_length"), "n_layer": data.need("block_count"),
        "n_inner": data.need("feed_forward_length"), "n_head": data.need("attention.head_count"),
        "n_positions": data.need("context_length"), "activation_function": "gelu_new",
        "layer_norm_epsilon": data.get("attention.layer_norm_epsilon", float, 1e-5),
        # The converter writes the embedding a second time.
        "tie_word_embeddings": "output.weight" not in data.file.tensors,
    }  # fmt: skip


def _gpt_neox(data: Metadata) -> dict[str, Any]:
    fields = _shared(data)
    share = fields.pop("partial_rotary_factor", 1.0)
    return {
        **fields,
        "rotary_pct": share,
        "rotary_emb_base": fields["rope_theta"],
        "layer_norm_eps": data.get("attention.layer_norm_epsilon", float, 1e-5),
        "use_parallel_residual": data.get("use_parallel_residual", bool, True),
        "hidden_act": "gelu",
    }


def _rotated(name: str, tensor: Stored, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Ggml's pairs of neighbours, as transformers has them: halves of a head."""
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(name)
    if heads is None:
        return {}
    return _reordered(tensor, lambda n: (fields[heads], n // fields[heads] // 2, 2), (0, 2, 1))


def _shifted(name: str, _tensor: Stored, _fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"shift": -1.0} if name.endswith("norm") else {}


def _turned(name: str, tensor: Stored, _fields: Mapping[str, Any]) -> dict[str, Any]:
    if name not in _TURNED or len(tensor.shape) != 2:
        return {}
    return {"turned": True, "shape": tensor.shape[::-1]}


def _by_head(name: str, tensor: Stored, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Queries, keys and values of each head together."""
    if name != "attn_qkv":
        return {}
    heads = fields["num_attention_heads"]
    return _reordered(tensor, lambda n: (3, heads, n // heads // 3), (1, 0, 2))


_OF_EXPERTS = re.compile(r"(.+\.mlp\.experts)\.(gate_proj|up_proj|down_proj)\.(weight|bias)")
_MOST_EXPERTS = 10_000


def _each_expert(tensors: dict[str, Stored], _fields: Mapping[str, Any]) -> dict[str, Stored]:
    """A tensor for each expert."""
    found: dict[str, Stored] = {}
    for name, stored in tensors.items():
        place, shape = _OF_EXPERTS.fullmatch(name), stored.shape
        if place is None or len(shape) != 3 or not 0 < shape[0] <= _MOST_EXPERTS:
            found[name] = stored
            continue
        for e, each in enumerate(_parts_of(stored)):
            found[f"{place[1]}.{e}.{place[2]}.{place[3]}"] = each
    return found


def _parts_of(stored: Stored) -> list[Stored]:
    """The slices of a tensor along its first axis, as they lie."""
    count, *shape = stored.shape
    nbytes = stored.nbytes // count
    if isinstance(stored, Floats):
        return [Floats(tuple(shape), stored.format, nbytes, array=x) for x in stored.array]
    assert isinstance(stored, Coded), "as a file has them"
    assert isinstance(stored.rows, GgufRows), "as a file has them"
    kind, data = stored.rows.kind, stored.rows.data
    return [
        dataclasses.replace(stored, shape=tuple(shape), nbytes=nbytes, rows=GgufRows(kind, part))
        for part in data.reshape(count, -1, data.shape[-1])
    ]


def _in_turns(tensors: dict[str, Stored], _fields: Mapping[str, Any]) -> dict[str, Stored]:
    """Gate and up of all experts in one tensor, in turns; matrices are turned."""
    found: dict[str, Stored] = {}
    for name, stored in tensors.items():
        place = _OF_EXPERTS.fullmatch(name)
        if place is None:
            found[name.replace(".self_attn.sinks.weight", ".self_attn.sinks")] = stored
            continue
        (experts, own, kind), new = place.groups(), stored
        gate, up = (tensors.get(f"{experts}.{each}.{kind}") for each in ("gate_proj", "up_proj"))
        if own == "down_proj":
            target = f"{experts}.down_proj"
        elif gate is None or up is None or gate.shape != up.shape or len(gate.shape) < 2:
            found[name] = stored
            continue
        elif own == "up_proj":
            continue
        else:
            target, new = f"{experts}.gate_up_proj", Interleaved.of(gate, up)
        if kind == "weight" and len(new.shape) == 3:
            a, b, c = new.shape
            new = dataclasses.replace(new, turned=True, shape=(a, c, b))
        found[target if kind == "weight" else f"{target}_bias"] = new
    return found


def _reordered(
    tensor: Stored, shape: Callable[[int], tuple[int, ...]], axes: tuple[int, ...]
) -> dict[str, Any]:
    """The order of rows that a permutation of axes makes; none where the rows do not divide so: their number is
    wrong."""
    count = tensor.shape[0]
    if np.prod(shape(count)) != count:
        return {}
    order: Array = np.arange(count).reshape(shape(count)).transpose(axes).reshape(-1)
    return {"order": order}


ARCHITECTURES: Mapping[str, _Architecture] = {
    "llama": _Architecture("llama", _LLAMA, settings=_llama, change=_rotated),
    "qwen2": _Architecture("qwen2", _LLAMA, settings=_qwen),
    "qwen3": _Architecture("qwen3", _LLAMA, settings=_qwen),
    "qwen3moe": _Architecture("qwen3_moe", _QWEN3MOE, settings=_qwen3_moe, regroup=_each_expert),
    "gpt-oss": _Architecture("gpt_oss", _GPT_OSS, settings=_gpt_oss, regroup=_in_turns),
    "gemma": _Architecture("gemma", _LLAMA, settings=_gemma, change=_shifted),
    "gemma2": _Architecture("gemma2", _GEMMA2, settings=_gemma2, change=_shifted),
    "gemma3": _Architecture("gemma3_text", _GEMMA2, settings=_gemma2, change=_shifted),
    "phi3": _Architecture("phi3", _PHI3, settings=_phi3),
    "gpt2": _Architecture("gpt2", _GPT2, "transformer.h", _gpt2, _turned),
    "gptneox": _Architecture("gpt_neox", _GPTNEOX, "gpt_neox.layers", _gpt_neox, _by_head),
}
"""By `general.architecture`."""

_OF_CONFIGURATION = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_IN_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_OUTSIDE = re.compile(r"(\w+)\.(weight|bias)")
_TOKENS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}


def gguf_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a GGUF file.

    Raises: UsageError (`bad-checkpoint`) for a file that cannot be read, and for an architecture, a setting or a type
    of tensor that is not supported.
    """
    file = read_gguf(path)
    name = file.fields.get("general.architecture")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise UsageError(
            "bad-checkpoint",
            f"{path} is for the architecture {name!r}, which is not supported",
            help="it is the second file of a pair: give it as mmproj, with the file of the language model"
            if name == "clip"
            else f"supported are {', '.join(sorted(ARCHITECTURES))}",
        )
    data = Metadata(file, str(name))
    embedding = file.tensors.get("token_embd.weight")
    fields = {
        "model_type": architecture.model_type,
        **{n: v for n, v in architecture.settings(data).items() if v is not None},
        "dtype": "float32",
    }
    if embedding is not None and len(embedding.shape) == 2:
        fields["vocab_size"] = embedding.shape[0]
    warn_unread(path, data.unread())
    for ours, theirs in _TOKENS.items():
        if type(value := file.fields.get(f"tokenizer.ggml.{theirs}")) is int:
            fields[ours] = value
    tensors = dict(_named(file, architecture, fields))
    if len(tensors) != len(file.tensors.keys() - {*_OF_CONFIGURATION}):
        raise data.bad("two of its tensors are the same one of the model")
    kinds = [each.format for each in tensors.values() if each.codes is not None]
    quantization = f"GGUF {max(kinds, key=kinds.count)}" if kinds else ""
    return Checkpoint(path, file.files, fields, architecture.regroup(tensors, fields), quantization)


def _named(
    file: GgufFile, architecture: _Architecture, fields: Mapping[str, Any]
) -> list[tuple[str, Stored]]:
    """The tensors by transformers' names; those that have none keep their own."""
    found: list[tuple[str, Stored]] = []
    for name, tensor in file.tensors.items():
        if name in _OF_CONFIGURATION:
            continue
        inside, outside = _IN_LAYER.fullmatch(name), _OUTSIDE.fullmatch(name)
        own = inside[2] if inside else outside[1] if outside else ""
        theirs = architecture.names.get(own)
        if theirs is None:
            found.append((name, tensor))
            continue
        changed = architecture.change(own, tensor, fields)
        tensor = dataclasses.replace(tensor, **changed) if changed else tensor
        if inside:
            found.append((f"{architecture.layer}.{int(inside[1])}.{theirs}.{inside[3]}", tensor))
        elif outside:
            found.append((f"{theirs}.{outside[2]}", tensor))
    return found
