"""Tensors of `forward`: Python's operators, and what is known of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import RelaxError, UsageError
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
        ("floor_divide", operator.floordiv),
        ("floor_mod", operator.mod),
        ("power", operator.pow),
    ],
)
def test_operators_and_numbers(name: str, function: Callable[[Any, Any], Any]) -> None:
    for call in (lambda x: function(x, x), lambda x: function(x, 2.0), lambda x: function(2.0, x)):
        (made,) = calls(call)
        assert made.op == OPS[name]()
    number = calls(lambda x: function(2.0, x))[0].args[0]
    assert not isinstance(number, Var), "the number is the left argument"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("less", operator.lt),
        ("less_equal", operator.le),
        ("greater", operator.gt),
        ("greater_equal", operator.ge),
        ("equal", operator.eq),
        ("not_equal", operator.ne),
    ],
)
def test_comparisons(name: str, function: Callable[[Any, Any], Any]) -> None:
    for call in (lambda x: function(x, x), lambda x: function(x, 2.0)):
        (made,) = calls(call)
        assert made.op == OPS[name]()


def test_matmul_and_negation() -> None:
    product, negative = calls(lambda x: -(x @ x))
    assert product.op == OPS["matmul"]()
    assert negative.op == OPS["negative"]()
    assert calls(abs)[0].op == OPS["abs"]()
    made = [call.op for call in calls(lambda x: (x > 0) & ~(x < 1))]
    assert made == [OPS[name]() for name in ("greater", "less", "bitwise_not", "bitwise_and")]


X = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1],
        lambda x: x[-1, 2],
        lambda x: x[1:3, ::2],
        lambda x: x[:, None, -2:],
        lambda x: x[..., 0],
        lambda x: sum(row for row in x),
        lambda x: x[np.int64(2)],
        lambda x: np.add(x, 1) * np.float32(2),
        lambda x: np.float32(2) - x,
        lambda x: np.absolute(x - 7),
        lambda x: np.exp(-x) / (x + 1) ** 2,
        lambda x: x + X[0],
    ],
)
def test_as_numpy(function: Callable[[Any], Any]) -> None:
    """The same Python on numpy's arrays and in a module."""
    mod, _ = Apply(function).export({"forward": {"x": nn.spec.Tensor((4, 6), "float32")}})
    result = relaxpy.VirtualMachine(relaxpy.build(mod))["forward"](X).numpy()
    np.testing.assert_allclose(result, function(X), rtol=1e-6)


def test_indices_by_dimensions_and_tensors() -> None:
    mod, _ = Apply(lambda x: x[x.shape[0] - 1]).export(
        {"forward": {"x": nn.spec.Tensor(("n", 6), "float32")}}
    )
    last = relaxpy.VirtualMachine(relaxpy.build(mod))["forward"](X).numpy()
    np.testing.assert_array_equal(last, X[-1])
    rows = nn.spec.Tensor(("k",), "int64")

    class Rows(nn.Module):
        def forward(self, x: nn.Tensor, i: nn.Tensor) -> nn.Tensor:
            return x[i]

    mod, _ = Rows().export({"forward": {"x": nn.spec.Tensor(("n", 6), "float32"), "i": rows}})
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    np.testing.assert_array_equal(vm["forward"](X, np.array([3, 0])).numpy(), X[[3, 0]])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: -x if x else x, "no boolean value"),
        (lambda x: -x if x > 0 else x, "no boolean value"),
        (lambda x: -x if x == x else x, "no boolean value"),
        (lambda x: sum(row for row in x), r"the length of this tensor is symbolic \(n\)"),
        (lambda x: float(x), "cannot be converted to a Python number"),
        (lambda x: range(x), "cannot be converted to a Python number"),
        (lambda x: np.asarray(x), "cannot be converted to an array"),
        (lambda x: np.add.reduce(x), "numpy.add does not compute"),
        (lambda x: np.spacing(x), "numpy.spacing does not compute"),
    ],
)
def test_what_only_a_call_has(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        calls(function)
    assert caught.value.code == "tensor-as-python"
    assert caught.value.span is not None
    assert caught.value.span.file == __file__


@pytest.mark.parametrize("index", [1.5, "a", True, [1, 2], (1, 1.5), (0, 0, 0), slice("a")])
def test_wrong_indices(index: Any) -> None:
    with pytest.raises(RelaxError) as caught:
        calls(lambda x: x[index])
    assert caught.value.code == "tensor-index"
    assert caught.value.span is not None


def test_methods_that_tensors_do_not_have() -> None:
    with pytest.raises(AttributeError, match=r"write nn.op.reshape\(x, ...\)"):
        calls(lambda x: x.reshape((1,)))
    with pytest.raises(AttributeError, match=r"write nn.op.nn.relu\(x, ...\)"):
        calls(lambda x: x.relu())
    for theirs, ours in (("chunk", "split"), ("unsqueeze", "expand_dims"), ("view", "reshape")):
        with pytest.raises(AttributeError, match=rf"no attribute '{theirs}': write nn.op.{ours}\("):
            calls(lambda x, name=theirs: getattr(x, name)(1))
    with pytest.raises(AttributeError, match=r"has no attribute 'foo'$"):
        calls(lambda x: x.foo())


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
