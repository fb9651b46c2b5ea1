"""Which outputs a program leaves unset, and which it reads first."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.ir import IRModule
from relaxpy.tir.prim_func import PrimFunc

HEAD = """
@T.prim_func
def f(x: T.Buffer(("n", 3), "float32"), y: T.Buffer(("n", 3), "float32")):
    n = T.int64()
"""
SET = {
    "a block": """
    for i, j in T.grid(n, 3):
        with T.sblock("y"):
            v, w = T.axis.remap("SS", [i, j])
            y[v, w] = x[v, w]
""",
    "loops": """
    for j in range(3):
        for i in T.parallel(n):
            y[i, j] = x[i, j]
""",
    "either way": """
    for i, j in T.grid(n, 3):
        if x[i, j] > T.float32(0):
            y[i, j] = x[i, j]
        else:
            y[i, j] = T.float32(0)
""",
    "a sum": """
    for i, j in T.grid(n, 3):
        y[i, j] = T.float32(0)
        for k in range(3):
            y[i, j] = y[i, j] + x[i, k]
""",
    "a sum that begins in its block": """
    for i, j in T.grid(n, 3):
        for k in range(3):
            with T.sblock("y"):
                v, w, r = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    y[v, w] = T.float32(0)
                y[v, w] = y[v, w] + x[v, r]
""",
    "all, then read elsewhere": """
    for i, j in T.grid(n, 3):
        y[i, j] = x[i, j]
    for i in range(n - 1):
        y[i + 1, 0] = y[i, 2] + y[i + 1, 0]
""",
    "parts of a size": """
    for i, j in T.grid(n // 2, 3):
        y[i + n // 2, j] = x[i, j]
        y[i, j] = x[i, j]
    for i, j in T.grid(n - n // 2 * 2, 3):
        y[i + n // 2 * 2, j] = x[i, j]
""",
    "other names": """
    for i, j in T.grid(n, 3):
        a: T.let[T.int64] = i
        y[a, j] = x[i, j]
""",
}
UNSET = {
    "nothing": """
    for i in range(n):
        x[i, 0] = T.float32(0)
""",
    "under a condition": """
    for i, j in T.grid(n, 3):
        if x[i, j] > T.float32(0):
            y[i, j] = x[i, j]
""",
    "all but one": """
    for i, j in T.grid(n - 1, 3):
        y[i + 1, j] = x[i, j]
""",
    "two of three": """
    for i, j in T.grid(n, 2):
        y[i, j] = x[i, j]
""",
    "parts with a gap": """
    for i in range(n):
        y[i, 2] = x[i, 2]
        for j in range(1):
            y[i, j] = x[i, j]
""",
    "a diagonal": """
    for i in range(T.min(n, 3)):
        y[i, i] = x[i, i]
""",
    "perhaps never": """
    for k in range(n - 5):
        for i, j in T.grid(n, 3):
            y[i, j] = x[i, j]
""",
    "where a block is allowed": """
    for i, j in T.grid(n, 3):
        with T.sblock("y"):
            v, w = T.axis.remap("SS", [i, j])
            T.where(i + j < n)
            y[v, w] = x[v, w]
""",
    "while something holds": """
    i = T.alloc_buffer((1,), "int64")
    i[0] = T.int64(0)
    while i[0] < n:
        y[i[0], 0] = x[i[0], 0]
        i[0] = i[0] + T.int64(1)
""",
    "through a view": """
    for i in range(n):
        with T.sblock("y"):
            v = T.axis.spatial(n, i)
            row = T.match_buffer(y[v, 0:3], (3,), offset_factor=1)
            for j in range(3):
                row[j] = x[v, j]
""",
    "read where not yet written": """
    for i, j in T.grid(n, 3):
        y[i, j] = x[i, j]
        if i > 0:
            y[i, j] = y[i - 1, j]
""",
    "perhaps read": """
    for i, j in T.grid(n, 3):
        y[i, j] = T.if_then_else(x[i, j] > T.float32(0), y[i, j], x[i, j])
""",
}
READ_FIRST = {
    "a sum without beginning": """
    for i, j in T.grid(n, 3):
        with T.sblock("y"):
            v, w = T.axis.remap("SS", [i, j])
            y[v, w] = y[v, w] + x[v, w]
""",
    "in a loop": """
    for i, j in T.grid(n, 3):
        for k in range(3):
            y[i, j] += x[i, k]
""",
    "before it is overwritten": """
    for i, j in T.grid(n, 3):
        x[i, j] = y[i, j]
        y[i, j] = T.float32(0)
""",
}


def program(body: str) -> PrimFunc:
    mod: IRModule = relaxpy.parse(HEAD + body)
    function = mod["f"]
    assert isinstance(function, PrimFunc)
    return function


@pytest.mark.parametrize("name", SET)
def test_set(name: str) -> None:
    found = program(SET[name])
    assert found.unset == {0}
    assert not found.read_first


@pytest.mark.parametrize("name", UNSET)
def test_unset(name: str) -> None:
    found = program(UNSET[name])
    assert 1 in found.unset
    assert not found.read_first


@pytest.mark.parametrize("name", READ_FIRST)
def test_read_first(name: str) -> None:
    found = program(READ_FIRST[name])
    assert 1 in found.unset
    assert found.read_first >= {1}


def test_what_is_written_through_views() -> None:
    assert program(UNSET["through a view"]).written == {1}
    assert program(UNSET["nothing"]).written == {0}
