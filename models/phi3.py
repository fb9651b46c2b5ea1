"""Phi-3 (Abdin et al., 2024): a Llama whose checkpoints join queries, keys and values, and gate and up, in one tensor
each. They are read apart; which of them a kernel reads together is decided when packing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.models.checkpoint import positive, whole
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.nn.rotary import Rope
from relaxpy.runtime.safetensors import Source


@dataclass(frozen=True)
class Phi3Config(DecoderConfig):
    """The configuration of a Phi-3, and of those Phi-4 that say to be one."""

    model_type: ClassVar[str] = "phi3"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
    }  # fmt: skip

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A window is one of all layers."""
        window = whole(fields, "sliding_window")
        rope = {n: v for n, v in fields.items() if v is not None}
        for name in ("rope_scaling", "rope_parameters"):
            own = rope.get(name)
            if isinstance(own, Mapping) and own.get("rope_type", own.get("type")) == "yarn":
                # The first checkpoints say so, and mean LongRoPE.
                rope[name] = {**own, "rope_type": "longrope"}
        return {
            "rope": Rope.from_dict(rope),
            "attention_bias": False,
            "rms_norm_eps": positive(fields, "rms_norm_eps", 1e-5),
            "sliding_windows": (window,) * fields["num_hidden_layers"] if window else (),
        }

    def joined_maps(self) -> dict[str, dict[str, int]]:
        """Queries, keys and values; gate and up."""
        heads = self.num_attention_heads * self.head_dim
        shared = self.num_key_value_heads * self.head_dim
        return {
            "self_attn.qkv_proj": {"query": heads, "key": shared, "value": shared},
            "mlp.gate_up_proj": {"gate": self.intermediate_size, "up": self.intermediate_size},
        }

    def sources(self) -> dict[str, Source]:
        """Parts of the joined tensors."""
        found = super().sources()
        for i in range(self.num_hidden_layers):
            for name, sizes in self.joined_maps().items():
                block = "attention" if name.startswith("self_attn") else "feed_forward"
                start, total = 0, sum(sizes.values())
                for linear, size in sizes.items():
                    rows = start, start + size, total
                    place = f"model.layers.{i}.{name}.weight"
                    found[f"layers.{i}.{block}.{linear}.weight"] = Source(place, rows=rows)
                    start += size
        return found
