"""Deeply nested integers: compiled in a time that grows with their text, and the same numbers as the interpreter's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.testing.interpret import interpret
from relaxpy.tir import name_length
from relaxpy.tir.name_length import DEEPEST, INVOLVED, levels, nested_reads
from relaxpy.tir.numerics.shallow import with_shallow_integers
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import outermost, walk
from tests.sweeps import sweep

TEXT = """
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                y[v] = {value}
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "float32"))
"""
STEPS: dict[str, tuple[str, str]] = {
    "remainders": ("x[{e}]", "({e} + 3) % n"),
    "quotients": ("x[{e}]", "({e} + n) // 2 % n"),
    "divisors": ("x[{e} % n]", "(n // ({e} + 1))"),
    "of few bits": (
        "x[T.Cast('int64', {e}) % n]",
        "(T.Cast('int32', {e}) + 1) % T.Cast('int32', n)",
    ),
    "choices by choices": ("x[{e}]", "T.Select({e} < n // 2, v // 2, (v + 1) % n)"),
    "reads in indices": ("x[{e}]", "T.Cast('int64', x[{e}]) % n"),
    "a condition": ("T.if_then_else({e} < 3, x[v], T.float32(0))", "({e} + 5) % n"),
    "values": ("T.Cast('float32', {e})", "(T.Cast('int64', x[v]) + {e}) % n"),
    "shifts": ("T.Cast('float32', {e})", "T.shift_right({e} + 9, v % 3)"),
}


def nested(kind: str, depth: int) -> str:
    value, step = STEPS[kind]
    expr = "v"
    for _ in range(depth):
        expr = step.replace("{e}", expr)
    return TEXT.format(value=value.replace("{e}", expr))


@sweep(3)
@pytest.mark.parametrize("kind", STEPS)
def test_numbers(kind: str) -> None:
    """Twenty levels: an analyser or a lowering that doubles with each would not end."""
    mod = relaxpy.parse(nested(kind, 7 if kind == "choices by choices" else 20))
    x = np.arange(13, dtype="float32")[::-1].copy()
    machine = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -opt-level=0", cache=False))
    np.testing.assert_array_equal(machine["main"](x).numpy(), interpret(mod, "main", x))


def program(text: str) -> Any:
    found = relaxpy.parse(text)["f"]
    assert isinstance(found, PrimFunc)
    return found.func


def nodes(func: Any) -> int:
    count = 0

    def note(_: object) -> None:
        nonlocal count
        count += 1

    walk(func, ((tirx.Add, tirx.Let, tirx.Bind, *INVOLVED), note))
    return count


@pytest.mark.parametrize("kind", ["remainders", "quotients", "reads in indices", "values"])
def test_the_program_grows_with_the_text(kind: str) -> None:
    small, large = (with_shallow_integers(program(nested(kind, depth))) for depth in (20, 40))
    assert levels(large.body) == DEEPEST
    assert nodes(large.body) <= 2.5 * nodes(small.body)


def test_short_integers_stay() -> None:
    func = program(nested("remainders", DEEPEST))
    assert with_shallow_integers(func).same_as(func)


def quotient(value: Any) -> Any:
    return tirx.floordiv(value, tirx.const(7, "int64"))


def test_levels() -> None:
    v = tirx.Var("v", "int64")
    assert levels(v) == 0
    assert levels(quotient(quotient(v) + 1)) == 2
    choice = tirx.Select(quotient(v) < v, v, v)
    assert levels(choice) > levels(tirx.Select(v < v + 1, quotient(v), v))
    assert levels(quotient(v), {v: 3}) == 4


def test_levels_of_reads() -> None:
    x = tirx.decl_buffer((7,), "int64")
    scalar = tirx.decl_buffer((), "int64")
    v = tirx.Var("v", "int64")
    assert nested_reads(v) == 0
    assert nested_reads(x[x[v] + 1]) == 2
    assert nested_reads(x[x[scalar[()]] + x[v]]) == 2


def test_levels_through_names() -> None:
    """A `Let` is no level; what is in its value and in its body is."""
    v, part = tirx.Var("v", "int64"), tirx.Var("part", "int64")
    named = tirx.Let(part, quotient(quotient(v)), quotient(part))
    assert levels(named) == 2
    assert levels(quotient(named + quotient(v))) == 3


def test_every_node_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work on an expression of many reads grows with its text, though parts of it are asked for at every level."""
    walked = 0

    def counted(*args: Any) -> list[Any]:
        nonlocal walked
        found = outermost(*args)
        walked += 1 + len(found)
        return found

    monkeypatch.setattr(name_length, "outermost", counted)
    steps: list[int] = []
    for depth in (40, 80, 160):
        func = program(nested("values", depth))
        walked = 0
        with_shallow_integers(func)
        steps.append(walked)
    assert 0 < steps[1] <= 2.2 * steps[0]
    assert steps[2] <= 2.2 * steps[1]
