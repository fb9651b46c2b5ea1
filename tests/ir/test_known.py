"""Annotations of which everything is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relaxpy.ir.annotation import Annotation, ObjectType, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.known import KnownShape, KnownTensor, as_known, as_plain

N = SymVar("n").dim
ANNOTATIONS: list[Annotation] = [
    TensorType((N, 4), "float32", vdevice="llvm:0:global"),
    TensorType((), "bool"),
    ShapeType((N, 4)),
    TupleType((TensorType((N,), "int64"), TupleType((ShapeType((2,)),)))),
    PrimType("int64", N),
    ObjectType(),
]


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_says_the_same(annotation: Annotation) -> None:
    """A known annotation equals the one that it is made of, from both sides, and becomes it again."""
    known = as_known(annotation)
    assert known == annotation
    assert annotation == known
    assert hash(known) == hash(annotation)
    assert str(known) == str(annotation)
    plain = as_plain(known)
    assert plain == annotation
    assert type(plain) is type(annotation)


def test_what_is_different_is_not_equal() -> None:
    """In a dimension, a dtype, a device, a kind."""
    known = KnownTensor((N, 4), "float32")
    assert known != TensorType((N, 5), "float32")
    assert known != TensorType((N, 4), "float64")
    assert known != TensorType((N, 4), "float32", vdevice="llvm:0:global")
    assert known != KnownShape((N, 4))
    assert KnownShape((N,)) != ShapeType((N, 4))


@pytest.mark.parametrize(
    "annotation",
    [
        TensorType(None, "float32", 2),
        TensorType((N,), None),
        ShapeType(None, 2),
        TupleType((TensorType(),)),
    ],
    ids=str,
)
def test_what_is_not_known_is_refused(annotation: Annotation) -> None:
    """As a mistake of the caller."""
    with pytest.raises(TypeError):
        as_known(annotation)


def test_what_is_known_stays_known() -> None:
    """No copy of one with something left out is called known."""
    known = KnownTensor((N, 4), "float32")
    assert replace(known, dtype="int64") == TensorType((N, 4), "int64")
    with pytest.raises(TypeError):
        replace(known, dtype=None)
