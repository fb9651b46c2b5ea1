"""MobileNetV3 (Howard et al., 2019) for image classification: the large and the small network, by their tables.

Modules and parameters have the names of torchvision's `mobilenet_v3_large` and `mobilenet_v3_small`, so no name mapping
is needed. Batch normalisation is that of inference; with bound parameters it is folded into the weights of the
convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy import nn
from relaxpy.models.checkpoint import Source, gather
from relaxpy.nn import op

EPSILON = 1e-3
"""Of all normalisations."""
STEM = 16
"""Channels of the first convolution."""
LAST_EXPANSION = 6
"""Ratio of the last convolution's channels to those of the last block."""
REDUCTION = 4
"""Ratio of a block's expanded channels to those of its squeeze-and-excite, about."""


@dataclass(frozen=True)
class Bottleneck:
    """A row of the paper's tables 1 and 2: an inverted residual block."""

    kernel: int
    expanded: int
    """Channels of the depthwise convolution."""
    outputs: int
    has_squeeze: bool
    is_hard: bool
    """The activation is hard-swish, not ReLU."""
    stride: int


@dataclass(frozen=True)
class MobileNetConfig:
    """The blocks in order, and the classifier."""

    blocks: tuple[Bottleneck, ...]
    hidden_size: int
    """Width of the classifier's first layer."""
    num_labels: int = 1000


LARGE = MobileNetConfig(
    (
        Bottleneck(3, 16, 16, False, False, 1),
        Bottleneck(3, 64, 24, False, False, 2),
        Bottleneck(3, 72, 24, False, False, 1),
        Bottleneck(5, 72, 40, True, False, 2),
        Bottleneck(5, 120, 40, True, False, 1),
        Bottleneck(5, 120, 40, True, False, 1),
        Bottleneck(3, 240, 80, False, True, 2),
        Bottleneck(3, 200, 80, False, True, 1),
        Bottleneck(3, 184, 80, False, True, 1),
        Bottleneck(3, 184, 80, False, True, 1),
        Bottleneck(3, 480, 112, True, True, 1),
        Bottleneck(3, 672, 112, True, True, 1),
        Bottleneck(5, 672, 160, True, True, 2),
        Bottleneck(5, 960, 160, True, True, 1),
        Bottleneck(5, 960, 160, True, True, 1),
    ),
    hidden_size=1280,
)

SMALL = MobileNetConfig(
    (
        Bottleneck(3, 16, 16, True, False, 2),
        Bottleneck(3, 72, 24, False, False, 2),
        Bottleneck(3, 88, 24, False, False, 1),
        Bottleneck(5, 96, 40, True, True, 2),
        Bottleneck(5, 240, 40, True, True, 1),
        Bottleneck(5, 240, 40, True, True, 1),
        Bottleneck(5, 120, 48, True, True, 1),
        Bottleneck(5, 144, 48, True, True, 1),
        Bottleneck(5, 288, 96, True, True, 2),
        Bottleneck(5, 576, 96, True, True, 1),
        Bottleneck(5, 576, 96, True, True, 1),
    ),
    hidden_size=1024,
)

TINY = MobileNetConfig(
    (
        Bottleneck(3, 16, 16, False, False, 1),
        Bottleneck(3, 36, 20, True, False, 2),
        Bottleneck(5, 60, 20, True, True, 1),
    ),
    hidden_size=24,
    num_labels=7,
)
"""A small configuration for tests."""


class ConvLayer(nn.Sequential):
    """Convolution without bias, batch normalisation, and an activation if there is one."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        activation: type[nn.Module] | None = None,
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm(outputs, EPSILON),
            *([] if activation is None else [activation()]),
        )


class SqueezeExcite(nn.Module):
    """Factors for the channels of an image, computed from their means."""

    def __init__(self, channels: int) -> None:
        squeezed = divisible(channels / REDUCTION)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.Hardsigmoid()

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        means = op.nn.adaptive_avg_pool2d(x, output_size=1)
        return x * self.activation(self.fc2(op.nn.relu(self.fc1(means))))


class InvertedResidual(nn.Module):
    """Channels are expanded, filtered one by one, weighted, and projected; the input is added where it has the same
    shape."""

    def __init__(self, inputs: int, block: Bottleneck) -> None:
        activation = nn.Hardswish if block.is_hard else nn.ReLU
        inner = block.expanded
        depthwise = ConvLayer(
            inner, inner, block.kernel, block.stride, groups=inner, activation=activation
        )
        self.block = nn.Sequential(
            *([ConvLayer(inputs, inner, activation=activation)] if inner != inputs else []),
            depthwise,
            *([SqueezeExcite(inner)] if block.has_squeeze else []),
            ConvLayer(inner, block.outputs),
        )
        self.is_residual = block.stride == 1 and inputs == block.outputs

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y = self.block(x)
        return x + y if self.is_residual else y


class MobileNet(nn.Module):
    """Image classification: from images to the logits of the labels."""

    def __init__(self, config: MobileNetConfig) -> None:
        widths = [STEM, *(block.outputs for block in config.blocks)]
        last = widths[-1] * LAST_EXPANSION
        self.config = config
        self.features = nn.Sequential(
            ConvLayer(3, STEM, 3, 2, activation=nn.Hardswish),
            *map(InvertedResidual, widths, config.blocks),
            ConvLayer(widths[-1], last, activation=nn.Hardswish),
        )
        self.classifier = nn.Sequential(
            nn.Linear(last, config.hidden_size),
            nn.Hardswish(),
            nn.Dropout(),
            nn.Linear(config.hidden_size, config.num_labels),
        )

    def classify(self, pixel_values: nn.Tensor) -> nn.Tensor:
        """Logits (batch, labels) of images (batch, 3, height, width)."""
        x = op.nn.adaptive_avg_pool2d(self.features(pixel_values), output_size=1)
        return self.classifier(op.squeeze(x, axis=(2, 3)))


def divisible(channels: float, by: int = 8) -> int:
    """The multiple of 8 next to a number of channels, and not below nine tenths of it."""
    nearest = max(by, int(channels + by / 2) // by * by)
    return nearest + by if nearest < 0.9 * channels else nearest


def spec(height: int | str = "height", width: int | str = "width") -> Any:
    """The arguments of the exported function: symbolic batch size, and symbolic height and width unless they are
    given."""
    images = nn.spec.Tensor(("batch", 3, height, width), "float32")
    return {"classify": {"pixel_values": images}}


def load_weights(model: MobileNet, tensors: Mapping[str, np.ndarray]) -> None:
    """Load the model's weights from a checkpoint's tensors, strictly; the counters of training steps are ignored."""
    unused = {name for name in tensors if name.endswith(".num_batches_tracked")}
    shapes = {name: tensor.shape for name, tensor in model.named_tensors()}
    model.load(gather(tensors, {name: Source(name) for name in shapes}, shapes, unused))
