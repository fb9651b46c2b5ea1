"""MobileNetV3 in torch, with the names of torchvision, which is no dependency: for tests and benchmarks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from relaxpy.models.mobilenet import Bottleneck, MobileNetConfig


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factors = self.fc2(torch.relu(self.fc1(self.avgpool(x))))
        return x * nn.functional.hardsigmoid(factors)


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, row: Bottleneck, squeezed: int) -> None:
        super().__init__()
        inner, activation = row.expanded, nn.Hardswish if row.is_hard else nn.ReLU
        layers: list[nn.Module] = []
        if inner != inputs:
            layers.append(layer(inputs, inner, 1, 1, 1, activation))
        layers.append(layer(inner, inner, row.kernel, row.stride, inner, activation))
        if row.has_squeeze:
            layers.append(SqueezeExcite(inner, squeezed))
        layers.append(layer(inner, row.outputs, 1, 1, 1, None))
        self.block = nn.Sequential(*layers)
        self.is_residual = row.stride == 1 and inputs == row.outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.block(x)
        return x + y if self.is_residual else y


class MobileNet(nn.Module):
    """`mobilenet_v3_large` or `_small`; `squeezed` has the inner channels of each block's squeeze-and-excite."""

    def __init__(self, config: MobileNetConfig, squeezed: dict[int, int]) -> None:
        super().__init__()
        widths = [16, *(row.outputs for row in config.blocks)]
        blocks = [
            InvertedResidual(inputs, row, squeezed[row.expanded] if row.has_squeeze else 0)
            for inputs, row in zip(widths, config.blocks, strict=False)
        ]
        last = 6 * widths[-1]
        self.features = nn.Sequential(
            layer(3, 16, 3, 2, 1, nn.Hardswish),
            *blocks,
            layer(widths[-1], last, 1, 1, 1, nn.Hardswish),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(last, config.hidden_size),
            nn.Hardswish(),
            nn.Dropout(),
            nn.Linear(config.hidden_size, config.num_labels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def layer(inputs: int, outputs: int, kernel: int, stride: int, groups: int, activation: Any) -> Any:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outputs, eps=1e-3)
    return nn.Sequential(convolution, norm, *([activation()] if activation else []))


SQUEEZED = {
    16: 8,
    36: 16,
    60: 16,
    72: 24,
    96: 24,
    120: 32,
    144: 40,
    240: 64,
    288: 72,
    480: 120,
    576: 144,
    672: 168,
    960: 240,
}
"""Inner channels of torchvision's squeeze-and-excites, by the channels around them."""


def random_network(config: MobileNetConfig) -> MobileNet:
    """The network with random weights, and statistics that are not 0 and 1."""
    torch.manual_seed(0)
    model = MobileNet(config, SQUEEZED).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for value, around in (
                    (module.weight, 1.0),
                    (module.bias, 0.0),
                    (module.running_mean, 0.0),
                ):
                    assert value is not None
                    value.copy_(torch.randn_like(value) * 0.2 + around)
                assert module.running_var is not None
                module.running_var.copy_(torch.rand_like(module.running_var) + 0.5)
    return model
