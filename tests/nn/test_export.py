"""Export: what the functions look like, and mistakes in models and specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import DeduceError, UsageError
from relaxpy.ir import Function, TensorType, TupleType


class Model(nn.Module):
    def __init__(self) -> None:
        self.inner = nn.Linear(4, 4)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.inner(x) * 2.0

    def pair(self, x: nn.Tensor, y: nn.Tensor) -> Any:
        return x + y, (y, self.inner.bias)

    def nested(self, pairs: Any) -> Any:
        (x, y), z = pairs
        return x + y, (z * 2.0, x)

    def wrong(self, x: nn.Tensor) -> nn.Tensor:
        return x + self.inner.weight

    def number(self, x: nn.Tensor) -> Any:
        return 3

    def foreign(self, x: nn.Tensor) -> nn.Tensor:
        return x + STRAY


STRAY = nn.Parameter((4,))
X = nn.spec.Tensor(("n", 4), "float32")


def export(method: str, spec: Mapping[str, Any]) -> Function:
    mod, _ = Model().export({method: spec})
    function = mod[method]
    assert isinstance(function, Function)
    return function


def test_tuples_of_arguments() -> None:
    """A method gets a tuple's fields; dimensions of one name are one across them."""
    pair = nn.spec.Tuple((X, X))
    mod, _ = Model().export({"nested": {"pairs": nn.spec.Tuple((pair, X))}})
    nested = mod["nested"]
    assert isinstance(nested, Function)
    assert isinstance(nested.params[0].annotation, TupleType)
    assert nested.params[0].name == "pairs"
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    total, (double, same) = vm["nested"](((x, x + 1), x))
    np.testing.assert_array_equal(total.numpy(), x + x + 1)
    np.testing.assert_array_equal(double.numpy(), x * 2)
    np.testing.assert_array_equal(same.numpy(), x)


def test_what_is_no_spec_in_a_tuple() -> None:
    with pytest.raises(UsageError, match="is not a spec"):
        nn.spec.Tuple((X, (1, 2)))  # pyright: ignore[reportArgumentType]


def test_parameters_follow_the_arguments() -> None:
    function = export("forward", {"x": X})
    assert [param.name for param in function.params] == ["x", "inner_weight", "inner_bias"]
    assert function.attrs["num_input"] == 1
    assert function.attrs["global_symbol"] == "forward"


def test_dimensions_of_one_name_are_one() -> None:
    function = export("pair", {"x": X, "y": X})
    x, y = (param.annotation for param in function.params[:2])
    assert x == y
    assert isinstance(function.ret, TupleType)
    assert function.ret.fields[0] == x
    assert isinstance(function.ret.fields[1], TupleType)


def test_dimensions_of_two_functions_are_apart() -> None:
    mod, _ = Model().export({"forward": {"x": X}, "pair": {"x": X, "y": X}})
    first, second = (function.params[0].annotation for function in mod.graph_functions.values())
    assert isinstance(first, TensorType)
    assert first != second


def test_data_comes_by_the_names_of_the_parameters() -> None:
    model = Model()
    assert model.inner.bias is not None
    model.inner.bias.data = np.ones(4, np.float32)
    _, params = model.export({"forward": {"x": X}})
    assert list(params) == ["inner_bias"]


def test_script_parses_back() -> None:
    mod, _ = Model().export({"forward": {"x": X}, "pair": {"x": X, "y": X}})
    relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)


def test_mistake_in_a_model_is_located_at_its_line() -> None:
    with pytest.raises(DeduceError) as caught:
        export("wrong", {"x": nn.spec.Tensor(("n", 5), "float32")})
    assert caught.value.span is not None
    assert caught.value.span.file == __file__
    assert (caught.value.span.source_line() or "").strip() == "return x + self.inner.weight"


@pytest.mark.parametrize(
    ("method", "spec", "message"),
    [
        ("missing", {"x": X}, "Model has no method 'missing'"),
        ("forward", {"x": (1, 2)}, "(1, 2) is not a spec"),
        ("number", {"x": X}, "returned int"),
        ("foreign", {"x": X}, "is not reachable from the exported module"),
    ],
)
def test_mistakes(method: str, spec: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        export(method, spec)
    assert message in caught.value.message


def test_modules_compute_only_while_exporting() -> None:
    with pytest.raises(UsageError, match="only during export"):
        nn.op.add(STRAY, STRAY)


def test_argument_with_the_name_of_a_parameter() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter((4,))

        def forward(self, w: nn.Tensor) -> nn.Tensor:
            return w + self.w

    model = Clash()
    model.w.data = np.ones(4, np.float32)
    mod, params = model.export({"forward": {"w": X}})
    forward = mod["forward"]
    assert isinstance(forward, Function)
    assert [param.name for param in forward.params] == ["w", "w_1"]
    assert list(params) == ["w_1"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (["forward"], "a spec must be a dict of methods, got list"),
        ({"forwards": {"x": X}}, "Model has no method 'forwards'"),
        ({"inner": {"x": X}, "forward": {}}, "forward does not match"),
        ({"forward": X}, "the spec of forward must be a dict of its arguments, got Tensor"),
        ({"forward": {"y": X}}, "the spec of forward does not match its parameters"),
        ({"pair": {"x": X}}, "missing a required argument: 'y'"),
    ],
)
def test_specs_that_do_not_fit(spec: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Model().export(spec)
    assert caught.value.code == "bad-spec"
    assert caught.value.help


@pytest.mark.parametrize("dim", [-1, 1.5, True, "n m", "for", None])
def test_dimensions_that_are_none(dim: Any) -> None:
    with pytest.raises(UsageError, match="is neither a non-negative integer nor a name"):
        nn.spec.Tensor((dim,), "float32")
    with pytest.raises(UsageError, match="is not a non-negative integer"):
        nn.Parameter((dim,))
