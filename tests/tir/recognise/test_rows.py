"""Nests of rows, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

import relaxpy
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.rows import rows_of

ROWS = """
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        total = T.sblock_alloc_buffer((1,))
        total[0] = T.float32(0)
        for j in range(m):
            total[0] = total[0] + x[v, j]
            y[v, j] = total[0]
"""
OTHERS = {
    "one element": """
for i, j in T.grid(n, m):
    with T.sblock("one"):
        v, w = T.axis.remap("SS", [i, j])
        y[v, w] = x[v, w]
""",
    "a reduction": """
for i, j in T.grid(n, m):
    with T.sblock("sum"):
        v, w = T.axis.remap("SR", [i, j])
        with T.init():
            y[v, 0] = T.float32(0)
        y[v, 0] = y[v, 0] + x[v, w]
        y[v, 1] = x[v, w]
""",
    "an axis of its own order": """
for i in range(n):
    with T.sblock("row"):
        v = T.axis.opaque(n, i)
        for j in range(m):
            y[v, j] = x[v, j]
""",
    "an axis that is no loop": """
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, n - 1 - i)
        for j in range(m):
            y[v, j] = x[v, j]
""",
    "some rows only": """
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        T.where(i < m)
        for j in range(m):
            y[v, j] = x[v, j]
""",
    "a block without axes": """
with T.sblock("all"):
    for i, j in T.grid(n, m):
        y[i, j] = x[i, j]
""",
    "vectors": """
for i in T.vectorized(4):
    with T.sblock("row"):
        v = T.axis.spatial(4, i)
        for j in range(m):
            y[v, j] = x[v, j]
""",
}


def program(body: str) -> Any:
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    found = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n", "m"), "float32"), y: T.Buffer(("n", "m"), "float32")):
        n, m = T.int64(), T.int64()
{lines}
""")["f"]
    assert isinstance(found, PrimFunc)
    return found.func


def test_rows_with_what_each_has_for_itself() -> None:
    (rows,) = rows_of(program(ROWS))
    assert [str(loop.loop_var.name) for loop in rows.loops] == ["i"]
    assert [str(axis.name) for axis in rows.axes] == ["v"]
    assert [str(buffer.name) for buffer in rows.scratch] == ["total"]


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_what_is_none(body: str) -> None:
    assert rows_of(program(body)) == []


def test_those_among_other_statements_are_found() -> None:
    found = rows_of(program(OTHERS["one element"] + ROWS + ROWS.replace("y[v", "x[v")))
    assert [str(rows.block.name_hint) for rows in found] == ["row", "row"]
