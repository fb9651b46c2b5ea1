"""Expressions that share their parts are bounded as trees; each is counted in a time that grows with what is new."""

from __future__ import annotations

from typing import Any

import pytest

import relaxpy
from relaxpy.errors import ScriptError, UsageError
from relaxpy.tir import te
from relaxpy.tir.expression_size import DEEPEST, LARGEST, Sizes
from relaxpy.tir.tvm import tirx


def doubled(value: Any, times: int) -> Any:
    for _ in range(times):
        value = value + value
    return value


def test_parts_count_wherever_they_are() -> None:
    v = tirx.Var("v", "int64")
    assert Sizes().of(v) == (1, 1)
    assert Sizes().of(doubled(v, 3)) == (15, 4)
    assert Sizes().of(doubled(v, 60)) == (LARGEST + 1, 61)
    x = tirx.decl_buffer((4,), "float32")
    choice = tirx.Select(v < v * 2, tirx.exp(x[v]), x[v * v])
    assert Sizes().of(choice) == (15, 4)


def test_depth() -> None:
    long = v = tirx.Var("v", "int64")
    for _ in range(DEEPEST):
        long = long + v
    assert "deep" in str(Sizes().problem(long))
    assert Sizes().problem(doubled(v, 5)) is None


TEXT = """
@T.prim_func
def f(x: T.Buffer((7,), "float32"), y: T.Buffer((7,), "float32")):
    for i in range(7):
        with T.sblock("b"):
            v = T.axis.spatial(7, i)
            e0 = T.meta_var({first})
{steps}            y[v] = {value}
"""


@pytest.mark.parametrize(("first", "value"), [("x[v]", "e40"), ("v", "x[e40 % 7]")])
def test_a_program_of_shared_parts(first: str, value: str) -> None:
    steps = "".join(f"            e{i + 1} = T.meta_var(e{i} + e{i})\n" for i in range(40))
    with pytest.raises(ScriptError, match="at most 8192 parts") as caught:
        relaxpy.parse(TEXT.format(first=first, steps=steps, value=value))
    assert caught.value.span is not None
    assert caught.value.help is not None
    assert caught.value.span.line == 48


def test_a_computation_of_shared_parts() -> None:
    x = te.placeholder((7,), "float32", "x")

    def value(i: Any) -> Any:
        return doubled(x[i], times)

    times = 40
    with pytest.raises(UsageError, match="the value of y is too large"):
        te.compute((7,), value, "y")
    times = 4
    assert te.compute((7,), value, "y").shape
