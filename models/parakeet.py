"""Parakeet with a CTC head: a FastConformer (Rekesh et al., 2023), whose frames are of 80 ms.

Its features are its own: pre-emphasis, frames of 400 samples in a transform of 512, logarithms of the powers of mel
bands, each with mean 0 and variance 1 over the recording. Three convolutions over bands and time, each of which halves
both, make its frames; a layer is half a feed-forward network, attention by distance, a convolution over time, and the
other half (Gulati et al., 2020). Scores of attention have a part for the distance of two frames (Dai et al., 2019),
which reads rows of a table of sines from -n to n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import Dim
from relaxpy.models.checkpoint import flag, whole
from relaxpy.models.ctc import CtcConfig, both, mask
from relaxpy.models.log_mel import mel_filters
from relaxpy.models.source_attention import MASKED
from relaxpy.narrow import is_mapping
from relaxpy.nn import op
from relaxpy.nn.mlp import activation
from relaxpy.runtime.safetensors import Source

HOP, WINDOW, TRANSFORM = 160, 400, 512
"""Samples from one frame of features to the next, of a frame, and of its transform, in whose middle it is."""
FLOOR = 2.0**-24
"""Added to powers."""
EPSILON = 1e-5
"""Added to deviations."""


@dataclass(frozen=True)
class ParakeetConfig(CtcConfig):
    """The configuration of a Parakeet."""

    num_mel_bins: int
    subsampling_factor: int
    subsampling_conv_channels: int
    conv_kernel_size: int
    hidden_act: str
    attention_bias: bool
    convolution_bias: bool
    scale_input: bool

    model_type: ClassVar[str] = "parakeet_ctc"
    defaults: ClassVar[Mapping[str, Any]] = {"vocab_size": 1025, "pad_token_id": 1024}
    of_encoder: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "intermediate_size": 4096,
        "hidden_act": "silu", "conv_kernel_size": 9, "subsampling_factor": 8, "subsampling_conv_channels": 256,
        "num_mel_bins": 80, "subsampling_conv_kernel_size": 3, "subsampling_conv_stride": 2,
    }  # fmt: skip
    """The same of the fields of `encoder_config`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = self.subsampling_factor
        if factor < 2 or factor & (factor - 1):
            raise UsageError("bad-config", f"subsampling_factor is {factor}, not a power of two")
        if self.conv_kernel_size % 2 == 0 or self.num_mel_bins % factor:
            raise UsageError(
                "bad-config",
                f"conv_kernel_size is {self.conv_kernel_size}, which must be odd, and num_mel_bins "
                f"{self.num_mel_bins}, which must be a multiple of {factor}",
            )

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the encoder."""
        own = fields.get("encoder_config") or {}
        if not is_mapping(own):
            raise UsageError("bad-config", f"encoder_config must have fields, got {str(own)[:100]}")
        inner = {**cls.of_encoder, **{name: v for name, v in own.items() if v is not None}}
        for name in ("subsampling_conv_kernel_size", "subsampling_conv_stride"):
            if inner[name] != cls.of_encoder[name]:
                raise UsageError("bad-config", f"{name} = {inner[name]!r} is not supported")
        if not isinstance(inner["hidden_act"], str):
            raise UsageError(
                "bad-config", f"hidden_act must be a name, got {inner['hidden_act']!r}"
            )
        names = (
            "num_mel_bins",
            "subsampling_factor",
            "subsampling_conv_channels",
            "conv_kernel_size",
        )
        flags = ("attention_bias", "convolution_bias", "scale_input")
        outer = {name: fields.get(name) for name in ("vocab_size", "pad_token_id")}
        return {
            **super().settings({**inner, **outer}),
            **{name: whole(inner, name, most=1 << 16) for name in names},
            **{name: flag(inner, name, True) for name in flags},
            "hidden_act": inner["hidden_act"],
        }

    @property
    def halvings(self) -> int:
        """Convolutions that halve time and bands."""
        return self.subsampling_factor.bit_length() - 1

    @property
    def hop(self) -> int:
        return HOP * self.subsampling_factor

    @property
    def reach(self) -> int:
        return 2 * HOP  # a variance takes two frames

    @property
    def bands(self) -> int:
        """Those that the convolutions leave."""
        return self.num_mel_bins // self.subsampling_factor

    def frames(self, samples: Any) -> Any:
        found = samples // HOP
        for _ in range(self.halvings):
            found = (found - 1) // 2 + 1
        return found

    def module(self) -> nn.Module:
        return Parakeet(self)

    def spec(self) -> dict[str, dict[str, Any]]:
        own = super().spec()["logits"]
        features = nn.spec.Tensor(("batch", "count", self.num_mel_bins))
        return {"features": own, "logits": {"features": features, "lengths": own["lengths"]}}

    def sources(self, names: Mapping[str, Any]) -> dict[str, Source]:
        found = both("head", "ctc_head") | both("entry", "encoder.subsampling.linear")
        found |= both("convolutions.0", "encoder.subsampling.layers.0")
        for number in range(1, self.halvings):
            for own, place in {"wide": 3 * number - 1, "deep": 3 * number}.items():
                theirs = f"encoder.subsampling.layers.{place}"
                found |= both(f"{own}.{number - 1}", theirs)
        norms = {
            "first_norm": "norm_feed_forward1", "attention_norm": "norm_self_att", "mixing_norm": "norm_conv",
            "second_norm": "norm_feed_forward2", "norm": "norm_out",
        }  # fmt: skip
        for number in range(self.num_hidden_layers):
            own, theirs = f"layers.{number}", f"encoder.layers.{number}"
            for name, place in norms.items():
                found |= both(f"{own}.{name}", f"{theirs}.{place}")
            bias = self.attention_bias
            for name, place in {"first": "feed_forward1", "second": "feed_forward2"}.items():
                for part, linear in {"up": "linear1", "down": "linear2"}.items():
                    found |= both(f"{own}.{name}.{part}", f"{theirs}.{place}.{linear}", bias)
            for name, linear in {"query": "q", "key": "k", "value": "v", "output": "o"}.items():
                found |= both(f"{own}.attention.{name}", f"{theirs}.self_attn.{linear}_proj", bias)
            found |= both(f"{own}.attention.distance", f"{theirs}.self_attn.relative_k_proj", False)
            for name, place in {"content": "bias_u", "place": "bias_v"}.items():
                found[f"{own}.attention.{name}"] = Source(f"{theirs}.self_attn.{place}")
            parts = {"into": "pointwise_conv1", "over": "depthwise_conv", "out": "pointwise_conv2"}
            for name, place in parts.items():
                found |= both(f"{own}.conv.{name}", f"{theirs}.conv.{place}", self.convolution_bias)
            for part in ("weight", "bias", "running_mean", "running_var"):
                found[f"{own}.conv.norm.{part}"] = Source(f"{theirs}.conv.norm.{part}")
        return found

    def unused(self) -> set[str]:
        """Counts of training."""
        every = range(self.num_hidden_layers)
        return {f"encoder.layers.{number}.conv.norm.num_batches_tracked" for number in every}


class FeedForward(nn.Module):
    """A feed-forward network."""

    def __init__(self, config: ParakeetConfig) -> None:
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.attention_bias
        self.up, self.down = nn.Linear(hidden, inner, bias), nn.Linear(inner, hidden, bias)
        self.act = activation(config.hidden_act)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.down(self.act(self.up(x)))


class Attention(nn.Module):
    """Attention of every frame to all, by content and by distance."""

    def __init__(self, config: ParakeetConfig) -> None:
        hidden, bias, self.config = config.hidden_size, config.attention_bias, config
        self.query, self.key = nn.Linear(hidden, hidden, bias), nn.Linear(hidden, hidden, bias)
        self.value, self.output = nn.Linear(hidden, hidden, bias), nn.Linear(hidden, hidden, bias)
        self.distance = nn.Linear(hidden, hidden, False)
        shape = config.num_attention_heads, config.head_size
        self.content, self.place = nn.Parameter(shape), nn.Parameter(shape)

    def forward(self, x: nn.Tensor, there: nn.Tensor, distances: nn.Tensor) -> nn.Tensor:
        """(batch, frames, hidden), the frames (batch, frames) that are there, and the table of distances from
        frames - 1 down to 1 - frames → (batch, frames, hidden)."""
        config = self.config
        batch, frames, hidden = x.shape
        heads, head = config.num_attention_heads, config.head_size
        shape = batch, frames, heads, head
        query, key, value = (op.reshape(f(x), shape) for f in (self.query, self.key, self.value))
        table = op.reshape(self.distance(distances), (2 * frames - 1, heads, head))
        by_head = op.permute_dims(query + self.place, (0, 2, 1, 3))
        scores = op.matmul(by_head, op.permute_dims(table, (1, 2, 0))) * head**-0.5
        scores = _by_distance(scores)
        keys = op.reshape(there, (batch, 1, 1, frames))
        bias = op.where(keys, scores, MASKED)
        mixed = op.nn.attention(query + self.content, key, value, bias, head**-0.5)
        return self.output(op.reshape(mixed, (batch, frames, hidden)))


def _by_distance(scores: nn.Tensor) -> nn.Tensor:
    """Scores (batch, heads, frames, 2 * frames - 1) of distances, to those of keys (batch, heads, frames, frames): row
    i begins with the distance i, which is at frames - 1 - i. A column of zeros before all others moves each row by one
    more than the row before it, once rows are cut anew."""
    batch, heads, frames, _ = scores.shape
    padded = op.nn.pad(scores, pad_width=(0, 0, 0, 0, 0, 0, 1, 0))
    turned = op.reshape(padded, (batch, heads, 2 * frames, frames))
    moved = op.strided_slice(turned, (2,), (1,), (2 * frames,), assume_inbound=True)
    found = op.reshape(moved, (batch, heads, frames, 2 * frames - 1))
    cut = op.strided_slice(found, (3,), (0,), (frames,), assume_inbound=True)
    return op.match_cast(cut, (batch, heads, frames, frames))


class Convolution(nn.Module):
    """A gate, a convolution over time of each channel, and a mixture of channels."""

    def __init__(self, config: ParakeetConfig) -> None:
        hidden, bias, width = config.hidden_size, config.convolution_bias, config.conv_kernel_size
        self.into = nn.Conv1d(hidden, 2 * hidden, 1, bias=bias)
        self.over = nn.Conv1d(hidden, hidden, width, padding=width // 2, groups=hidden, bias=bias)
        self.norm = nn.BatchNorm1d(hidden)
        self.act = activation(config.hidden_act)
        self.out = nn.Conv1d(hidden, hidden, 1, bias=bias)

    def forward(self, x: nn.Tensor, there: nn.Tensor) -> nn.Tensor:
        """(batch, frames, hidden), and the frames (batch, frames) that are there → the same shape."""
        first, gate = op.split(self.into(op.permute_dims(x, (0, 2, 1))), 2, axis=1)
        y = op.where(op.expand_dims(there, 1), first * op.sigmoid(gate), 0.0)
        y = self.out(self.act(self.norm(self.over(y))))
        return op.permute_dims(y, (0, 2, 1))


class Layer(nn.Module):
    """Half a feed-forward network, attention, a convolution, and the other half."""

    def __init__(self, config: ParakeetConfig) -> None:
        hidden = config.hidden_size
        self.first_norm, self.first = nn.LayerNorm(hidden), FeedForward(config)
        self.attention_norm, self.attention = nn.LayerNorm(hidden), Attention(config)
        self.mixing_norm, self.conv = nn.LayerNorm(hidden), Convolution(config)
        self.second_norm, self.second = nn.LayerNorm(hidden), FeedForward(config)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: nn.Tensor, there: nn.Tensor, distances: nn.Tensor) -> nn.Tensor:
        x = x + self.first(self.first_norm(x)) * 0.5
        x = x + self.attention(self.attention_norm(x), there, distances)
        x = x + self.conv(self.mixing_norm(x), there)
        return self.norm(x + self.second(self.second_norm(x)) * 0.5)


class Parakeet(nn.Module):
    """The model, and its features."""

    def __init__(self, config: ParakeetConfig) -> None:
        self.config = config
        channels, hidden = config.subsampling_conv_channels, config.hidden_size
        self.convolutions = nn.ModuleList([nn.Conv2d(1, channels, 3, 2, 1)])
        every = range(config.halvings - 1)
        self.wide = nn.ModuleList(
            [nn.Conv2d(channels, channels, 3, 2, 1, groups=channels) for _ in every]
        )
        self.deep = nn.ModuleList([nn.Conv2d(channels, channels, 1) for _ in every])
        self.entry = nn.Linear(channels * config.bands, hidden)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.head = nn.Conv1d(hidden, config.vocab_size, 1)

    def features(self, samples: nn.Tensor, lengths: nn.Tensor) -> nn.Tensor:
        """The features (batch, frames, bands) of samples (batch, samples), row b of which has lengths[b]; 0 after
        them. Sums are of float64, in which the quietest bands of a loud frame are exact, too."""
        batch, length = samples.shape
        x = op.astype(samples, "float64")
        before = op.nn.pad(x, pad_width=(0, 0, 1, 0))
        x = (
            x
            - op.match_cast(op.strided_slice(before, (1,), (0,), (length,)), (batch, length)) * 0.97
        )
        x = op.where(mask(lengths, length), x, op.zeros((1,), "float64"))
        x = op.nn.pad(x, pad_width=(0, 0, WINDOW // 2, WINDOW // 2 + HOP))
        count = length // HOP
        starts = op.expand_dims(op.arange(count) * HOP, 1)
        places = op.reshape(starts + np.arange(WINDOW)[None], (-1,))
        frames = op.reshape(op.take(x, places, axis=1), (batch, count, WINDOW))
        waves = op.matmul(frames, _waves())
        real, imaginary = op.split(waves * waves, 2, axis=2)
        filters = mel_filters(self.config.num_mel_bins, bins=TRANSFORM // 2 + 1)
        logs = op.log(op.matmul(real + imaginary, filters) + FLOOR)
        there = op.astype(op.expand_dims(mask(lengths // HOP, count), 2), "float64")
        number = op.reshape(op.astype(lengths // HOP, "float64"), (batch, 1, 1))
        mean = op.sum(logs * there, axis=1, keepdims=True) / number
        off = (logs - mean) * there
        variance = op.sum(off * off, axis=1, keepdims=True) / (number - 1.0)
        return op.astype(off / (op.sqrt(variance) + EPSILON), "float32")

    def logits(self, features: nn.Tensor, lengths: nn.Tensor) -> nn.Tensor:
        """The logits (batch, frames, vocabulary) of features (batch, frames of features, bands), row b of which is of
        lengths[b] samples. After the frames of its samples a row has no meaning."""
        x, left = self._halved(features, lengths // HOP)
        batch, channels, _, bands = x.shape
        x = op.permute_dims(x, (0, 2, 1, 3))
        x = op.reshape(x, (batch, x.shape[1], channels * bands))
        x = op.match_cast(x, (batch, Dim.var("frames"), self.entry.weight.shape[1]))
        x = self.entry(x)
        x = x * math.sqrt(self.config.hidden_size) if self.config.scale_input else x
        frames = x.shape[1]
        there, distances = mask(left, frames), _distances(frames, self.config.hidden_size)
        for layer in self.layers:
            x = layer(x, there, distances)
        return op.permute_dims(self.head(op.permute_dims(x, (0, 2, 1))), (0, 2, 1))

    def _halved(self, features: nn.Tensor, left: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """(batch, frames, bands), and how many frames are there → (batch, channels, frames, bands), and how many."""

        def kept(x: nn.Tensor) -> nn.Tensor:
            there = mask(left, x.shape[2])
            return op.where(op.expand_dims(op.expand_dims(there, 1), 3), x, 0.0)

        x = op.expand_dims(features, 1)
        left = (left - 1) // 2 + 1
        x = op.nn.relu(kept(self.convolutions[0](x)))
        for wide, deep in zip(self.wide, self.deep, strict=True):
            left = (left - 1) // 2 + 1
            x = op.nn.relu(kept(deep(kept(wide(x)))))
        return x, left


def _waves() -> np.ndarray:
    """Cosines and sines (400, 2 * 257) of the frequencies of the transform, times the window."""
    n = np.arange(WINDOW)
    angles = 2 * np.pi / TRANSFORM * np.outer(n, np.arange(TRANSFORM // 2 + 1))
    window = np.sin(np.pi / (WINDOW - 1) * n)[:, None] ** 2
    return np.concatenate([np.cos(angles) * window, np.sin(angles) * window], 1)


def _distances(frames: Any, hidden: int) -> nn.Tensor:
    """Sines and cosines in turns, (2 * frames - 1, hidden), of the distances from frames - 1 down to 1 - frames."""
    falling = (1.0 / 10000 ** (np.arange(0, hidden, 2) / hidden)).astype(np.float32)
    count = 2 * frames - 1
    falls = op.astype(op.arange(frames - 1, -frames, -1), "float32")
    angles = op.expand_dims(op.match_cast(falls, (count,)), 1) * falling[None]
    both_waves = op.stack((op.sin(angles), op.cos(angles)), axis=2)
    return op.match_cast(op.reshape(both_waves, (count, hidden)), (count, hidden))
