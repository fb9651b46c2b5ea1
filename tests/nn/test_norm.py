"""Normalisations are torch's."""

from __future__ import annotations

import pytest

from relaxpy import nn
from relaxpy.errors import UsageError
from tests.nn.against_torch import Case, Layers, torch

SIZES = ({"n": 2, "w": 3}, {"n": 1, "w": 7})


def both(kind: str, dims: str, *args: object, **options: object) -> Case:
    ours = getattr(nn, kind)(*args, **options)
    return Case(ours, getattr(torch.nn, kind)(*args, **options), dims, SIZES, atol=5e-5)


CASES = {
    "layer": both("LayerNorm", "n w 6", 6),
    "layer_two_axes": both("LayerNorm", "n w 4 6", (4, 6), eps=1e-3),
    "layer_plain": both("LayerNorm", "n w 6", 6, elementwise_affine=False),
    "layer_no_bias": both("LayerNorm", "n w 6", 6, bias=False),
    "rms": both("RMSNorm", "n w 6", 6),
    "rms_plain": both("RMSNorm", "n w 6", 6, eps=1e-4, elementwise_affine=False),
    "group": both("GroupNorm", "n 6 w", 3, 6),
    "group_plain": both("GroupNorm", "n 6 5 w", 2, 6, affine=False),
    "batch": both("BatchNorm2d", "n 4 w w", 4, eps=1e-3),
    "batch_flat": both("BatchNorm1d", "n 4", 4),
    "batch_plain": both("BatchNorm1d", "n 4 w", 4, affine=False),
    "batch3d": both("BatchNorm3d", "n 2 w 2 2", 2),
    "instance": both("InstanceNorm2d", "n 4 w 3", 4, affine=True),
    "instance_plain": both("InstanceNorm1d", "n 4 w", 4),
}


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers(CASES)


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(layers: Layers, name: str) -> None:
    layers.check(name)


def test_counters_of_training_are_ignored_with_or_without() -> None:
    state = dict(torch.nn.BatchNorm2d(3).state_dict())
    assert "num_batches_tracked" in state
    nn.Sequential(nn.BatchNorm2d(3)).load_state_dict({f"0.{n}": v for n, v in state.items()})
    del state["num_batches_tracked"]
    model = nn.BatchNorm2d(3)
    model.load_state_dict(state)
    torch.nn.BatchNorm2d(3).load_state_dict(
        {name: torch.from_numpy(array) for name, array in model.state_dict().items()}
    )
    assert [name for name, _ in model.named_buffers()] == ["running_mean", "running_var"]
    assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]


def test_wrong_options() -> None:
    export = {"forward": {"x": nn.spec.Tensor(("n", 3))}}
    for wrong, told in (
        (lambda: nn.GroupNorm(4, 6), "not divisible"),
        (lambda: nn.BatchNorm2d(3, track_running_stats=False), "needs track_running_stats"),
        (
            lambda: nn.InstanceNorm2d(3, track_running_stats=True),
            "does not support track_running_stats",
        ),
        (lambda: nn.BatchNorm2d(3).export(export), "4 axes, got 2"),
    ):
        with pytest.raises(UsageError, match=told) as caught:
            wrong()
        assert caught.value.span is not None
        assert caught.value.span.file == __file__
