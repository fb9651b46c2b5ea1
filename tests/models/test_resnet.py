"""Residual networks against transformers on the same random weights, from one executable for all images."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.ir.expr import Call, Function
from relaxpy.models.resnet import RESNET18, TINY, ResNet, ResNetConfig, load_weights, spec
from relaxpy.transform import BindParams, FoldScaleAxis, Normalize, PassContext
from tests.sweeps import part, quick_target, sweep

CONFIGS = {
    "basic": TINY,
    "bottleneck": dataclasses.replace(
        TINY, layer_type="bottleneck", hidden_sizes=(16, 32), downsample_in_first_stage=True
    ),
}


def reference(config: ResNetConfig) -> Any:
    """transformers' network of this configuration; random weights, statistics that are not 0 and 1."""
    import torch
    from transformers import ResNetConfig as TransformersConfig
    from transformers import ResNetForImageClassification

    torch.manual_seed(0)
    torch.set_num_threads(1)
    given = dataclasses.asdict(config)
    fields: dict[str, Any] = {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()}
    model = ResNetForImageClassification(TransformersConfig(**fields)).eval()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("running_var"):
                value.copy_(torch.rand_like(value) + 0.5)
            elif "normalization" in name and value.ndim == 1:
                value.copy_(
                    torch.randn_like(value) * 0.3 + (1.0 if name.endswith("weight") else 0.0)
                )
    return model


@sweep
@pytest.mark.parametrize("name", part([*CONFIGS], 2))
def test_scores(name: str) -> None:
    """Any batch and any size of images, an odd one too."""
    import torch

    config = CONFIGS[name]
    theirs, ours = reference(config), ResNet(config)
    load_weights(ours, {n: value.numpy() for n, value in theirs.state_dict().items()})
    mod, params = ours.export(spec(config))
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params=params))
    for batch, height, width in ((1, 32, 32), (3, 17, 40), (2, 33, 9)):
        pixels = np.random.default_rng(batch).standard_normal((batch, 3, height, width), "float32")
        with torch.no_grad():
            want = theirs(pixel_values=torch.from_numpy(pixels)).logits.numpy()
        got = vm["classify"](pixels).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_normalisation_goes_into_the_weights() -> None:
    """Of 20 convolutions and as many normalisations of ResNet-18, the latter are gone."""
    model = ResNet(RESNET18)
    for _, parameter in model.named_tensors():
        parameter.data = np.full(parameter.shape, 0.5, "float32")
    mod, params = model.export(spec(RESNET18))
    bound = BindParams()(Normalize()(mod), PassContext(params=params))
    main = FoldScaleAxis()(bound)["classify"]
    assert isinstance(main, Function)
    names = [b.value.op.name for b in main.body.bindings if isinstance(b.value, Call)]  # type: ignore[union-attr]
    assert names.count("nn.conv2d") == 20
    assert "nn.batch_norm" not in names


def test_from_dict() -> None:
    """A transformers configuration, by its own names."""
    fields = {
        "model_type": "resnet", "depths": [1, 1], "hidden_sizes": [8, 16], "layer_type": "basic",
        "id2label": {"0": "cat", "1": "dog"}, "hidden_act": "relu",
    }  # fmt: skip
    config = ResNetConfig.from_dict(fields)
    assert (config.depths, config.hidden_sizes, config.num_labels) == ((1, 1), (8, 16), 2)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"layer_type": "dense"}, "layer_type"),
        ({"depths": [1]}, "1 depths"),
        ({"hidden_act": "gelu"}, "gelu"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        ResNetConfig.from_dict(fields)
