"""Qwen3-MoE (Yang et al., 2025): a Qwen3 with mixtures of experts in most layers, or in all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import flag, whole
from relaxpy.models.qwen3 import Qwen3Config
from relaxpy.runtime.safetensors import Source


@dataclass(frozen=True)
class Qwen3MoeConfig(Qwen3Config):
    """The configuration of a Qwen3-MoE."""

    model_type: ClassVar[str] = "qwen3_moe"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 32768, "num_key_value_heads": 4,
    }  # fmt: skip

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The experts, and the layers that have none. A window, if there is one, is of all layers."""
        layers = fields["num_hidden_layers"]
        window = (
            whole(fields, "sliding_window", 4096) if flag(fields, "use_sliding_window") else None
        )
        every = whole(fields, "decoder_sparse_step", 1) or 1
        dense = layer_numbers(fields, "mlp_only_layers")
        plain = {**fields, "use_sliding_window": False, "layer_types": None}
        return {
            **super().settings(plain),
            "sliding_windows": (window,) * layers if window else (),
            **experts_of(fields),
            "moe_intermediate_size": whole(fields, "moe_intermediate_size", 768) or 768,
            "norm_topk_prob": flag(fields, "norm_topk_prob"),
            "dense_layers": tuple(i for i in range(layers) if i in dense or (i + 1) % every),
        }

    def layouts(self) -> list[dict[str, Source]]:
        """Checkpoints have a tensor for each expert, or, as transformers 5 has them in memory, one for all."""
        return [layout for each in super().layouts() for layout in (self._apart(each), each)]

    def _apart(self, layout: Mapping[str, Source]) -> dict[str, Source]:
        """The sources with a tensor for each expert."""
        found = dict(layout)
        for own, source in layout.items():
            for name, maps in _APART.items():
                if own.endswith(f"feed_forward.experts.{name}"):
                    place = source.name.removesuffix(f".{name}")
                    experts = range(self.num_experts)
                    parts = [f"{place}.{e}.{each}.weight" for e in experts for each in maps]
                    found[own] = Source(source.name, parts=tuple(parts), count=self.num_experts)
        return found


_APART = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""The tensors of an expert that a tensor of all experts joins."""


def experts_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The number of experts, and that of a token's."""
    count = whole(fields, "num_experts") or whole(fields, "num_local_experts")
    chosen = whole(fields, "num_experts_per_tok") or whole(fields, "experts_per_token")
    if not count or not chosen or count > _MOST_EXPERTS:
        raise UsageError(
            "bad-config",
            f"num_experts and num_experts_per_tok must be from 1 to {_MOST_EXPERTS}, got {count} and {chosen}",
        )
    return {"num_experts": count, "num_experts_per_tok": chosen}


_MOST_EXPERTS = 10_000


def layer_numbers(fields: Mapping[str, Any], name: str) -> set[int]:
    """A list of numbers of layers. Raises: UsageError (`bad-config`)."""
    found = fields.get(name) or ()
    if not isinstance(found, list | tuple) or not all(type(each) is int for each in found):
        raise UsageError("bad-config", f"{name} must be a list of numbers, got {found!r}")
    return {*found}
