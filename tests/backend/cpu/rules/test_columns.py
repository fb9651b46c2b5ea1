"""Rows side by side in memory, many at a time: the same numbers as one row after the other."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.scan import scan
from relaxpy.tir.schedule import loops_of
from relaxpy.tir.tvm import s_tir, tirx
from relaxpy.tir.walk import walk
from tests.backend.cpu.rules.test_rows import agree
from tests.tir.recognise.test_rows import program

HOST = Target.parse("llvm")
DOWN = """
for i in range(m):
    with T.sblock("down"):
        v = T.axis.spatial(m, i)
        total = T.sblock_alloc_buffer((1,))
        total[0] = T.float32(0)
        for j in range(n):
            total[0] = total[0] * T.float32(0.5) + x[j, v]
            y[j, v] = total[0]
"""
SIZES = ((3, 4), (1, 1), (0, 3), (3, 0), (5, 64), (5, 65), (2, 200))


def is_in_columns(func: Any) -> bool:
    """Whether the innermost loops are over neighbouring rows."""
    kernel = schedule_kernel(func, HOST)
    assert kernel.rule == "rows"
    return any(str(loop.loop_var.name) == "j" for loop in loops_of(kernel.parallel)[-1:])


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_totals_along_an_outer_axis() -> None:
    func = program(DOWN.replace("for j in", "for k in").replace("[j, v]", "[k, v]"))
    assert is_in_columns(func)
    for size in SIZES:
        agree(func, normal(*size), np.zeros(size, np.float32))


def test_a_name_for_what_is_the_same_in_all_rows() -> None:
    """It stays where it is; what differs is named in the loop over the rows."""
    func = program("""
for i in range(m):
    with T.sblock("down"):
        v = T.axis.spatial(m, i)
        total = T.sblock_alloc_buffer((1,))
        total[0] = T.float32(0)
        for k in range(n):
            scale: T.let[T.float32] = x[k, 0]
            value: T.let[T.float32] = x[k, v] * scale
            total[0] = total[0] + value
            y[k, v] = total[0] * value
""")
    assert is_in_columns(func)
    for size in SIZES:
        if 0 not in size:
            agree(func, normal(*size), np.zeros(size, np.float32))


def test_loops_in_loops_and_statements_between_them() -> None:
    func = program("""
for i in range(m):
    with T.sblock("down"):
        v = T.axis.spatial(m, i)
        total = T.sblock_alloc_buffer((1,))
        count = T.sblock_alloc_buffer((1,), "int32")
        count[0] = 0
        for k in range(n):
            total[0] = T.float32(0)
            for l in range(k + 1):
                total[0] = total[0] + x[l, v]
                if x[l, v] > T.float32(0):
                    count[0] = count[0] + 1
            y[k, v] = total[0] * T.Cast("float32", count[0])
""")
    assert is_in_columns(func)
    for size in SIZES:
        agree(func, normal(*size), np.zeros(size, np.float32))


ONE_BY_ONE = {
    "along memory": """
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        for k in range(m):
            y[v, k] = x[v, k]
""",
    "nothing goes across": """
for i, h in T.grid(n, m):
    with T.sblock("row"):
        v, w = T.axis.remap("SS", [i, h])
        total = T.sblock_alloc_buffer((1,))
        total[0] = x[v, w]
        for k in range(8):
            total[0] = total[0] * T.float32(0.5) + T.float32(1)
        y[v, w] = total[0]
""",
    "as long as an element says": """
for i in range(m):
    with T.sblock("row"):
        v = T.axis.spatial(m, i)
        T.reads(x[0:n, v])
        T.writes(y[0:n, v])
        count = T.sblock_alloc_buffer((1,), "int64")
        count[0] = T.Cast("int64", T.min(T.max(x[0, v], T.float32(0)), T.float32(1)))
        for k in range(T.min(count[0], n)):
            y[k, v] = x[k, v]
""",
    "as long as the row's number says": """
for i in range(m):
    with T.sblock("row"):
        v = T.axis.spatial(m, i)
        for k in range(T.min(v, n)):
            y[k, v] = x[k, v]
""",
    "a name over several runs": """
for i in range(m):
    with T.sblock("row"):
        v = T.axis.spatial(m, i)
        first: T.let[T.float32] = x[0, v]
        for k in range(n):
            y[k, v] = x[k, v] - first
""",
    "more than cells": """
for i in range(m):
    with T.sblock("row"):
        v = T.axis.spatial(m, i)
        kept = T.sblock_alloc_buffer((n,))
        for k in range(n):
            kept[k] = x[k, v]
        for k in range(n):
            y[k, v] = kept[n - 1 - k]
""",
}


@pytest.mark.parametrize("body", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_others_run_one_by_one(body: str) -> None:
    func = program(body)
    assert not is_in_columns(func)
    for size in ((3, 4), (1, 1), (2, 70)):
        agree(func, normal(*size), np.zeros(size, np.float32))


def test_how_many_together_is_a_knob() -> None:
    func = program(DOWN.replace("for j in", "for k in").replace("[j, v]", "[k, v]"))
    assert backend_of(HOST).knobs(func, HOST)["rows"] == {"columns": (64, 16, 32, 128, 256)}
    kernels = {
        f"k{size}": PrimFunc(schedule_kernel(func, Target.host(), {"columns": size}).parallel)
        for size in (16, 64, 256)
    }
    compiled, x = Kernels(kernels, schedule=False), normal(7, 150)
    found = [np.zeros_like(x) for _ in kernels]
    for name, got in zip(kernels, found, strict=True):
        compiled.run(name, [x], [got])
    assert {got.tobytes() for got in found} == {found[0].tobytes()}


@pytest.mark.parametrize("width", [1, 4, 64, 100])
def test_no_more_together_than_there_are(width: int) -> None:
    shape = (SymVar("n").dim, Dim.of(width))
    x = te.placeholder(shape, "float32", "x")
    func = PrimFunc.from_te([x], [scan(x, shape, 0, DType("float32"), operator.add, 0)]).func
    cells: list[Any] = []
    body = schedule_kernel(func, HOST).parallel.body
    walk(
        body,
        (tirx.AllocBuffer, lambda stmt: cells.append(stmt.buffer)),
        (s_tir.SBlock, lambda block: cells.extend(block.alloc_buffers)),
    )
    assert [int(buffer.shape[0]) for buffer in cells] == [min(width, 64)]
    agree(func, normal(6, width), np.zeros((6, width), np.float32))
