"""Modules: names of parameters, loading, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy import nn
from relaxpy.errors import UsageError


class Block(nn.Module):
    def __init__(self) -> None:
        self.up = nn.Linear(2, 3)
        self.down = nn.Linear(3, 2, bias=False)


class Model(nn.Module):
    def __init__(self) -> None:
        self.table = nn.Embedding(5, 2)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.tied = self.table.weight
        self.scale = 2.0


def state() -> dict[str, np.ndarray]:
    return {name: np.ones(p.shape, np.float32) for name, p in Model().named_parameters()}


def test_parameters_are_named_by_path_and_come_once() -> None:
    assert {name: parameter.shape for name, parameter in Model().named_parameters()} == {
        "table.weight": (5, 2),
        "blocks.0.up.weight": (2, 3),
        "blocks.0.up.bias": (3,),
        "blocks.0.down.weight": (3, 2),
        "blocks.1.up.weight": (2, 3),
        "blocks.1.up.bias": (3,),
        "blocks.1.down.weight": (3, 2),
    }


def test_load_sets_every_parameter() -> None:
    model = Model()
    model.load(state())
    assert all(parameter.data is not None for _, parameter in model.named_parameters())
    assert model.tied.data is model.table.weight.data


def test_load_lists_every_problem() -> None:
    given = state()
    del given["table.weight"]
    given["odd"] = np.ones(1)
    given["blocks.0.up.bias"] = np.ones(4, np.float32)
    with pytest.raises(UsageError) as caught:
        Model().load(given)
    assert caught.value.notes == (
        "missing: table.weight",
        "unexpected: odd",
        "blocks.0.up.bias: the parameter is float32[3], the value float32[4]",
    )


def test_parameter_refuses_another_dtype() -> None:
    with pytest.raises(UsageError, match="the value float64"):
        nn.Parameter((2,)).data = np.ones(2)


def test_module_list_is_a_sequence() -> None:
    blocks = Model().blocks
    assert len(blocks) == 2
    assert blocks[1] is list(blocks)[1]


class Stack(nn.Module):
    """Layers in a list, which hides them."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Outer(nn.Module):
    def __init__(self) -> None:
        self.inner = Stack()

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.inner(x)


SPEC = {"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}}


def test_a_list_of_modules_says_what_to_write() -> None:
    for module, place in ((Stack(), "self.layers"), (Outer(), "self.inner.layers")):
        with pytest.raises(UsageError, match="is not reachable from the exported module") as caught:
            module.export(SPEC)
        assert f"{place} = nn.ModuleList({place})" in str(caught.value.help)
        with pytest.raises(UsageError, match="do not match") as caught:
            module.load({"layers.0.weight": np.zeros((4, 4), np.float32)})
        assert f"nn.ModuleList({place})" in str(caught.value)
    right = Stack()
    right.layers = nn.ModuleList(right.layers)
    mod, _ = right.export(SPEC)
    assert len(mod["forward"].params) == 5  # type: ignore[union-attr]


def test_a_module_list_holds_modules() -> None:
    for wrong in ([1, 2], [nn.Linear(2, 2), None], 3):
        with pytest.raises(UsageError, match="a ModuleList contains modules, got"):
            nn.ModuleList(wrong)  # type: ignore[arg-type]
    assert len(nn.ModuleList()) == 0
    assert len(nn.ModuleList(nn.Linear(2, 2) for _ in range(3))) == 3


def test_weights_of_the_transposed_shape() -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = torch.nn.Linear(4, 8), nn.Linear(4, 8)
    with pytest.raises(UsageError, match="do not match") as caught:
        ours.load(theirs.state_dict())
    assert "weight.T" in str(caught.value) or "value.T" in str(caught.value)
    ours.load({"weight": theirs.weight.T, "bias": theirs.bias})
    with pytest.raises(UsageError, match="weight is a parameter") as caught:
        ours.weight = theirs.weight
    assert "module.weight.data" in str(caught.value.help)
    ours.bias = None
    with pytest.raises(UsageError) as caught:
        ours.weight.data = np.zeros((4, 8))
    assert 'astype("float32")' in str(caught.value.help)


def test_functions_of_other_packages_say_whose_tensor_it_is() -> None:
    torch = pytest.importorskip("torch")

    class Wrong(nn.Module):
        def __init__(self, function: Any) -> None:
            self.function = function

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.function(x)

    for function, told, help in (
        (torch.relu, "torch.relu does not support tensors", "nn.op.nn.relu(x, …)"),
        (
            torch.nn.functional.gelu,
            "torch.gelu does not support tensors of relaxpy",
            "nn.op.nn.gelu(x, …)",
        ),
        (lambda x: torch.cat([x, x]), "torch.cat does not support tensors of relaxpy", "nn.op"),
    ):
        with pytest.raises(UsageError, match=told) as caught:
            Wrong(function).export(SPEC)
        assert help in str(caught.value.help)
        assert caught.value.span is not None
