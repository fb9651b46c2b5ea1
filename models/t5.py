"""T5 (Raffel et al., 2019) and its kin, which read a text and write one: T5 1.1 and Flan-T5, mT5, and UMT5.

Positions are not embedded: attention of tokens to each other has a bias for each head by distance, in buckets. In T5
the first layer of each side has it for all, in UMT5 each layer has its own. Attention is not scaled, norms have no
centre. A text of either side has at most `n_positions` tokens, 512 if `config.json` does not tell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import flag, positive, whole
from relaxpy.models.encoder_decoder import EncoderDecoderConfig
from relaxpy.nn.rotary import Rope
from relaxpy.runtime.safetensors import Source

_NAMES = {
    "hidden_size": "d_model", "num_attention_heads": "num_heads", "head_dim": "d_kv", "intermediate_size": "d_ff",
    "max_position_embeddings": "n_positions",
}  # fmt: skip
_HEAD = "lm_head.weight"
_ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}


@dataclass(frozen=True)
class T5Config(EncoderDecoderConfig):
    """The configuration of a T5."""

    model_type: ClassVar[str] = "t5"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
        "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu", "n_positions": 512,
    }  # fmt: skip
    scales_hidden: ClassVar[bool] = True
    """Whether what the last layer gives is scaled, unless `tie_word_embeddings` is false."""
    of_layers: ClassVar[bool] = False
    """Whether each layer has biases by distance."""

    @classmethod
    def renamed(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """By the names that decoders have."""
        layers = fields.get("num_decoder_layers")
        return {
            **fields,
            **{name: fields.get(own) for name, own in _NAMES.items()},
            "num_hidden_layers": fields.get("num_layers") if layers is None else layers,
        }

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes of both sides, and what the family is."""
        if not flag(fields, "is_encoder_decoder", True):
            raise UsageError(
                "bad-config", f"a {cls.model_type} without its encoder is not supported"
            )
        heads, hidden = whole(fields, "num_heads"), whole(fields, "d_model", most=1 << 20)
        buckets = whole(fields, "relative_attention_num_buckets", least=4, most=1 << 16)
        most = whole(fields, "relative_attention_max_distance", most=1 << 16)
        if most <= buckets // 2:
            raise UsageError(
                "bad-config",
                f"relative_attention_max_distance {most} must be more than half of the {buckets} buckets",
            )
        is_gated, act = _feed_forward(fields.get("feed_forward_proj"))
        tied = flag(fields, "tie_word_embeddings", True)
        is_scaled = cls.scales_hidden and flag(fields, "scale_decoder_outputs", tied)
        return {
            "encoder_layers": whole(fields, "num_layers", most=10_000),
            "encoder_attention_heads": heads,
            "encoder_head_dim": whole(fields, "d_kv"),
            "encoder_ffn_dim": whole(fields, "d_ff"),
            "source_positions": whole(fields, "n_positions"),
            "rms_norm_eps": positive(fields, "layer_norm_epsilon"),
            "gated": is_gated,
            "hidden_act": act,
            "attention_scale": 1.0,
            "distance_buckets": buckets,
            "distance_most": most,
            "distances_of_layers": cls.of_layers,
            "hidden_scale": hidden**-0.5 if is_scaled else 1.0,
            "tie_word_embeddings": True,
            "rope": Rope(),
        }

    def fitted(self, tensors: Collection[str]) -> Self:
        """With a head of its own if the checkpoint has one, whatever `tie_word_embeddings` says, as transformers has
        it."""
        return replace(self, tie_word_embeddings=_HEAD not in tensors)

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        found = {"embedding.weight": Source("shared.weight")}
        if not self.tie_word_embeddings:
            found["head.weight"] = Source(_HEAD)
        maps = {"gate": "wi_0", "up": "wi_1"} if self.gated else {"up": "wi"}
        parts = {
            "encoder": ("encoder.", self.encoder_layers, {"attention": "SelfAttention"}),
            "decoder": (
                "",
                self.num_hidden_layers,
                {"attention": "SelfAttention", "cross": "EncDecAttention"},
            ),
        }
        for part, (prefix, count, attentions) in parts.items():
            found[f"{prefix}norm.weight"] = Source(f"{part}.final_layer_norm.weight")
            for number in range(count):
                own, theirs = f"{prefix}layers.{number}", f"{part}.block.{number}.layer"
                for place, (name, attention) in enumerate(attentions.items()):
                    norm = f"{theirs}.{place}.layer_norm.weight"
                    found[f"{own}.{name}_norm.weight"] = Source(norm)
                    for linear, letter in _ATTENTION.items():
                        weight = f"{theirs}.{place}.{attention}.{letter}.weight"
                        found[f"{own}.{name}.{linear}.weight"] = Source(weight)
                if number == 0 or self.distances_of_layers:
                    bias = f"{theirs}.0.SelfAttention.relative_attention_bias.weight"
                    found[f"{prefix}distances.{number}.weight"] = Source(bias)
                last = f"{theirs}.{len(attentions)}"
                found[f"{own}.norm.weight"] = Source(f"{last}.layer_norm.weight")
                for linear, name in {**maps, "down": "wo"}.items():
                    weight = f"{last}.DenseReluDense.{name}.weight"
                    found[f"{own}.feed_forward.{linear}.weight"] = Source(weight)
        return found

    def unused(self) -> set[str]:
        """The embeddings under their other names, and biases that the first checkpoints have and no version reads."""
        found = {f"{part}.embed_tokens.weight" for part in ("encoder", "decoder")}
        return found | {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}

    def kept_whole(self) -> set[str]:
        """Biases are few, and are added to scores."""
        counts = {"encoder_": self.encoder_layers, "": self.num_hidden_layers}
        names = {
            f"{part}distances_{n}_weight" for part, count in counts.items() for n in range(count)
        }
        return super().kept_whole() | names


def _feed_forward(given: Any) -> tuple[bool, str]:
    """Is the network of a `feed_forward_proj` gated, and by which activation? Raises: UsageError (`bad-config`)."""
    kind, _, act = given.rpartition("-") if isinstance(given, str) else ("?", "", "")
    if kind not in ("", "gated"):
        raise UsageError(
            "bad-config",
            f"feed_forward_proj must be an activation, or gated- and one, such as gated-gelu; got {given!r}",
        )
    return kind == "gated", "gelu_new" if given == "gated-gelu" else act


@dataclass(frozen=True)
class MT5Config(T5Config):
    """The configuration of an mT5."""

    model_type: ClassVar[str] = "mt5"
    defaults: ClassVar[Mapping[str, Any]] = {
        **T5Config.defaults, "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
    }  # fmt: skip
    scales_hidden: ClassVar[bool] = False


@dataclass(frozen=True)
class UMT5Config(T5Config):
    """The configuration of a UMT5."""

    model_type: ClassVar[str] = "umt5"
    defaults: ClassVar[Mapping[str, Any]] = MT5Config.defaults
    of_layers: ClassVar[bool] = True
