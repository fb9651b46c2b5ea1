from __future__ import annotations

import numpy as np
import pytest

from relaxpy.runtime.bytecode import (
    CallablePattern,
    Heap,
    ObjectPattern,
    PrimPattern,
    ShapePattern,
    TensorPattern,
    TuplePattern,
)
from relaxpy.runtime.data import CLASSES
from relaxpy.runtime.patterns import describe, enter, explain, fits, leave, prim_fits
from relaxpy.runtime.tensor import Shape, Tensor, from_numpy

VECTOR = TensorPattern((Heap(0),), 1, "float32")


def test_arguments_become_what_the_parameter_says() -> None:
    assert enter(3, VECTOR).dtype == "float32"
    assert enter((1, 2), ShapePattern(None, -1)) == Shape((1, 2))
    assert type(enter(np.float64(2), PrimPattern("float32"))) is float
    assert enter(from_numpy(np.array(5)), PrimPattern("int64")) == 5
    nested = enter([np.zeros(2), [1, 2]], TuplePattern((VECTOR, ShapePattern(None, 2))))
    assert isinstance(nested[0], Tensor)
    assert nested[1] == Shape((1, 2))
    assert isinstance(enter((np.zeros(2),), ObjectPattern())[0], Tensor)
    assert type(enter(2, PrimPattern("float32"))) is float
    assert type(enter(2, PrimPattern("int32"))) is int
    marker = object()
    assert enter(marker, VECTOR) is marker
    assert enter((1,), TuplePattern((VECTOR, VECTOR))) == (1,)


def test_constants_are_copied_once_on_the_way_out() -> None:
    constant = from_numpy(np.arange(3), constant=True)
    own = from_numpy(np.arange(3))
    a, (b, c), shape = leave((constant, (constant, own), Shape((1,))))
    assert a is b
    assert a is not constant
    assert c is own
    assert type(shape) is Shape


@pytest.mark.parametrize(
    ("value", "pattern", "text"),
    [
        (from_numpy(np.zeros(2)), VECTOR, "the dtype is float64, not float32"),
        (from_numpy(np.zeros((2, 2), np.float32)), VECTOR, "it has 2 dimensions, not 1"),
        (3, VECTOR, "expected a tensor, got the int 3"),
        (Shape((1, 2)), ShapePattern((1, 3), 2), "dimension 1 is 2, not 3"),
        ((1, 2), ShapePattern(None, 2), "expected a shape, got a tuple of 2"),
        (4, PrimPattern("int64", 5), "the value is 4, not 5"),
        (4.5, PrimPattern("int64"), "expected a scalar of type int64, got the float 4.5"),
        ((1,), TuplePattern(()), "expected 0 fields, got 1"),
        (
            (1, "a"),
            TuplePattern((PrimPattern("int8"), PrimPattern("int8"))),
            "expected a scalar of type int8 of field 1",
        ),
        (
            (from_numpy(np.zeros((2, 2), np.float32)),),
            TuplePattern((VECTOR,)),
            "field 0 has 2 dimensions, not 1",
        ),
        (2**1024, PrimPattern("float32"), "expected a scalar of type float32, got the int 1797"),
        (3, CallablePattern(1), "expected a function, got the int 3"),
    ],
)
def test_why_a_value_does_not_fit(value: object, pattern: object, text: str) -> None:
    assert not fits(value, pattern)  # type: ignore[arg-type]
    assert explain(value, pattern).startswith(text)  # type: ignore[arg-type]


def test_scalars_and_their_types() -> None:
    assert prim_fits(-128, "int8")
    assert not prim_fits(128, "int8")
    assert not prim_fits(-1, "uint8")
    assert prim_fits(255, "uint8")
    assert prim_fits(1, "float32")
    assert not prim_fits(2**1024, "float32")
    assert not prim_fits(True, "float32")
    assert prim_fits(True, "bool")
    assert prim_fits("x", "string")
    assert prim_fits("x", "")
    assert not prim_fits(None, "")


def test_values_in_words() -> None:
    assert describe(from_numpy(np.zeros((2,), np.int8))) == 'R.Tensor((2,), dtype="int8")'
    assert describe(Shape((1,))) == "R.Shape([1])"
    assert describe((1, None)) == "a tuple of 2: (the int 1, None)"
    assert describe(CLASSES["P.C(a, b)"]).endswith("P.C itself, without fields: write P.C(a, b)")
    assert describe({}) == "a dict"
