"""wav2vec 2.0 with a CTC head (Baevski et al., 2020): convolutions over samples, 320 of which are a frame, then an
encoder whose positions are a convolution, too.

Base models normalise the first convolution over time and each layer after its parts; large ones normalise the channels
of all convolutions and each layer before its parts (`do_stable_layer_norm`).

Padding changes the statistics over time: models with `feat_extract_norm` group were trained without masks, and all rows
of a batch have its length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import Dim
from relaxpy.models.checkpoint import flag, positive, whole
from relaxpy.models.ctc import CtcConfig, both, mask, score_bias
from relaxpy.narrow import is_sequence
from relaxpy.nn import op
from relaxpy.nn.mlp import activation
from relaxpy.runtime.safetensors import Source

_WEIGHT_NORMS = {
    "g": ("weight_g", "parametrizations.weight.original0"),
    "v": ("weight_v", "parametrizations.weight.original1"),
}
"""The two parts of a normalised weight, and their names by torch's versions."""


@dataclass(frozen=True)
class Wav2Vec2Config(CtcConfig):
    """The configuration of a wav2vec 2.0."""

    hidden_act: str
    layer_norm_eps: float
    feat_extract_norm: str
    """What the convolutions are normalised over: "group" (the first one, over time) or "layer" (all, over channels)."""
    feat_extract_activation: str
    conv_dim: tuple[int, ...]
    conv_stride: tuple[int, ...]
    conv_kernel: tuple[int, ...]
    conv_bias: bool
    num_conv_pos_embeddings: int
    """The width of the convolution of positions."""
    num_conv_pos_embedding_groups: int
    do_stable_layer_norm: bool
    feat_proj_layer_norm: bool = True
    conv_pos_batch_norm: bool = False

    model_type: ClassVar[str] = "wav2vec2"
    prefix: ClassVar[str] = "wav2vec2"
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "vocab_size": 32, "pad_token_id": 0, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
        "feat_extract_norm": "group", "feat_extract_activation": "gelu", "conv_dim": (512,) * 7,
        "conv_stride": (5, 2, 2, 2, 2, 2, 2), "conv_kernel": (10, 3, 3, 3, 3, 2, 2), "num_conv_pos_embeddings": 128,
        "num_conv_pos_embedding_groups": 16,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.conv_dim) == len(self.conv_stride) == len(self.conv_kernel):
            raise UsageError(
                "bad-config",
                f"conv_dim, conv_stride and conv_kernel have {len(self.conv_dim)}, {len(self.conv_stride)} and "
                f"{len(self.conv_kernel)} numbers, one each for a convolution",
            )
        if self.feat_extract_norm not in ("group", "layer"):
            raise UsageError(
                "bad-config",
                f"feat_extract_norm is {self.feat_extract_norm!r}, neither 'group' nor 'layer'",
            )

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes of the convolutions, and where norms are."""
        for name in ("add_adapter", "adapter_attn_dim"):
            if fields.get(name):
                raise UsageError("bad-config", f"{name} = {fields[name]!r} is not supported")
        names = ("hidden_act", "feat_extract_norm", "feat_extract_activation")
        texts = {name: fields.get(name) for name in names}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise UsageError("bad-config", f"{name} must be a name, got {value!r}")
        return {
            **super().settings(fields),
            **texts,
            **{name: _sizes(fields, name) for name in ("conv_dim", "conv_stride", "conv_kernel")},
            **{name: whole(fields, name, most=1 << 12)
               for name in ("num_conv_pos_embeddings", "num_conv_pos_embedding_groups")},
            "layer_norm_eps": positive(fields, "layer_norm_eps"),
            "conv_bias": flag(fields, "conv_bias"),
            "do_stable_layer_norm": flag(fields, "do_stable_layer_norm"),
        }  # fmt: skip

    @property
    def hop(self) -> int:
        return math.prod(self.conv_stride)

    @property
    def reach(self) -> int:
        found = 1
        for kernel, stride in zip(self.conv_kernel[::-1], self.conv_stride[::-1], strict=True):
            found = (found - 1) * stride + kernel
        return found

    def frames(self, samples: Any) -> Any:
        for kernel, stride in zip(self.conv_kernel, self.conv_stride, strict=True):
            samples = (samples - kernel) // stride + 1
        return samples

    def module(self) -> nn.Module:
        return Wav2Vec2(self)

    def sources(self, names: Mapping[str, Any]) -> dict[str, Source]:
        found = both("head", "lm_head")
        for number in range(len(self.conv_dim)):
            own = f"convolutions.{number}"
            theirs = f"{self.prefix}.feature_extractor.conv_layers.{number}"
            found |= both(f"{own}.conv", f"{theirs}.conv", self.conv_bias)
            if self.feat_extract_norm == "layer" or not number:
                found |= both(f"{own}.norm", f"{theirs}.layer_norm")
        if self.feat_proj_layer_norm:
            found |= both("projection_norm", f"{self.prefix}.feature_projection.layer_norm")
        found |= both("projection", f"{self.prefix}.feature_projection.projection")
        encoder = f"{self.prefix}.encoder"
        positions = f"{encoder}.pos_conv_embed"
        found["positions.bias"] = Source(f"{positions}.conv.bias")
        if self.conv_pos_batch_norm:
            found["positions.weight"] = Source(f"{positions}.conv.weight")
            for part in ("weight", "bias", "running_mean", "running_var"):
                found[f"positions.norm.{part}"] = Source(f"{positions}.batch_norm.{part}")
        else:
            for own, (old, new) in _WEIGHT_NORMS.items():
                name = f"{positions}.conv.{old}"
                found[f"positions.{own}"] = Source(
                    name if name in names else f"{positions}.conv.{new}"
                )
        found |= both("norm", f"{encoder}.layer_norm")
        for number in range(self.num_hidden_layers):
            own, theirs = f"layers.{number}", f"{encoder}.layers.{number}"
            for linear, name in {"query": "q", "key": "k", "value": "v", "output": "out"}.items():
                found |= both(f"{own}.{linear}", f"{theirs}.attention.{name}_proj")
            found |= both(f"{own}.attention_norm", f"{theirs}.layer_norm")
            found |= both(f"{own}.up", f"{theirs}.feed_forward.intermediate_dense")
            found |= both(f"{own}.down", f"{theirs}.feed_forward.output_dense")
            found |= both(f"{own}.norm", f"{theirs}.final_layer_norm")
        return found

    def unused(self) -> set[str]:
        """What training masks, and counts."""
        counted = f"{self.prefix}.encoder.pos_conv_embed.batch_norm.num_batches_tracked"
        return {f"{self.prefix}.masked_spec_embed", counted}


def _sizes(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    given = fields[name]
    if not is_sequence(given) or not 0 < len(given) <= 64:
        raise UsageError("bad-config", f"{name} must be a list of sizes, got {str(given)[:100]}")
    return tuple(whole({name: each}, name, most=1 << 16) for each in given)


class Convolution(nn.Module):
    """A convolution over time without padding, its norm and the activation."""

    def __init__(self, config: Wav2Vec2Config, number: int) -> None:
        inputs, outputs = (1, *config.conv_dim)[number], config.conv_dim[number]
        self.conv = nn.Conv1d(
            inputs,
            outputs,
            config.conv_kernel[number],
            config.conv_stride[number],
            bias=config.conv_bias,
        )
        self.norm: nn.Module | None = None
        self.over_channels = config.feat_extract_norm == "layer"
        if self.over_channels:
            self.norm = nn.LayerNorm(outputs)
        elif not number:
            self.norm = nn.GroupNorm(outputs, outputs)
        self.act = activation(config.feat_extract_activation)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(batch, in, time) → (batch, out, time)."""
        x = self.conv(x)
        if self.norm is not None and self.over_channels:
            x = op.permute_dims(self.norm(op.permute_dims(x, (0, 2, 1))), (0, 2, 1))
        elif self.norm is not None:
            x = self.norm(x)
        return self.act(x)


