"""Tensors of `forward`: Python's operators, and what is known of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import Call, DataflowBlock, Function, ObjectType, Var
from relaxpy.op import OPS


class Apply(nn.Module):
    """One Python function applied to the argument."""

    def __init__(self, function: Callable[[nn.Tensor], Any]) -> None:
        self.function = function

    def forward(self, x: nn.Tensor) -> Any:
        return self.function(x)


def calls(function: Callable[[nn.Tensor], Any]) -> list[Call]:
    mod, _ = Apply(function).export({"forward": {"x": nn.spec.Tensor(("n", "n"), "float32")}})
    forward = mod["forward"]
    assert isinstance(forward, Function)
    block = forward.body.blocks[0]
    assert isinstance(block, DataflowBlock)
    return [binding.value for binding in block.bindings if isinstance(binding.value, Call)]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add", operator.add),
        ("subtract", operator.sub),
        ("multiply", operator.mul),
        ("divide", operator.truediv),
    ],
)
def test_operators_and_numbers(name: str, function: Callable[[Any, Any], Any]) -> None:
    for call in (lambda x: function(x, x), lambda x: function(x, 2.0), lambda x: function(2.0, x)):
        (made,) = calls(call)
        assert made.op == OPS[name]()
    number = calls(lambda x: function(2.0, x))[0].args[0]
    assert not isinstance(number, Var), "the number is the left argument"


def test_matmul_and_negation() -> None:
    product, negative = calls(lambda x: -(x @ x))
    assert product.op == OPS["matmul"]()
    assert negative.op == OPS["negative"]()


def test_shape_and_dtype() -> None:
    seen = {}

    def look(x: nn.Tensor) -> nn.Tensor:
        seen.update(shape=tuple(map(str, x.shape)), dtype=x.dtype, ndim=x.ndim)
        return x

    calls(look)
    assert seen == {"shape": ("n", "n"), "dtype": "float32", "ndim": 2}


def test_unknown_shape_is_an_error() -> None:
    tensor = nn.Tensor(Var("x", ObjectType()), ObjectType())
    with pytest.raises(UsageError):
        _ = tensor.shape
    with pytest.raises(UsageError):
        _ = tensor.dtype
