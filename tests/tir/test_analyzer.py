"""Dimensions to TVM's expressions and back, and TVM's analyser on dimensions."""

from __future__ import annotations

import random

import pytest

from relaxpy.errors import PassError
from relaxpy.ir.dim import Dim, SymVar, dim_op, maximum, minimum
from relaxpy.tir.analyzer import VarTable, can_prove, equal, int64, to_tvm, to_tvm_var
from relaxpy.tir.tvm import tirx, tvm_ffi

n, m = SymVar("n"), SymVar("m")

DIMS = {
    "constant": Dim.of(7),
    "zero": Dim.of(0),
    "negative": Dim.of(-3),
    "variable": n.dim,
    "polynomial": n.dim * n.dim * 3 - m.dim * 2 + 5,
    "division": (n.dim + 3) // 4 * 4,
    "remainder": (n.dim * m.dim + 1) % 7,
    "minimum": minimum(n, m.dim + 1),
    "maximum": maximum(n, 8),
    "select": dim_op("select", dim_op("eq", n, 1), m, n),
    "comparison": dim_op("lt", n, m),
    "logic": dim_op(
        "or", dim_op("eq", n, 1), dim_op("and", dim_op("le", n, m), dim_op("ne", n, 4))
    ),
    "negation": dim_op("not", dim_op("eq", n, m)),
}


def table() -> VarTable:
    """A table that knows n and m."""
    known = VarTable()
    known.symbols = {to_tvm_var(n): n, to_tvm_var(m): m}
    return known


@pytest.mark.parametrize("name", DIMS)
def test_to_tvm_means_the_same(name: str) -> None:
    """TVM's expression, its variables replaced by numbers and simplified, is the dimension's value."""
    from relaxpy.tir.tvm import tvm

    rng = random.Random(0)
    dim = DIMS[name]
    for _ in range(10):
        values = {n: rng.randrange(1, 50), m: rng.randrange(1, 50)}
        numbers = {to_tvm_var(var): int64(value) for var, value in values.items()}
        replaced = tvm_ffi.structural_map(
            to_tvm(dim), (tvm.ir.Var, lambda v, numbers=numbers: numbers.get(v, v))
        )
        assert int(tvm.sym.Analyzer().simplify(replaced).value) == dim.evaluate(values)


@pytest.mark.parametrize("name", DIMS)
def test_there_and_back(name: str) -> None:
    """A dimension comes back from TVM with the same values (often as the same normal form)."""
    rng = random.Random(1)
    dim = DIMS[name]
    back = table().to_dim(to_tvm(dim))
    for _ in range(20):
        values = {n: rng.randrange(0, 50), m: rng.randrange(0, 50)}
        assert back.evaluate(values) == dim.evaluate(values)


def test_both_choices_of_tvm() -> None:
    """`if_then_else` is written in the sizes of slices, `Select` in others."""
    a, b = to_tvm_var(n), to_tvm_var(m)
    expected = dim_op("select", dim_op("lt", n, 1), n.dim + m.dim, n.dim)
    for choice in (tirx.if_then_else, tirx.Select):
        assert table().to_dim(choice(a < int64(1), a + b, a)) == expected


def test_one_variable_for_one_symbol() -> None:
    assert to_tvm_var(n).same_as(to_tvm_var(n))
    assert not to_tvm_var(n).same_as(to_tvm_var(SymVar("n")))


def test_new_variables() -> None:
    """A TVM variable that the table does not know becomes a symbol of its name, once."""
    known = VarTable()
    var = tirx.Var("k", "int32")
    dim = known.to_dim(var + 1)
    assert str(dim) == "k + 1"
    assert known.to_dim(var) == dim - 1


def test_not_a_dimension() -> None:
    with pytest.raises(PassError, match="integer expression"):
        VarTable().to_dim(tirx.FloatImm("float32", 1.0))


def test_equal() -> None:
    """However the factors of a product are ordered, which TVM's analyser leaves as they are."""
    a, b = to_tvm(n.dim), to_tvm(m.dim // 2)
    assert equal(a * b * int64(2), int64(2) * b * a)
    assert equal(a * tirx.floordiv(b, int64(2)) * b, b * tirx.floordiv(b, int64(2)) * a)
    assert equal((a + b) * int64(2), b * int64(2) + a * int64(2))
    assert not equal(a * b, a * b * b)
    assert not equal(tirx.truncdiv(a, b), tirx.truncdiv(b, a))


PROVED = {
    "n is at least 0": (dim_op("le", 0, n), {}),
    "rounding up": (dim_op("le", n, (n.dim + 15) // 16 * 16), {}),
    "quotient and remainder": (dim_op("eq", n.dim // 4 * 4 + n.dim % 4, n), {}),
    "bounded": (dim_op("lt", n, 9), {n: (0, 8)}),
    "positive": (dim_op("lt", 0, n), {n: (1, None)}),
}


@pytest.mark.parametrize("name", PROVED)
def test_proved(name: str) -> None:
    condition, bounds = PROVED[name]
    assert can_prove(condition, tuple((v, *bounds.get(v, (0, None))) for v in condition.vars))


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        (dim_op("lt", n, 8), (0, 8)),
        (dim_op("lt", 0, n), (0, None)),
        (dim_op("eq", n, 4), (0, None)),
        (dim_op("eq", n.dim % 4, 0), (0, None)),
    ],
)
def test_not_proved(condition: Dim, bounds: tuple[int, int | None]) -> None:
    """What fails for one value is not proved."""
    assert not can_prove(condition, ((n, *bounds),))
