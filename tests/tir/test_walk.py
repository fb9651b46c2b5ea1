"""Walks and rewritings give what TVM's own functions give."""

from __future__ import annotations

from typing import Any

from relaxpy.tir.programs.loops import int64
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import rewritten, walk


def expression() -> Any:
    n: Any = tirx.Var("n", "int64")
    m: Any = tirx.Var("m", "int64")
    return tirx.max(n * m + int64(3), tirx.floordiv(n, int64(4))) - m


def test_visits_in_the_order_of_tvm() -> None:
    """The innermost first; of several entries the first that fits."""
    found: list[str] = []
    wanted: list[str] = []

    def entries(seen: list[str]) -> list[Any]:
        return [
            (tvm.ir.Var, lambda node: seen.append(f"var {node.name}")),
            ((tirx.Add, tirx.Mul), lambda node: seen.append(type(node).__name__)),
            (tvm.ir.Expr, lambda node: seen.append(f"other {type(node).__name__}")),
        ]

    walk(expression(), *entries(found))
    tvm_ffi.structural_walk(expression(), entries(wanted))
    assert found == wanted
    assert found[:3] == ["var n", "var m", "Mul"]


def test_rewrites_as_tvm() -> None:
    """Several kinds of nodes in one go; what nothing is said of stays."""
    entries = [
        (tvm.ir.Var, lambda var: int64(2) if var.name == "n" else var),
        ((tirx.Max, tirx.Min), lambda node: node.a),
    ]
    expr = expression()
    assert tvm_ffi.structural_equal(
        rewritten(expr, *entries), tvm_ffi.structural_map(expr, entries)
    )
    assert rewritten(expr, (tirx.Mod, lambda node: node.a)).same_as(expr)


def test_every_place_is_visited() -> None:
    """A variable that stands twice is visited twice."""
    found: list[Any] = []
    walk(expression(), (tvm.ir.Var, found.append))
    assert [var.name for var in found] == ["n", "m", "n", "m"]
