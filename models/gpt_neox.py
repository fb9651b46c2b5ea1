"""GPT-NeoX (Black et al., 2022), and its architecture's other models: Pythia, RedPajama-INCITE, Dolly. Layer norms with
biases, a feed-forward network without a gate beside attention, and a part of each head rotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.models.checkpoint import flag, positive
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.nn.rotary import Rope
from relaxpy.runtime.safetensors import Source


@dataclass(frozen=True)
class GPTNeoXConfig(DecoderConfig):
    """The configuration of a GPT-NeoX."""

    model_type: ClassVar[str] = "gpt_neox"
    prefix: ClassVar[str] = "gpt_neox."

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The family's own names of fields, and its defaults."""
        older = {
            "rope_theta": positive(fields, "rotary_emb_base", 1e4),
            "partial_rotary_factor": positive(fields, "rotary_pct", 0.25),
        }
        given = {n: v for n, v in fields.items() if v is not None}
        return {
            "attention_bias": flag(fields, "attention_bias", True),
            "mlp_bias": True,
            "rms_norm_eps": positive(fields, "layer_norm_eps", 1e-5),
            "rope": Rope.from_dict({**given, **older}),
            "layer_norm": True,
            "gated": False,
            "joined": True,
            "parallel": flag(fields, "use_parallel_residual", True),
            "hidden_act": fields.get("hidden_act") or "gelu",
        }

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        found = {
            "embedding.weight": Source("gpt_neox.embed_in.weight"),
            "norm.weight": Source("gpt_neox.final_layer_norm.weight"),
            "norm.bias": Source("gpt_neox.final_layer_norm.bias"),
        }
        if not self.tie_word_embeddings:
            found["head.weight"] = Source("embed_out.weight")
        names = {
            "attention_norm": "input_layernorm",
            "norm": "post_attention_layernorm",
            "attention.joined": "attention.query_key_value",
            "attention.output": "attention.dense",
            "feed_forward.up": "mlp.dense_h_to_4h",
            "feed_forward.down": "mlp.dense_4h_to_h",
        }
        for i in range(self.num_hidden_layers):
            for own, name in names.items():
                for part in ("weight", "bias"):
                    if part == "weight" or self.attention_bias or not own.startswith("attention."):
                        place = f"gpt_neox.layers.{i}.{name}.{part}"
                        found[f"layers.{i}.{own}.{part}"] = Source(place)
        return found

    def unused(self) -> set[str]:
        """Masks and frequencies that older checkpoints have, too."""
        rest = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")
        layers = range(self.num_hidden_layers)
        found = {f"gpt_neox.layers.{i}.{name}" for i in layers for name in rest}
        return found | ({"embed_out.weight"} if self.tie_word_embeddings else set())
