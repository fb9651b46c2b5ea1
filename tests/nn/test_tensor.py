"""Tensors of `forward`: Python's operators, and what is known of them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir import Call, DataflowBlock, Function, ObjectType, Var
from relaxpy.op import OPS
from relaxpy.testing.interpret import interpret


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
    with pytest.raises(
        AttributeError, match=r"write nn.op.reshape\(x, \(2, -1\)\) for x.reshape\(2, -1\)"
    ):
        calls(lambda x: x.reshape((1,)))
    with pytest.raises(AttributeError, match=r"write nn.op.nn.relu\(x\) for x.relu\(\)"):
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


def typed_in_forward(text: str) -> None:
    def forward(x: nn.Tensor) -> Any:
        return eval(text, {"nn": nn, "x": x})

    calls(forward)


ADVICE = {
    "if x.shape[0] > 4": ("x if x.shape[0] > 4 else -x", "x if n > 4 else -x"),
    "range(x.shape[0])": ("x + [*range(x.shape[0])]", "np.arange(n)"),
    "x.shape[0] / 2": ("x * (x.shape[0] / 2)", "np.float32(n)"),
}
"""What is typed, and the value of the help's expression, where a is x, and b is -x."""


@pytest.mark.parametrize("what", ADVICE)
@pytest.mark.parametrize("n", [3, 4, 5])
def test_the_help_for_a_size_computes_what_was_meant(what: str, n: int) -> None:
    typed, meant = ADVICE[what]
    with pytest.raises(RelaxError) as caught:
        typed_in_forward(typed)
    help = re.sub(r"\bn\b", "x.shape[0]", str(caught.value.help).replace("nn.", "N."))
    written = re.search(r"N\.op\.\w+\(.*?\)(?= instead|$)", help)
    assert written is not None, help

    class Advised(nn.Module):
        def forward(self, x: nn.Tensor) -> Any:
            return eval(written[0], {"N": nn, "x": x, "a": x, "b": -x})

    mod, _ = Advised().export({"forward": {"x": nn.spec.Tensor(("n",), "float32")}})
    x = np.arange(n, dtype=np.float32) - 1
    np.testing.assert_array_equal(
        interpret(mod, "forward", x), eval(meant, {"np": np, "x": x, "n": n})
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("+x", "x"),
        ("round(x * 0.3)", "np.round(x * np.float32(0.3))"),
        ("math.floor(x * 0.3)", "np.floor(x * np.float32(0.3))"),
        ("math.ceil(x * 0.3)", "np.ceil(x * np.float32(0.3))"),
        ("math.trunc(x * 0.3)", "np.trunc(x * np.float32(0.3))"),
        ("divmod(x, 2.0)", "divmod(x, np.float32(2))"),
        ("x.shape[0] * x", "x * len(x)"),
        ("x.shape[0] - x", "len(x) - x"),
        ("1 << nn.op.astype(x, 'int32')", "1 << x.astype(np.int32)"),
        ("x[np.array([2, 0])]", "x[[2, 0]]"),
    ],
)
def test_pythons_functions_of_tensors(typed: str, meant: str) -> None:
    class Typed(nn.Module):
        def forward(self, x: nn.Tensor) -> Any:
            return eval(typed, {"nn": nn, "x": x, "np": np, "math": math})

    mod, _ = Typed().export({"forward": {"x": nn.spec.Tensor(("n",), "float32")}})
    x = np.arange(5, dtype=np.float32)
    got = interpret(mod, "forward", x)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(eval(meant, {"np": np, "x": x})))


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("x == None", "`x is None`"),
        ("x != None", "`x is not None`"),
        ("f'{x:3}'", "symbolic tensors"),
        ("x[x > 0]", "nn.op.nonzero(nn.op.flatten(c))"),
        ("x[[1, 2]]", "numpy.array([1, 2])"),
    ],
)
def test_python_of_tensors_that_is_told(typed: str, told: str) -> None:
    with pytest.raises(RelaxError) as caught:
        typed_in_forward(typed)
    assert told in str(caught.value.help)


@pytest.mark.parametrize(
    "name", ["item", "tolist", "numpy", "cuda", "device", "backward", "requires_grad", "stride"]
)
def test_what_tensors_of_forward_do_not_have(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': \w+"):
        typed_in_forward(f"x.{name}")


def test_help_in_forward_names_operators_as_there() -> None:
    with pytest.raises(RelaxError) as caught:
        typed_in_forward("nn.op.sum(x, dim=0)")
    assert (
        caught.value.help
        == "write axis= for dim=; the signature is nn.op.sum(x, axis=None, keepdims=False)"
    )
    with pytest.raises(RelaxError) as caught:
        typed_in_forward("nn.op.size(x, 0)")
    assert "write x.shape[0] for torch's x.size(0)" in str(caught.value.help)
