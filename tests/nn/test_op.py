"""`nn.op` has every operator, by its name."""

from __future__ import annotations

import inspect

import pytest

from relaxpy import nn
from relaxpy.op import OPS


@pytest.mark.parametrize("name", ["matmul", "nn.softmax"])
def test_names_are_those_of_the_operators(name: str) -> None:
    found = nn.op
    for part in name.split("."):
        found = getattr(found, part)
    assert found.__doc__ == inspect.cleandoc(OPS[name].__doc__)


def test_listing() -> None:
    assert {"matmul", "nn"} <= set(dir(nn.op))
    assert "softmax" in dir(nn.op.nn)


def test_unknown_name_suggests_a_known_one() -> None:
    with pytest.raises(AttributeError, match=r"did you mean nn\.op\.matmul\?"):
        _ = nn.op.matmull
    with pytest.raises(AttributeError, match=r"did you mean nn\.op\.nn\.softmax\?"):
        _ = nn.op.softmax
    with pytest.raises(AttributeError, match=r"did you mean nn\.op\.matmul\?"):
        _ = nn.op.nn.matmul
    assert not hasattr(nn.op, "__path__")
