"""Tensors whose elements are dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.analysis.shape_values import LARGEST, NotKnownError, evaluate, symbolic
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.op.base import OPS, Op

N, M = Dim.of(SymVar("n")), Dim.of(SymVar("m"))


def op(name: str, **attrs: object) -> Op:
    """An operator with its attributes."""
    return OPS[name](**attrs)


@pytest.mark.parametrize(
    ("operator", "args", "expected"),
    [
        (op("concat"), [(symbolic([N]), np.array([4]))], [N, 4]),
        (op("take", axis=0), [symbolic([N, M]), np.array([1])], [M]),
        (op("multiply"), [symbolic([N, M]), np.array([2, 3])], [N * 2, M * 3]),
        (op("floor_divide"), [symbolic([N * 4]), np.array([2])], [N * 2]),
        (op("astype", dtype=DType("int64")), [symbolic([N])], [N]),
        (op("prod", keepdims=True), [symbolic([N, M])], [N * M]),
    ],
)
def test_known(operator: Op, args: list[object], expected: list[object]) -> None:
    assert list(evaluate(operator, args)) == expected


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (op("floor_divide"), [np.array([4]), symbolic([N])]),
        (op("floor_mod"), [symbolic([N]), np.array([-2])]),
        (op("astype", dtype=DType("int8")), [symbolic([N])]),
        (op("exp"), [symbolic([N])]),
        (op("add"), [symbolic([N]), np.array([1.5])]),
        (op("tile", repeats=(LARGEST + 1,)), [symbolic([N])]),
    ],
)
def test_not_known(operator: Op, args: list[object]) -> None:
    with pytest.raises(NotKnownError):
        evaluate(operator, args)
