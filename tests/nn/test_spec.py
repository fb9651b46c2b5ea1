"""Specs of integers, shapes and objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import Function
from relaxpy.nn import op, spec
from relaxpy.testing.interpret import interpret


class Model(nn.Module):
    def integer(self, x: nn.Tensor, start: Any) -> Any:
        return x + op.arange(start, start + x.shape[0])

    def shared(self, x: nn.Tensor, count: Any) -> Any:
        return op.reshape(x, (count, 2)), count * 2

    def shape(self, x: nn.Tensor, size: Any) -> Any:
        return op.reshape(x, size)

    def object(self, x: nn.Tensor, anything: Any) -> Any:
        return x, anything

    def nested(self, pair: Any) -> Any:
        x, (start, size) = pair
        return op.reshape(x, size) + start


X = spec.Tensor(("n",), "int64")
SPEC = {
    "integer": {"x": X, "start": spec.Int()},
    "shared": {"x": spec.Tensor(("m", 2), "int64"), "count": spec.Int("m")},
    "shape": {"x": X, "size": spec.Shape(("a", 2))},
    "object": {"x": X, "anything": spec.Object()},
}


@pytest.fixture(scope="module")
def exported() -> Any:
    mod, _ = Model().export(SPEC)
    relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)
    return mod, relaxpy.VirtualMachine(relaxpy.build(mod))


def test_integers_are_dimensions(exported: Any) -> None:
    mod, vm = exported
    x = np.zeros(3, np.int64)
    for start in (5, 0, -4):
        expected = np.arange(start, start + 3)
        np.testing.assert_array_equal(vm["integer"](x, start).numpy(), expected)
        np.testing.assert_array_equal(interpret(mod, "integer", x, start), expected)


def test_an_integer_may_be_a_dimension_of_an_argument(exported: Any) -> None:
    _, vm = exported
    same, twice = vm["shared"](np.ones((3, 2), np.int64), 3)
    assert same.shape == (3, 2)
    assert twice == 6
    with pytest.raises(relaxpy.RelaxError, match="count"):
        vm["shared"](np.ones((3, 2), np.int64), 4)


def test_shapes_and_objects(exported: Any) -> None:
    _, vm = exported
    x = np.arange(6)
    assert vm["shape"](x, (3, 2)).shape == (3, 2)
    with pytest.raises(relaxpy.RelaxError):
        vm["shape"](x, (4, 2))
    kept = object()
    assert vm["object"](x, kept)[1] is kept


def test_a_tuple_holds_any_spec() -> None:
    inner = spec.Tuple((spec.Int("start"), spec.Shape(("a", 2))))
    mod, _ = Model().export({"nested": {"pair": spec.Tuple((X, inner))}})
    nested = mod["nested"]
    assert isinstance(nested, Function)
    found = interpret(mod, "nested", (np.arange(4), (7, (2, 2))))
    np.testing.assert_array_equal(found, np.arange(4).reshape(2, 2) + 7)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: spec.Int("n m"), "neither a non-negative integer nor a name"),
        (lambda: spec.Shape("ab"), "a shape must be a tuple"),
        (lambda: spec.Tensor(4), "a shape must be a tuple"),  # type: ignore[arg-type]
        (lambda: spec.Tensor((4,), "float31"), "unknown dtype"),
        (lambda: spec.Tuple([3]), "is not a spec"),
        (lambda: Model().export({"integer": {"x": X, "start": int}}), "is not a spec"),
    ],
)
def test_wrong_specs_are_located(wrong: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        wrong()
    assert caught.value.span is not None
    assert caught.value.span.file == __file__


def test_what_to_write_for_an_integer() -> None:
    with pytest.raises(UsageError) as caught:
        Model().export({"integer": {"x": X, "start": int}})
    assert caught.value.help == "write nn.spec.Int()"
