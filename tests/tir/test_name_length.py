"""Levels of nested divisions, choices and reads: as they are counted, of any depth, and of parts that are shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relaxpy.tir.name_length import has_long_values, has_more_levels, levels, nested_reads
from relaxpy.tir.tvm import tirx

V = tirx.Var("v", "int64")
N = tirx.Var("n", "int64")
TABLE: Any = tirx.decl_buffer((N,), "int64")


def nested(step: Callable[[Any], Any], depth: int) -> Any:
    expr: Any = V
    for _ in range(depth):
        expr = step(expr)
    return expr


@pytest.mark.parametrize("depth", [0, 1, 7, 2000])
def test_levels(depth: int) -> None:
    """Deeper than Python's own stack, too."""
    remainder = nested(lambda e: tirx.FloorMod(e + 1, N), depth)
    assert levels(remainder) == depth
    assert levels(nested(lambda e: tirx.Select(e < N, V + 1, V), depth)) == 4 * depth
    assert levels(tirx.Select(V < N, remainder, V)) == max(4, depth)
    assert levels(remainder, {V: 3}) == depth + 3
    assert nested_reads(nested(lambda e: TABLE[e], depth)) == depth
    assert nested_reads(remainder) == 0


@pytest.mark.parametrize("limit", [0, 1, 6, 7, 8])
def test_a_limit(limit: int) -> None:
    assert has_more_levels(nested(lambda e: tirx.FloorDiv(e + 1, N), 7), limit) == (limit < 7)


def test_shared_parts() -> None:
    """Each is looked at once a depth, not once a way to it: 2 to the power of 60."""
    assert levels(nested(lambda e: tirx.FloorMod(e, e), 60)) == 60


@pytest.mark.parametrize("count", [3, 4, 5, 6, 40])
def test_names_in_the_body_of_others(count: int) -> None:
    """Each value has twice as many variables as the one before: 32 may be known, of the sixth there would be 64."""
    names = [V, *(tirx.Var(f"v{k}", "int64") for k in range(count))]
    expr: Any = names[-1]
    for name, before in reversed(list(zip(names[1:], names, strict=False))):
        expr = tirx.Let(name, before + before, expr)
    func = tirx.PrimFunc([V], tirx.Evaluate(expr))
    assert has_long_values(func) == (count > 5)