class Positions(nn.Module):
    """What frames are told of their neighbours: a wide convolution in groups. Its weight has a length for each place of
    the kernel (weight normalisation; Salimans and Kingma, 2016), or its input is normalised by the statistics of
    training."""

    def __init__(self, config: Wav2Vec2Config) -> None:
        hidden, self.groups = config.hidden_size, config.num_conv_pos_embedding_groups
        if hidden % self.groups:
            raise UsageError(
                "bad-config",
                f"hidden_size {hidden} is not a multiple of num_conv_pos_embedding_groups {self.groups}",
            )
        self.width = config.num_conv_pos_embeddings
        shape = hidden, hidden // self.groups, self.width
        self.is_normed = config.conv_pos_batch_norm
        if self.is_normed:
            self.weight = nn.Parameter(shape)
            self.norm = nn.BatchNorm1d(hidden)
        else:
            self.g, self.v = nn.Parameter((1, 1, self.width)), nn.Parameter(shape)
        self.bias = nn.Parameter((hidden,))
        self.act = activation(config.feat_extract_activation)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(batch, frames, hidden) → the same shape."""
        if self.is_normed:
            weight, y = self.weight, self.norm(op.permute_dims(x, (0, 2, 1)))
        else:
            length = op.sqrt(op.sum(self.v * self.v, axis=(0, 1), keepdims=True))
            weight, y = self.v * (self.g / length), op.permute_dims(x, (0, 2, 1))
        before = self.width // 2
        after = self.width - 1 - before  # of an even kernel the last place is cut off
        y = op.nn.conv1d(y, weight, padding=(before, after), groups=self.groups)
        y = self.act(y + op.reshape(self.bias, (1, -1, 1)))
        return op.permute_dims(y, (0, 2, 1))


class Layer(nn.Module):
    """Attention of every frame to all, then the feed-forward network. Norms are before each part, or after the sum with
    its input."""

    def __init__(self, config: Wav2Vec2Config) -> None:
        hidden, self.config = config.hidden_size, config
        self.query, self.key = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.value, self.output = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, config.layer_norm_eps)
        self.up = nn.Linear(hidden, config.intermediate_size)
        self.act = activation(config.hidden_act)
        self.down = nn.Linear(config.intermediate_size, hidden)
        self.norm = nn.LayerNorm(hidden, config.layer_norm_eps)

    def forward(self, x: nn.Tensor, bias: nn.Tensor) -> nn.Tensor:
        """(batch, frames, hidden), and what is added to scores → the same shape."""
        if self.config.do_stable_layer_norm:
            x = x + self._mixed(self.attention_norm(x), bias)
            return x + self._fed(self.norm(x))
        x = self.attention_norm(x + self._mixed(x, bias))
        return self.norm(x + self._fed(x))

    def _mixed(self, x: nn.Tensor, bias: nn.Tensor) -> nn.Tensor:
        batch, frames, hidden = x.shape
        shape = batch, frames, self.config.num_attention_heads, self.config.head_size
        query, key, value = (op.reshape(f(x), shape) for f in (self.query, self.key, self.value))
        mixed = op.nn.attention(query, key, value, bias)
        return self.output(op.reshape(mixed, (batch, frames, hidden)))

    def _fed(self, x: nn.Tensor) -> nn.Tensor:
        return self.down(self.act(self.up(x)))


class Wav2Vec2(nn.Module):
    """The model."""

    def __init__(self, config: Wav2Vec2Config) -> None:
        self.config = config
        every: Sequence[int] = range(len(config.conv_dim))
        self.convolutions = nn.ModuleList([Convolution(config, number) for number in every])
        last, hidden = config.conv_dim[-1], config.hidden_size
        self.projection_norm = (
            nn.LayerNorm(last, config.layer_norm_eps) if config.feat_proj_layer_norm else None
        )
        self.projection = nn.Linear(last, hidden)
        self.positions = Positions(config)
        self.norm = nn.LayerNorm(hidden, config.layer_norm_eps)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.head = nn.Linear(hidden, config.vocab_size)

    def logits(self, samples: nn.Tensor, lengths: nn.Tensor) -> nn.Tensor:
        """The logits (batch, frames, vocabulary) of samples (batch, samples), row b of which has lengths[b]. After the
        frames of its samples a row has no meaning."""
        x = op.expand_dims(samples, 1)
        for convolution in self.convolutions:
            x = convolution(x)
        x = op.permute_dims(x, (0, 2, 1))
        x = op.match_cast(x, (x.shape[0], Dim.var("frames"), x.shape[2]))  # a name for its length
        x = self.projection(x if self.projection_norm is None else self.projection_norm(x))
        there = mask(self.config.frames(lengths), x.shape[1])
        x = op.where(op.expand_dims(there, 2), x, 0.0)
        x = x + self.positions(x)
        x = x if self.config.do_stable_layer_norm else self.norm(x)
        for layer in self.layers:
            x = layer(x, score_bias(there))
        return self.head(self.norm(x) if self.config.do_stable_layer_norm else x)
