"""GPT-2 (Radford et al., 2019): learned positions, layer norms, and a feed-forward network without a gate. Checkpoints
store weights as (in, out), with queries, keys and values joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import flag, whole
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.nn.rotary import Rope
from relaxpy.runtime.safetensors import Source

_NAMES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions", "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}  # fmt: skip


@dataclass(frozen=True)
class GPT2Config(DecoderConfig):
    """The configuration of a GPT-2."""

    model_type: ClassVar[str] = "gpt2"
    defaults: ClassVar[Mapping[str, Any]] = {"n_positions": 1024}
    prefix: ClassVar[str] = "transformer."

    @classmethod
    def renamed(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """By the names that most families have; the inner width is four times the hidden one, where it is null."""
        hidden = whole(fields, "n_embd", most=1 << 24)
        inner = whole(fields, "n_inner") or (hidden and 4 * hidden)
        return {
            **{n: fields.get(own) for n, own in _NAMES.items()},
            **_others(fields),
            "intermediate_size": inner,
        }

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Refuses what no published model has."""
        for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
            if flag(fields, name):
                raise UsageError("bad-config", f"{name} is not supported")
        if not flag(fields, "scale_attn_weights", True):
            raise UsageError("bad-config", "scale_attn_weights = False is not supported")
        return {
            "attention_bias": True,
            "mlp_bias": True,
            "layer_norm": True,
            "gated": False,
            "learned_positions": True,
            "rope": Rope(),
            "hidden_act": fields.get("hidden_act") or "gelu_new",
            "rms_norm_eps": fields.get("rms_norm_eps") or 1e-5,
            "tie_word_embeddings": flag(fields, "tie_word_embeddings", True),
        }

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        found = {
            "embedding.weight": Source("transformer.wte.weight"),
            "positions.weight": Source("transformer.wpe.weight"),
            "norm.weight": Source("transformer.ln_f.weight"),
            "norm.bias": Source("transformer.ln_f.bias"),
        }
        if not self.tie_word_embeddings:
            found["head.weight"] = Source("lm_head.weight")
        size = self.hidden_size
        parts = ("query", "key", "value")
        linears: dict[str, tuple[str, tuple[int, int, int] | None]] = {
            f"attention.{part}": ("attn.c_attn", (i * size, (i + 1) * size, 3 * size))
            for i, part in enumerate(parts)
        }
        linears["attention.output"] = "attn.c_proj", None
        linears["feed_forward.up"] = "mlp.c_fc", None
        linears["feed_forward.down"] = "mlp.c_proj", None
        for i in range(self.num_hidden_layers):
            ours, theirs = f"layers.{i}", f"transformer.h.{i}"
            for own, (name, rows) in linears.items():
                place = f"{theirs}.{name}"
                found[f"{ours}.{own}.weight"] = Source(f"{place}.weight", True, rows)
                found[f"{ours}.{own}.bias"] = Source(f"{place}.bias", rows=rows)
            for own, name in {"attention_norm": "ln_1", "norm": "ln_2"}.items():
                for part in ("weight", "bias"):
                    found[f"{ours}.{own}.{part}"] = Source(f"{theirs}.{name}.{part}")
        return found

    def unused(self) -> set[str]:
        """Masks that older checkpoints have, too, and the head, which is the embedding."""
        layers = range(self.num_hidden_layers)
        found = {f"transformer.h.{i}.attn.{n}" for i in layers for n in ("bias", "masked_bias")}
        return found | ({"lm_head.weight"} if self.tie_word_embeddings else set())


def _others(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields whose names are those of other families."""
    return {name: value for name, value in fields.items() if name not in _NAMES}
