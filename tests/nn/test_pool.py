"""Pooling is torch's."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy import nn
from relaxpy.errors import UsageError
from tests.nn.against_torch import Case, Layers, torch
from tests.sweeps import sweep

SIZES = ({"n": 2, "w": 9}, {"n": 1, "w": 6})


def both(kind: str, dims: str, *args: Any, **options: Any) -> Case:
    ours = getattr(nn, kind)(*args, **options)
    return Case(ours, getattr(torch.nn, kind)(*args, **options), dims, SIZES)


CASES = {
    "max1d": both("MaxPool1d", "n 3 w", 3, stride=2, padding=1),
    "max2d": both("MaxPool2d", "n 3 w 7", (3, 2)),
    "max2d_ceil": both("MaxPool2d", "n 3 w 7", 2, stride=3, ceil_mode=True, dilation=2),
    "max3d": both("MaxPool3d", "n 2 w 4 4", (1, 2, 2)),
    "max2d_unbatched": both("MaxPool2d", "3 w 7", 2),
    "avg1d": both("AvgPool1d", "n 3 w", 3, 1, 1),
    "avg2d": both("AvgPool2d", "n 3 w 7", 3, padding=1),
    "avg2d_without": both("AvgPool2d", "n 3 w 7", 3, 2, 1, count_include_pad=False),
    "avg3d": both("AvgPool3d", "n 2 w 4 4", 2, 2, 1),
    "adaptive1d": both("AdaptiveAvgPool1d", "n 3 w", 4),
    "adaptive2d": both("AdaptiveAvgPool2d", "n 3 w 7", (2, 3)),
    "adaptive2d_kept": both("AdaptiveAvgPool2d", "n 3 w 7", (None, 1)),
    "adaptive3d": both("AdaptiveAvgPool3d", "n 2 w 4 4", (3, None, 2)),
    "shuffle": both("PixelShuffle", "n 8 w 3", 2),
    "unshuffle": both("PixelUnshuffle", "n 2 6 9", 3),
    "zero_pad": both("ZeroPad2d", "n 3 w 7", (1, 2, -1, 3)),
    "constant_pad": both("ConstantPad1d", "3 w", 2, 3.5),
    "constant_pad3d": both("ConstantPad3d", "n 3 w 2 2", (0, 1, 2, 0, 1, 1), -1.0),
    "reflection_pad": both("ReflectionPad2d", "n 3 w 7", (3, 1, 2, 0)),
    "replication_pad": both("ReplicationPad3d", "3 w 2 2", 2),
    "circular_pad": both("CircularPad1d", "n 3 w", (4, 1)),
    "upsample": both("Upsample", "n 3 w", scale_factor=3),
    "upsample_size": both("Upsample", "n 3 w 7", (5, 13)),
    "bilinear": both("Upsample", "n 3 w 7", scale_factor=(2, 3), mode="bilinear"),
    "bilinear_corners": both("Upsample", "n 3 w 7", size=5, mode="bilinear", align_corners=True),
    "bicubic": both("Upsample", "n 3 w 7", scale_factor=2, mode="bicubic"),
    "trilinear": both("Upsample", "n 2 w 2 3", scale_factor=2, mode="trilinear"),
    "flatten": both("Flatten", "n 3 w 7"),
    "flatten_some": both("Flatten", "n 3 w 7", 2, 3),
    "unflatten": both("Unflatten", "n 6 w", 1, (2, 3)),
    "dropout": both("Dropout", "n 3 w", 0.7),
    "identity": both("Identity", "n 3 w"),
}


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers(CASES)


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_equals_torch(layers: Layers, name: str) -> None:
    layers.check(name)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: nn.MaxPool2d(2, padding=2), "more than half of the window"),
        (lambda: nn.MaxPool2d(2, return_indices=True), "not supported"),
        (lambda: nn.AdaptiveAvgPool2d((1, 2, 3)), "output_size must be"),
        (lambda: nn.Dropout(1.5), "from 0 to 1"),
        (
            lambda: nn.AdaptiveAvgPool2d((None, 2)).export(
                {"forward": {"x": nn.spec.Tensor(("n", 3, "h", "w"))}}
            ),
            "of symbolic size",
        ),
    ],
)
def test_wrong_options(wrong: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        wrong()
    assert caught.value.span is not None
    assert caught.value.span.file == __file__
