"""Modules of torch that benchmarks compile: those of transformers by their usual configuration, and small ones written
out, all with random weights. Each takes one tensor and gives one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.images import their_mobilenet, their_resnet
from benchmarks.recurrent import NETWORKS as RECURRENT


@dataclass(frozen=True)
class Network:
    """A module, and the sizes that it is called with."""

    make: Callable[[], nn.Module]
    input: Callable[[tuple[int, ...]], np.ndarray]
    sizes: tuple[tuple[int, ...], ...]
    """That of the example, and others."""
    axes: tuple[str, ...]
    """Names of the axes of the input that vary; "" is one that does not."""
    tokens: Callable[[tuple[int, ...]], int] = lambda shape: shape[0]
    """The amount of work of a size."""
    traced: bool = True
    """Does torch.compile see it? It runs recurrent layers eagerly."""

    @property
    def example(self) -> np.ndarray:
        """The first input, at least 2 along each axis that varies: a trace takes a 1 to be one always."""
        sizes = self.sizes[0]
        varies = [*map(bool, self.axes)]
        return self.input(tuple(max(n, 2) if v else n for n, v in zip(sizes, varies, strict=True)))


class Encoder(nn.Module):
    """An encoder of transformers: one tensor to its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).last_hidden_state


class Conformer(nn.Module):
    """A block of a Conformer (Gulati et al., 2020) with 256 channels and no positions: halves of feed-forward layers
    around attention and a depthwise convolution over 31 frames."""

    def __init__(self, width: int = 256, heads: int = 4, kernel: int = 31) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = _feed_forward(width), _feed_forward(width)
        self.attention_norm, self.conv_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.conv = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1), nn.GLU(1),
            nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width),
            nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1),
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.before(x)
        rows, length, width = x.shape
        split = self.qkv(self.attention_norm(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind()
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        x = x + self.conv(self.conv_norm(x).transpose(1, 2)).transpose(1, 2)
        return self.norm(x + 0.5 * self.after(x))


def _feed_forward(width: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
    )


def _dqn() -> nn.Module:
    """The network of Mnih et al. (2015), for 18 actions."""
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 18),
    )  # fmt: skip


def _vgg() -> nn.Module:
    """VGG-16 (Simonyan and Zisserman, 2014)."""
    layers: list[nn.Module] = []
    inputs = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout()]
    layers += [nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers)


def _of_transformers(kind: str, part: str = "") -> nn.Module:
    """A model of transformers as its configuration is by default, or a part of it."""
    import transformers

    config = getattr(transformers, f"{kind}Config")()
    model = getattr(transformers, f"{kind}Model")(config)
    return Encoder(getattr(model, part) if part else model)


def _t5() -> nn.Module:
    """The encoder of T5-small: the configuration's defaults are its sizes."""
    from transformers import T5Config, T5EncoderModel

    return Encoder(T5EncoderModel(T5Config()))


def _whisper() -> nn.Module:
    """The encoder of Whisper-tiny."""
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536,
        decoder_layers=4, decoder_attention_heads=6, decoder_ffn_dim=1536,
    )  # fmt: skip
    return Encoder(WhisperModel(config).get_encoder())


class Outputs(nn.Module):
    """A recurrent layer without its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def _recurrent(name: str) -> nn.Module:
    """A network of benchmarks/recurrent.py."""
    model = RECURRENT[name].of(nn)
    return Outputs(model) if isinstance(model, nn.RNNBase) else model


def _normal(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape, "float32")


def _ids(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 30000, shape)


def _images(make: Callable[[], nn.Module], channels: int, side: int) -> Network:
    sizes = tuple((n, channels, side, side) for n in (1, 2, 3))
    return Network(make, _normal, sizes, ("batch", "", "", ""))


def _texts(make: Callable[[], nn.Module]) -> Network:
    sizes = ((1, 128), (1, 150), (1, 141), (2, 120))
    return Network(make, _ids, sizes, ("batch", "length"), lambda s: s[0] * s[1])


def _sequences(name: str, length: int) -> Network:
    own = RECURRENT[name]
    rest = () if own.kind == "Char" else (own.size,)
    sizes = tuple((n, 1, *rest) for n in (length, length + length // 5, length + length // 7))
    axes = ("length", "batch", "")[: len(sizes[0])]
    return Network(
        partial(_recurrent, name), lambda s: own.input(*s[:2]), sizes, axes, traced=False
    )


NETWORKS = {
    "ResNet-18": _images(their_resnet, 3, 224),
    "MobileNetV3 large": _images(partial(their_mobilenet, "LARGE"), 3, 224),
    "BERT-base": _texts(partial(_of_transformers, "Bert")),
    "ViT-B/16": _images(partial(_of_transformers, "ViT"), 3, 224),
    "T5-small, encoder": _texts(_t5),
    "Whisper-tiny, encoder": Network(
        _whisper, _normal, ((1, 80, 3000), (2, 80, 3000), (3, 80, 3000)), ("batch", "", "")
    ),
    "Conformer block": Network(
        Conformer, _normal, ((1, 500, 256), (1, 550, 256), (1, 523, 256)), ("batch", "frames", ""),
        lambda s: s[0] * s[1],
    ),
    "DQN": _images(_dqn, 4, 84),
    "VGG-16": _images(_vgg, 3, 224),
    "LSTM 64 x 1000": _sequences("LSTM 64", 1000),
    "LSTM 512 x 200": _sequences("LSTM 512", 200),
    "CharRNN": _sequences("CharRNN", 50),
}  # fmt: skip


def network_module(name: str) -> Any:
    """The module with the same random weights in every process."""
    torch.manual_seed(0)
    return NETWORKS[name].make().eval()
