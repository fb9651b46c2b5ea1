"""Residual networks (He et al., 2015) for image classification: ResNet-18 to ResNet-152, by configuration.

Modules and parameters have the names of transformers' `ResNetForImageClassification`, so no name mapping is needed.
Batch normalisation is that of inference; with bound parameters it is folded into the weights of the convolutions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import Source, gather, read_config
from relaxpy.nn import op

REDUCTION = 4
"""Ratio of a bottleneck's output width to its inner width."""


@dataclass(frozen=True)
class ResNetConfig:
    """The fields of a checkpoint's `config.json`, by transformers' names. The defaults are ResNet-50's."""

    num_channels: int = 3
    embedding_size: int = 64
    hidden_sizes: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    layer_type: str = "bottleneck"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False
    num_labels: int = 1000

    def __post_init__(self) -> None:
        if self.layer_type not in ("basic", "bottleneck"):
            raise UsageError(
                "bad-config",
                f"unknown layer_type {self.layer_type!r}",
                help="one of basic, bottleneck",
            )
        if len(self.hidden_sizes) != len(self.depths):
            raise UsageError(
                "bad-config",
                f"{len(self.hidden_sizes)} hidden_sizes and {len(self.depths)} depths: each stage needs one of each",
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ResNetConfig:
        """Read the fields of a `config.json`. Unsupported settings are refused; fields that are not needed are
        ignored."""
        if (activation := fields.get("hidden_act", "relu")) != "relu":
            raise UsageError("bad-config", f"activation {activation!r} is not supported")
        known = {field.name for field in dataclasses.fields(cls)}
        given: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in fields.items() if n in known
        }
        if "id2label" in fields:
            given["num_labels"] = len(fields["id2label"])
        return cls(**given)

    @classmethod
    def from_checkpoint(cls, directory: Path) -> ResNetConfig:
        """Read `config.json` of a checkpoint directory."""
        return cls.from_dict(read_config(directory, "resnet"))


RESNET18 = ResNetConfig(hidden_sizes=(64, 128, 256, 512), depths=(2, 2, 2, 2), layer_type="basic")

TINY = ResNetConfig(
    embedding_size=10, hidden_sizes=(12, 20), depths=(2, 1), layer_type="basic", num_labels=7
)
"""A small configuration for tests."""


class ConvLayer(nn.Module):
    """Convolution without bias, batch normalisation, and optionally ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, activation: bool = True
    ) -> None:
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.normalization = nn.BatchNorm(outputs)
        self.activation = activation

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(batch, inputs, height, width) → (batch, outputs, ceil(height / stride), ceil(width / stride))."""
        y = self.normalization(self.convolution(x))
        return op.nn.relu(y) if self.activation else y


class Residual(nn.Module):
    """A residual block: some layers, plus a shortcut that brings the input to the same shape."""

    def __init__(self, inputs: int, outputs: int, stride: int, layers: list[ConvLayer]) -> None:
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else ConvLayer(inputs, outputs, 1, stride, activation=False)
        self.layer = nn.ModuleList(layers)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        around = x if self.shortcut is None else self.shortcut(x)
        return op.nn.relu(self.layer(x) + around)


def residual(config: ResNetConfig, inputs: int, outputs: int, stride: int) -> Residual:
    """A residual block of the configuration's type."""
    if config.layer_type == "basic":
        layers = [
            ConvLayer(inputs, outputs, 3, stride),
            ConvLayer(outputs, outputs, activation=False),
        ]
        return Residual(inputs, outputs, stride, layers)
    inner = outputs // REDUCTION
    first, second = (stride, 1) if config.downsample_in_bottleneck else (1, stride)
    layers = [
        ConvLayer(inputs, inner, 1, first),
        ConvLayer(inner, inner, 3, second),
        ConvLayer(inner, outputs, 1, activation=False),
    ]
    return Residual(inputs, outputs, stride, layers)


class Stage(nn.Module):
    """Blocks of the same width; the first has the given stride, and halves the image if it is 2."""

    def __init__(
        self, config: ResNetConfig, inputs: int, outputs: int, depth: int, stride: int
    ) -> None:
        self.layers = nn.ModuleList(
            [
                residual(config, outputs if i else inputs, outputs, 1 if i else stride)
                for i in range(depth)
            ]
        )

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.layers(x)


class Embedder(nn.Module):
    """The stem: a 7×7 convolution and a pooling, which reduce the image by a factor of four."""

    def __init__(self, config: ResNetConfig) -> None:
        self.embedder = ConvLayer(config.num_channels, config.embedding_size, 7, 2)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return op.nn.max_pool2d(self.embedder(x), pool_size=3, strides=2, padding=1)


class Encoder(nn.Module):
    """All stages in order."""

    def __init__(self, config: ResNetConfig) -> None:
        widths = (config.embedding_size, *config.hidden_sizes)
        strides = (2 if config.downsample_in_first_stage else 1, *(2 for _ in config.depths[1:]))
        self.stages = nn.ModuleList(
            [
                Stage(config, inputs, outputs, depth, stride)
                for inputs, outputs, depth, stride in zip(
                    widths[:-1], widths[1:], config.depths, strides, strict=True
                )
            ]
        )

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.stages(x)


class Backbone(nn.Module):
    """The feature extractor: one vector per image."""

    def __init__(self, config: ResNetConfig) -> None:
        self.embedder = Embedder(config)
        self.encoder = Encoder(config)

    def forward(self, pixels: nn.Tensor) -> nn.Tensor:
        """(batch, channels, height, width) → (batch, width of the last stage)."""
        x = op.nn.adaptive_avg_pool2d(self.encoder(self.embedder(pixels)), output_size=1)
        return op.squeeze(x, axis=(2, 3))


class Classifier(nn.Module):
    """The linear classifier on features; its parameters have number 1 in transformers' sequence (0 is the flatten)."""

    def __init__(self, config: ResNetConfig) -> None:
        self.linear = nn.Linear(config.hidden_sizes[-1], config.num_labels)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.linear(x)


class ResNet(nn.Module):
    """Image classification: from images to the logits of the labels."""

    def __init__(self, config: ResNetConfig) -> None:
        self.config = config
        self.resnet = Backbone(config)
        self.classifier = Classifier(config)

    def classify(self, pixel_values: nn.Tensor) -> nn.Tensor:
        """Logits (batch, labels) of images (batch, channels, height, width)."""
        return self.classifier(self.resnet(pixel_values))


def spec(config: ResNetConfig, height: int | str = "height", width: int | str = "width") -> Any:
    """The arguments of the exported function: symbolic batch size, and symbolic height and width unless they are
    given."""
    images = nn.spec.Tensor(("batch", config.num_channels, height, width), "float32")
    return {"classify": {"pixel_values": images}}


def sources(model: ResNet) -> dict[str, Source]:
    """The checkpoint tensor of each parameter, by transformers' names."""
    found = {name: Source(name) for name, _ in model.named_tensors()}
    found["classifier.linear.weight"] = Source("classifier.1.weight")
    found["classifier.linear.bias"] = Source("classifier.1.bias")
    return found


def load_weights(model: ResNet, tensors: Mapping[str, np.ndarray]) -> None:
    """Load the model's weights from a checkpoint's tensors, strictly; the counters of training steps are ignored."""
    unused = {name for name in tensors if name.endswith(".num_batches_tracked")}
    shapes = {name: tensor.shape for name, tensor in model.named_tensors()}
    model.load(gather(tensors, sources(model), shapes, unused))
