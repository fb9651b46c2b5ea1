"""Annotations are values, with None for what is not known."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.ir import (
    CallableType,
    ObjectType,
    PrimType,
    ShapeType,
    SymVar,
    TensorType,
    TupleType,
    Var,
)
from relaxpy.ir.annotation import MOST_LEVELS
from relaxpy.runtime.verifier.state import MOST_NESTED_TUPLES

n = SymVar("n")


def test_compared_by_value() -> None:
    assert TensorType((n, 4), "f32") == TensorType([n.dim, 4], "float32")
    assert hash(TensorType((n, 4), "f32")) == hash(TensorType([n.dim, 4], "float32"))
    assert TensorType((n, 4)) != TensorType((SymVar("n"), 4))
    assert TupleType([ObjectType()]) == TupleType((ObjectType(),))


def test_coarser_forms() -> None:
    """Rank follows from dimensions, or from the variable that holds the shape, and may be known alone."""
    assert TensorType((n, 4)).ndim == 2
    assert TensorType(ndim=3).dims is None
    assert TensorType().ndim == -1
    assert TensorType(Var("s", ShapeType(ndim=2))).ndim == 2
    assert TensorType(Var("s", ObjectType())).ndim == -1
    assert ShapeType((1, 2)).ndim == 2
    assert ShapeType().dims is None
    assert PrimType("int64").value is None
    assert CallableType().params is None
    assert CallableType().ret == ObjectType()


def test_zero_rank_is_known() -> None:
    assert TensorType(()).dims == ()
    assert TensorType(()).ndim == 0


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="float33") as caught:
        TensorType((), "float33")
    assert caught.value.help == "did you mean 'float32'?"


@pytest.mark.parametrize("shape", [3, "n", n.dim])
def test_a_shape_is_a_tuple(shape: object) -> None:
    with pytest.raises(TypeError, match="a tuple of dimensions"):
        TensorType(shape)  # type: ignore[arg-type]


def test_types_that_grow_are_bounded() -> None:
    """They are written out: those of shared tuples would double at each level."""
    lines = ["t = (x, x)"] + ["t = (t, t)"] * 24
    body = "".join(f"    {line}\n" for line in [*lines, "return t"])
    with pytest.raises(UsageError, match="at most 16384 values") as caught:
        relaxpy.parse(f'@R.function\ndef main(x: R.Tensor(("n",), "float32")):\n{body}')
    assert caught.value.span is not None


@pytest.mark.parametrize("kind", ["parameter", "bindings", "result"])
def test_nesting_is_bounded(kind: str) -> None:
    """What is built is loaded: the machine's verifier has a bound, too. (A function's type is a level of its own.)"""
    assert MOST_LEVELS < MOST_NESTED_TUPLES

    def text(levels: int) -> str:
        x, lines, result = 'R.Tensor(("n",), "float32")', "", "x"
        if kind == "parameter":
            x = "R.Tuple(" * levels + x + ")" * levels
        elif kind == "bindings":
            lines = "    x = (x,)\n" * levels
        else:
            result = "(" * levels + "x" + ",)" * levels
        return f"@R.function\ndef main(x: {x}):\n{lines}    return {result}\n"

    if kind != "bindings":  # each with its type: the text alone would be long
        exe = relaxpy.build(relaxpy.parse(text(MOST_LEVELS - 2)), cache=False)
        assert relaxpy.VirtualMachine(exe)["main"]
    with pytest.raises(UsageError, match=f"nested at most {MOST_LEVELS} deep") as caught:
        relaxpy.parse(text(MOST_LEVELS + 1))
    assert caught.value.span is not None
