"""Reads of windows: what is recognised as guarded, and by which dimensions."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy.tir.programs import loops
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.windows import read_guarded, read_walks
from relaxpy.tir.tvm import tirx

I, K = (tirx.Var(name, "int64") for name in "ik")
SIZE = loops.int64(20)
DATA = tirx.decl_buffer([loops.int64(3), SIZE], "float32", "data", layout=None)
EXTENTS = {I: loops.int64(10), K: loops.int64(3)}


def read(condition: Any, place: Any, otherwise: float = 0.0) -> Any:
    load = tirx.BufferLoad(DATA, [loops.int64(1), place])
    return tirx.if_then_else(condition, load, tirx.const(otherwise, "float32"))


def guards(value: Any) -> list[bool] | None:
    """Which dimensions are guarded; None where the read is not understood."""
    found = read_guarded(value)
    if found is None:
        return None
    walks = read_walks(found.load, found.bounds, EXTENTS)
    return None if walks is None else [walk.is_guarded for walk in walks]


def test_both_ends() -> None:
    place = I * 2 + K - 1
    assert guards(read(tirx.all(place >= 0, place < SIZE), place)) == [False, True]


def test_bounds_that_were_divided() -> None:
    """Simplifying makes `0 < i + k` of `0 <= 2 * i + 2 * k - 1`."""
    place = I * 2 + K * 2 - 1
    assert guards(read(tirx.all(I + K > 0, place < SIZE), place)) == [False, True]


def test_not_guarded() -> None:
    load = tirx.BufferLoad(DATA, [loops.int64(0), I + K])
    assert guards(load) == [False, False]


@pytest.mark.parametrize(
    "value",
    [
        read(I + K - 2 >= 0, I + K - 1),  # one place too few
        read(tirx.any(I + K >= 1, I < 5), I + K - 1),
        read(I < 5, I),
    ],
    ids=["other bound", "or", "other condition"],
)
def test_what_is_no_bound(value: Any) -> None:
    assert guards(value) is None


def test_values_around() -> None:
    """Any number may stand for what is outside, but nothing that is read."""
    place = I + K - 1
    found = read_guarded(read(place >= 0, place, otherwise=-1.5))
    assert found is not None
    assert float(found.otherwise.value) == -1.5
    other = tirx.BufferLoad(DATA, [loops.int64(0), I])
    load = tirx.BufferLoad(DATA, [loops.int64(1), place])
    assert read_guarded(tirx.if_then_else(place >= 0, load, other)) is None
    assert s.loads_of(other)
