"""Containers: order, names, what they refuse, how they print."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import Function


def test_a_sequence_of_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    assert [name for name, _ in model.named_parameters()] == [
        "0.weight",
        "0.bias",
        "3.weight",
        "3.bias",
    ]
    assert len(model[1:]) == 3
    assert model[-1] is list(model)[3]
    mod, _ = model.export({"forward": {"x": nn.spec.Tensor(("n", 4))}})
    forward = mod["forward"]
    assert isinstance(forward, Function)
    assert [p.name for p in forward.params] == ["x", "_0_weight", "_0_bias", "_3_weight", "_3_bias"]
    named = nn.Sequential({"up": nn.Linear(4, 8)})
    assert named.append(nn.Tanh()) is named
    assert [name for name, _ in named.named_children()] == ["up", "1"]
    assert named.up is named[0]


def test_modules_of_a_sequence_are_replaced_and_added() -> None:
    """By index, and by attribute, which torch registers too."""

    class Named(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(4, 4))
            self.scale = nn.Parameter((4,))
            self.head = nn.Linear(4, 2)

    model = Named()
    assert [name for name, _ in model.named_parameters()] == [
        "scale",
        "0.weight",
        "0.bias",
        "head.weight",
        "head.bias",
    ]
    assert model.head is model[-1]
    model.head = nn.Linear(4, 3)
    assert model[-1].out_features == 3
    model[0] = nn.Identity()
    assert len(model) == 2
    with pytest.raises(IndexError):
        model[2] = nn.Identity()
    with pytest.raises(UsageError, match="contains modules, got int at index 0"):
        model[0] = 3
    del model[0]
    assert [name for name, _ in model.named_children()] == ["0"]
    model.extend([nn.ReLU(), nn.Tanh()])
    assert [name for name, _ in model.named_children()] == ["0", "1", "2"]
    with pytest.raises(UsageError, match="already has a module '1'"):
        nn.Sequential({"1": nn.ReLU()}).append(nn.Tanh())


def test_attributes_of_lists_and_dictionaries_are_registered() -> None:
    class Experts(nn.ModuleList[nn.Linear]):
        def __init__(self) -> None:
            super().__init__([nn.Linear(2, 2, bias=False)])
            self.router = nn.Linear(2, 1, bias=False)

    experts = Experts()
    assert [name for name, _ in experts.named_parameters()] == ["router.weight", "0.weight"]
    experts += [nn.Linear(2, 2)]
    assert experts.pop().bias is not None
    assert len(experts) == 1
    heads = nn.ModuleDict({"a": nn.Identity()})
    heads.shared = nn.Linear(2, 2, bias=False)  # type: ignore[attr-defined]
    assert [name for name, _ in heads.named_parameters()] == ["shared.weight"]


def test_modules_by_name() -> None:
    heads = nn.ModuleDict({"a": nn.Linear(2, 2), "b-c": nn.Linear(2, 3, bias=False)})
    assert list(heads) == ["a", "b-c"]
    assert "a" in heads
    assert [name for name, _ in heads.named_parameters()] == ["a.weight", "a.bias", "b-c.weight"]
    heads["a"] = nn.Identity()
    assert len(heads.items()) == 2
    with pytest.raises(UsageError, match="it has a, b-c"):
        heads["b"]


def test_lists_grow() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2)])
    layers.append(nn.Linear(2, 3)).extend([nn.Linear(3, 2)])
    layers.insert(0, nn.Identity())
    layers[0] = nn.Tanh()
    del layers[1]
    assert [type(each).__name__ for each in layers] == ["Tanh", "Linear", "Linear"]
    assert len(layers[1:]) == 2
    numbers = nn.ParameterList([nn.Parameter((2,))]).append(nn.Parameter((3,)))
    assert [p.shape for _, p in numbers.named_parameters()] == [(2,), (3,)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            lambda: nn.Sequential([nn.Linear(2, 2)]),
            "a Sequential contains modules, got list at index 0",
        ),
        (lambda: nn.Sequential(nn.Linear), "a Sequential contains modules, got type"),
        (lambda: nn.ModuleDict({"a": 1}), "a ModuleDict contains modules, got int at 'a'"),
        (lambda: nn.ModuleDict({"a.b": nn.Identity()}), "'a.b' is not a valid name"),
        (lambda: nn.ModuleDict({1: nn.Identity()}), "1 is not a valid name"),
        (lambda: nn.ModuleList().append(None), "a ModuleList contains modules"),
        (lambda: nn.ParameterList([np.zeros(2)]), "a ParameterList contains parameters"),
    ],
)
def test_what_containers_refuse(wrong: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        wrong()
    assert caught.value.span is not None
    assert caught.value.span.file == __file__


def test_modules_print_as_torch_prints_them() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
            self.head = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
            self.scale = nn.Parameter((2,))

    assert repr(Model()) == (
        "Model(\n"
        "  (layers): ModuleList(\n"
        "    (0-2): 3 x Linear(in_features=4, out_features=4, bias=True)\n"
        "  )\n"
        "  (head): Sequential(\n"
        "    (0): ReLU()\n"
        "    (1): Linear(in_features=4, out_features=2, bias=False)\n"
        "  )\n"
        ")"
    )
