"""MobileNetV3 against torch on the same random weights, from one executable for all images."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.expr import Call, Function
from relaxpy.models.mobilenet import (
    LARGE,
    SMALL,
    TINY,
    MobileNet,
    MobileNetConfig,
    divisible,
    load_weights,
    spec,
)
from relaxpy.transform import BindParams, FoldScaleAxis, Normalize, PassContext
from tests.sweeps import full


@full
def test_scores() -> None:
    """Any batch and any size of images, an odd one too."""
    import torch

    from benchmarks.torch_mobilenet import random_network

    theirs, ours = random_network(TINY), MobileNet(TINY)
    load_weights(ours, {name: value.numpy() for name, value in theirs.state_dict().items()})
    mod, params = ours.export(spec())
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))
    for batch, height, width in ((1, 32, 32), (3, 17, 40), (2, 33, 9), (1, 2, 1)):
        pixels = np.random.default_rng(batch).standard_normal((batch, 3, height, width), "float32")
        with torch.no_grad():
            want = theirs(torch.from_numpy(pixels)).numpy()
        got = vm["classify"](pixels).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("config", "parameters"), [(LARGE, 5_483_032), (SMALL, 2_542_856)])
def test_tensors_are_those_of_torchvision(config: MobileNetConfig, parameters: int) -> None:
    """By name and shape; torchvision publishes how many parameters there are."""
    from benchmarks.torch_mobilenet import SQUEEZED
    from benchmarks.torch_mobilenet import MobileNet as Theirs

    theirs = Theirs(config, SQUEEZED).state_dict()
    ours = dict(MobileNet(config).named_tensors())
    kept = {name: tuple(t.shape) for name, t in theirs.items() if "num_batches" not in name}
    assert {name: tensor.shape for name, tensor in ours.items()} == kept
    learned = (tensor.shape for name, tensor in ours.items() if "running" not in name)
    assert sum(int(np.prod(shape)) for shape in learned) == parameters


def test_normalisation_goes_into_the_weights() -> None:
    model = MobileNet(TINY)
    for _, parameter in model.named_tensors():
        parameter.data = np.full(parameter.shape, 0.5, "float32")
    mod, params = model.export(spec())
    bound = BindParams()(Normalize()(mod), PassContext(params=params))
    main = FoldScaleAxis()(bound)["classify"]
    assert isinstance(main, Function)
    names = [b.value.op.name for b in main.body.bindings if isinstance(b.value, Call)]  # type: ignore[union-attr]
    assert "nn.batch_norm" not in names


@pytest.mark.parametrize(("channels", "number"), [(4, 8), (18, 24), (30, 32), (11, 16), (24, 24)])
def test_divisible(channels: float, number: int) -> None:
    assert divisible(channels) == number
