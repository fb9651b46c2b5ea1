"""Convolutions are torch's, with any kernel, stride and border."""

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
    return Case(ours, getattr(torch.nn, kind)(*args, **options), dims, SIZES, atol=1e-4)


CASES = {
    "conv1d": both("Conv1d", "n 4 w", 4, 6, 3, padding=1, stride=2),
    "conv1d_same": both("Conv1d", "n 4 w", 4, 6, 4, padding="same", dilation=1),
    "conv1d_unbatched": both("Conv1d", "4 w", 4, 3, 2),
    "conv2d": both("Conv2d", "n 4 w 8", 4, 6, (3, 2), stride=(2, 1), padding=(1, 0)),
    "conv2d_groups": both("Conv2d", "n 4 w 8", 4, 8, (1, 5), groups=2, bias=False, dilation=(1, 1)),
    "conv2d_depthwise": both("Conv2d", "n 4 w w", 4, 4, 3, groups=4, padding=2, dilation=2),
    "conv2d_reflect": both("Conv2d", "n 3 w 8", 3, 4, 3, padding=2, padding_mode="reflect"),
    "conv2d_circular": both("Conv2d", "n 3 w 8", 3, 4, 3, padding=1, padding_mode="circular"),
    "conv2d_replicate": both(
        "Conv2d", "n 3 w 8", 3, 4, 3, padding="same", padding_mode="replicate"
    ),
    "conv3d": both("Conv3d", "n 2 w 5 4", 2, 3, (1, 3, 2), padding=(0, 1, 1), stride=(1, 2, 1)),
    "transposed1d": both(
        "ConvTranspose1d", "n 4 w", 4, 6, 3, stride=2, padding=1, output_padding=1
    ),
    "transposed2d": both("ConvTranspose2d", "n 4 w 5", 4, 6, (2, 3), stride=(2, 1), groups=2),
    "transposed2d_wide": both("ConvTranspose2d", "n 2 w 5", 2, 3, 3, dilation=2, bias=False),
    "transposed3d": both("ConvTranspose3d", "n 2 w 3 3", 2, 3, 2, stride=2),
}


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers(CASES)


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_equals_torch(layers: Layers, name: str) -> None:
    layers.check(name)


X = {"forward": {"x": nn.spec.Tensor(("n", 4))}}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "not divisible into 2 groups"),
        (lambda: nn.Conv2d(4, 4, (3, 3, 3)), "kernel_size must be"),
        (lambda: nn.Conv2d(4, 4, 0), "kernel_size must be an integer of at least 1"),
        (lambda: nn.Conv2d(4, 4, 3, padding="sames"), "neither"),
        (lambda: nn.Conv2d(4, 4, 3, padding="same", stride=2), "a stride of 1"),
        (lambda: nn.Conv2d(4, 4, 3, padding_mode="mirror"), "unknown padding_mode"),
        (lambda: nn.Conv2d(4, 4, 3.0), "kernel_size must be .* got 3.0"),  # type: ignore[arg-type]
        (lambda: nn.Conv2d(4, 4, 3).export(X), "4 axes, got 2"),
    ],
)
def test_wrong_options(wrong: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        wrong()
    assert caught.value.span is not None
    assert caught.value.span.file == __file__
