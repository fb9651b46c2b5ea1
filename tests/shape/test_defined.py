"""Which symbols values of given annotations determine."""

from __future__ import annotations

import pytest

from relaxpy.ir import CallableType, ObjectType, PrimType, ShapeType, SymVar, TensorType, TupleType
from relaxpy.ir.annotation import Annotation
from relaxpy.shape.defined import defined_symbols

n, m, k = SymVar("n"), SymVar("m"), SymVar("k")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ([TensorType((n, 4))], {n}),
        ([ShapeType((n, m))], {n, m}),
        ([PrimType("int64", n)], {n}),
        ([TupleType([TensorType((n,)), TupleType([ShapeType((m,))])])], {n, m}),
        ([TensorType((n.dim * 2,))], {n}),
        ([TensorType((n.dim * 2 + 1,))], {n}),
        ([TensorType((n.dim + m,))], set()),
        ([TensorType((n.dim + m,)), TensorType((n,))], {n, m}),
        ([TensorType((n.dim * m,)), TensorType((n,))], {n}),
        ([TensorType((n.dim + m + k,)), TensorType((m.dim + n,)), TensorType((n,))], {n, m, k}),
        ([TensorType((n.dim // 2,))], set()),
        ([CallableType([TensorType((n,))], TensorType((n,)))], set()),
        ([TensorType(), ObjectType()], set()),
    ],
)
def test_defined(annotations: list[Annotation], expected: set[SymVar]) -> None:
    assert defined_symbols(annotations) == expected


def test_known_symbols_help() -> None:
    assert defined_symbols([TensorType((n.dim + m,))], {n}) == {m}
    assert defined_symbols([TensorType((n,))], {n}) == set()
