"""Activations are torch's."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy import nn
from relaxpy.errors import UsageError
from tests.nn.against_torch import Case, Layers, torch

SIZES = ({"n": 3}, {"n": 1}, {"n": 0})
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("ReLU", {"inplace": True}),
    "relu6": ("ReLU6", {}),
    "gelu": ("GELU", {}),
    "gelu_tanh": ("GELU", {"approximate": "tanh"}),
    "silu": ("SiLU", {}),
    "selu": ("SELU", {}),
    "mish": ("Mish", {}),
    "elu": ("ELU", {"alpha": 1.5}),
    "hardtanh": ("Hardtanh", {"min_val": -0.5}),
    "hardsigmoid": ("Hardsigmoid", {}),
    "hardswish": ("Hardswish", {}),
    "sigmoid": ("Sigmoid", {}),
    "logsigmoid": ("LogSigmoid", {}),
    "tanh": ("Tanh", {}),
    "softsign": ("Softsign", {}),
    "softplus": ("Softplus", {"beta": 2.0}),
    "leaky": ("LeakyReLU", {"negative_slope": 0.2}),
    "softmax": ("Softmax", {"dim": 1}),
    "logsoftmax": ("LogSoftmax", {"dim": -1}),
    "glu": ("GLU", {"dim": 1}),
    "prelu": ("PReLU", {"num_parameters": 6}),
    "prelu_one": ("PReLU", {}),
}


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers(
        {
            name: Case(getattr(nn, kind)(**given), getattr(torch.nn, kind)(**given), "n 6 5", SIZES)
            for name, (kind, given) in MADE.items()
        }
    )


@pytest.mark.parametrize("name", MADE)
def test_equals_torch(layers: Layers, name: str) -> None:
    layers.check(name)


def test_wrong_options() -> None:
    for wrong in (
        lambda: nn.GELU("tan"),
        lambda: nn.Hardtanh(1.0, 1.0),
        lambda: nn.GLU(1).export({"forward": {"x": nn.spec.Tensor(("n", 5))}}),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.span is not None
        assert caught.value.span.file == __file__
