"""Modules: names of parameters, loading, lists."""

from __future__ import annotations

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
