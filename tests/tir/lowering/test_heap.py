"""What scheduled programs take from the heap."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from relaxpy.backend.cpu.compile import compile_source
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.target import Target
from relaxpy.tir import te
from relaxpy.tir.lowering.heap import HeapUse, heap_use
from relaxpy.tir.parse import parse_prim_func
from relaxpy.tir.prim_func import PrimFunc


def program(body: str) -> Any:
    """A program over x: (n, 8) with this body."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    text = (
        "@T.prim_func(s_tir=True)\n"
        "def main(p: T.handle, q: T.handle):\n"
        "    n = T.int64()\n"
        '    x = T.match_buffer(p, (n, 8), "float32")\n'
        '    y = T.match_buffer(q, (n, 8), "float32")\n'
        f"{lines}\n"
    )
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    return parse_prim_func(node, text, "heap.py", {}).func


def use(shared: int, each: int) -> HeapUse:
    return HeapUse(Dim.of(shared), Dim.of(each))


def test_small_buffers_are_on_the_stack() -> None:
    body = """
for i in T.parallel(n):
    a = T.alloc_buffer((255,), "float32")
    a[0] = x[i, 0]
    y[i, 0] = a[0]
"""
    assert heap_use(program(body)) == use(0, 0)


def test_what_a_parallel_loop_allocates_each_thread_takes() -> None:
    body = """
b = T.alloc_buffer((512,), "float32")
for i in T.parallel(n):
    a = T.alloc_buffer((256,), "float32")
    a[0] = x[i, 0]
    b[0] = a[0]
    y[i, 0] = a[0]
"""
    assert heap_use(program(body)) == use(2048, 1024)


def test_one_after_the_other_is_the_larger_of_both() -> None:
    body = """
if n > 100:
    for i in range(n):
        a = T.alloc_buffer((256,), "float32")
        a[0] = x[i, 0]
        y[i, 0] = a[0]
else:
    for i in range(n):
        a = T.alloc_buffer((512,), "float32")
        a[0] = x[i, 0]
        y[i, 0] = a[0]
"""
    assert heap_use(program(body)) == use(2048, 0)


def test_the_larger_of_many_is_no_tower() -> None:
    """Of many statements that take something each, the largest number has every size once."""
    n, m = (SymVar(name).dim for name in "nm")
    used = HeapUse(Dim.of(0), Dim.of(0))
    for i in range(100):
        size = (n * 4, m * 4, Dim.of(0), (n + i % 9) // 2)[i % 4]
        used = used.instead(HeapUse(size, size * 2))
    assert used.shared.depth < 8
    assert used.shared.evaluate({n.vars[0]: 3, m.vars[0]: 5}) == 20
    assert used.each.evaluate({n.vars[0]: 30, m.vars[0]: 5}) == 240
    assert used.instead(HeapUse(n * 4, m * 8)) == used


def test_sizes_of_arguments_and_bound_values() -> None:
    body = """
blocks: T.let[T.int64] = (n + 31) // 32
b = T.alloc_buffer((blocks * 8,), "float32")
b[0] = x[0, 0]
y[0, 0] = b[0]
"""
    func = program(body)
    found = heap_use(func)
    assert found is not None
    (n,) = found.shared.vars
    assert found.shared.evaluate({n: 33}) == 2 * 8 * 4


@pytest.mark.parametrize("depth", [64, 4096])
def test_what_is_counted_is_what_the_code_asks_for(depth: int) -> None:
    """The assembly asks the pool exactly where something is counted."""
    n, m = SymVar("n"), SymVar("m")
    x, w = te.placeholder((n, depth), "float32", "x"), te.placeholder((depth, m), "float32", "w")
    target = Target.host()
    for values in (te.topi.matmul(x, w), te.topi.exp(x), te.topi.sum(x, 0)):
        func = PrimFunc.from_te([x, w] if values.op.name == "T_matmul" else [x], [values]).func
        scheduled = schedule_kernel(func, target).parallel
        found = heap_use(scheduled)
        assert found is not None
        asks = "AllocWorkspace" in compile_source({"k": scheduled}, target)
        assert asks == (found != use(0, 0))
