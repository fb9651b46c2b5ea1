"""Gemma (Gemma Team, 2024), its second generation, and the text models of the third.

Norms multiply by 1 + weight, in float32, embeddings are scaled, and the head is the embedding. Gemma 2 normalises also
what attention and the feed-forward network give, caps scores and logits softly, and has a sliding window in every
second layer. Gemma 3 normalises queries and keys instead of capping, and the layers with a window have rotary
embeddings of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import flag, positive, whole
from relaxpy.models.decoder_config import DecoderConfig, windows_by_layer
from relaxpy.nn.rotary import Rope


@dataclass(frozen=True)
class GemmaConfig(DecoderConfig):
    """The configuration of a Gemma of the first generation."""

    model_type: ClassVar[str] = "gemma"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 8192, "num_key_value_heads": 16,
    }  # fmt: skip

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that all generations have."""
        if flag(fields, "use_bidirectional_attention"):
            raise UsageError("bad-config", "use_bidirectional_attention is not supported")
        act = fields.get("hidden_activation") or fields.get("hidden_act") or "gelu_pytorch_tanh"
        return {
            # The first checkpoints say "gelu", and mean its approximation.
            "hidden_act": "gelu_pytorch_tanh" if act == "gelu" else act,
            "head_dim": whole(fields, "head_dim", 256),
            "tie_word_embeddings": flag(fields, "tie_word_embeddings", True),
            "norm_offset": 1.0,
            "embedding_scale": fields["hidden_size"] ** 0.5,
        }


@dataclass(frozen=True)
class Gemma2Config(GemmaConfig):
    """The configuration of a Gemma 2."""

    model_type: ClassVar[str] = "gemma2"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 8192, "num_key_value_heads": 4,
    }  # fmt: skip
    period: ClassVar[int] = 2
    """One of so many layers attends to all tokens, where `config.json` does not say which."""
    caps: ClassVar[tuple[float | None, float | None]] = (50.0, 30.0)
    """Of attention scores and of logits, where `config.json` does not say."""

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The caps, the windows, and the further norms."""
        scores, logits = cls.caps
        kinds = fields.get("layer_types") or [
            "sliding_attention" if (i + 1) % cls.period_of(fields) else "full_attention"
            for i in range(fields["num_hidden_layers"])
        ]
        return {
            **super().settings(fields),
            "post_norms": True,
            "attention_scale": (positive(fields, "query_pre_attn_scalar") or 256.0) ** -0.5,
            "attention_soft_cap": positive(fields, "attn_logit_softcapping", scores),
            "logit_soft_cap": positive(fields, "final_logit_softcapping", logits),
            "sliding_windows": windows_by_layer(kinds, whole(fields, "sliding_window", 4096)),
        }

    @classmethod
    def period_of(cls, _fields: Mapping[str, Any]) -> int:
        """The period in a `config.json`."""
        return cls.period


@dataclass(frozen=True)
class Gemma3Config(Gemma2Config):
    """The configuration of a Gemma 3, text only."""

    model_type: ClassVar[str] = "gemma3_text"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 131072, "num_key_value_heads": 4,
    }  # fmt: skip
    period: ClassVar[int] = 6
    caps: ClassVar[tuple[float | None, float | None]] = (None, None)

    @classmethod
    def period_of(cls, fields: Mapping[str, Any]) -> int:
        """The period in a `config.json`."""
        return whole(fields, "sliding_window_pattern") or cls.period

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Normalised queries and keys, and two kinds of rotary embeddings."""
        given = fields.get("rope_parameters") or {}
        scaling = fields.get("rope_scaling") or {}
        bases = {
            "full_attention": positive(fields, "rope_theta") or 1e6,
            "sliding_attention": positive(fields, "rope_local_base_freq") or 1e4,
        }
        if not isinstance(given, Mapping) or given.keys() - bases.keys():
            raise UsageError(
                "bad-config",
                f"rope_parameters must have the fields {' and '.join(bases)}, got {given!r}",
            )
        if not isinstance(scaling, Mapping) or (scaling and "rope_type" not in scaling):
            raise UsageError("bad-config", f"rope_scaling has no rope_type: {scaling!r}")
        kinds = {"full_attention": scaling}  # of versions before transformers 5
        full, local = (
            Rope.from_dict(
                {
                    "rope_theta": base,
                    "rope_parameters": {**(given.get(kind) or {}), **kinds.get(kind, {})},
                    "max_position_embeddings": fields["max_position_embeddings"],
                }
            )
            for kind, base in bases.items()
        )
        return {
            **super().settings(fields),
            "qk_norm": True,
            "rope": full,
            "local_rope": local,
        }
