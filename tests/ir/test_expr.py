"""Expressions: compared by identity, immutable, A-normal leaves."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.ir import (
    Call,
    Constant,
    Dim,
    Function,
    GlobalVar,
    ObjectType,
    PrimValue,
    ShapeExpr,
    SymVar,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.expr import is_leaf, seq
from relaxpy.op.unary import Exp


def test_identity() -> None:
    """Two variables of one name are two; two global names are one."""
    assert Var("x", ObjectType()) != Var("x", ObjectType())
    assert len({GlobalVar("f"), GlobalVar("f"), GlobalVar("g")}) == 2


def test_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Var("x", ObjectType()).name = "y"  # type: ignore[misc]


def test_constants_are_copies() -> None:
    """Changing the array afterwards does not change the constant, and nobody can write to it."""
    data = np.arange(6, dtype="int32").reshape(2, 3).T
    constant = Constant(data)
    data[...] = 0
    assert constant.data.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert constant.data.flags["C_CONTIGUOUS"]
    with pytest.raises(ValueError, match="read-only"):
        constant.data[0, 0] = 1


def test_shared_constants_are_not() -> None:
    data = np.arange(4, dtype="float32")
    constant = Constant.shared(data)
    assert constant.data.ctypes.data == data.ctypes.data
    assert data.flags.writeable
    assert Constant.shared(np.float32(1)).data.shape == ()


def test_constant_dtypes() -> None:
    assert Constant([1.0, 2.0], "bfloat16").data.dtype == ml_dtypes.bfloat16
    with pytest.raises(UsageError, match="complex"):
        Constant(np.zeros(1, "complex64"))


def test_prim_values() -> None:
    n = SymVar("n")
    assert (PrimValue(n).dtype, PrimValue(True).dtype, PrimValue(1.5).dtype) == (
        "int64",
        "bool",
        "float32",
    )
    assert PrimValue(3).value == Dim.of(3)
    assert PrimValue(1, "int32").dtype == "int32"


def test_leaves() -> None:
    x = Var("x", ObjectType())
    assert is_leaf(Tuple((x, Tuple((ShapeExpr((1,)), PrimValue(1))), GlobalVar("f"))))
    assert not is_leaf(Tuple((x, Call(Exp(), (x,)))))
    assert not is_leaf(Call(Exp(), (x,)))


def test_bodies() -> None:
    x = Var("x", ObjectType())
    bound = VarBinding(Var("y", ObjectType()), Call(Exp(), (x,)))
    assert seq([], x).blocks == ()
    assert list(seq([bound], bound.var).bindings) == [bound]
    assert Function((x,), seq([], x), ObjectType()).annotation.params == (ObjectType(),)
