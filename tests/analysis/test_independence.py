"""Loops whose iterations may run at the same time, and those that must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.independence import in_order
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.schedule import has_parallel_loop, loops_of

PARAMS = 'x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")'
MATRIX = 'x: T.Buffer(("n", "m"), "float32"), y: T.Buffer(("n", "m"), "float32")'


def text(body: str, params: str) -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"""
@I.ir_module
class M:
    @T.prim_func
    def f({params}):
        n, m = T.int64(), T.int64()
{lines}
"""


def program(body: str, params: str = PARAMS) -> Any:
    found = relaxpy.parse(text(body, params))["f"]
    assert isinstance(found, PrimFunc)
    return found.func


def block(statement: str, loop: str = "T.parallel(n)", axis: str = "T.axis.spatial(n, i)") -> str:
    return f'for i in {loop}:\n    with T.sblock("b"):\n        v = {axis}\n        {statement}'


INDEPENDENT = {
    "element-wise": (block("y[v] = x[v]"), PARAMS),
    "in place": (block("y[v] = y[v] + x[v]"), PARAMS),
    "reads anywhere of what is not written": (block("y[v] = x[0] + x[n - 1 - v]"), PARAMS),
    "backwards": (block("y[n - 1 - v] = x[v]"), PARAMS),
    "every second": (block("y[v * 2] = x[v]", "T.parallel(n // 2)", "T.axis.spatial(n // 2, i)"), PARAMS),
    "tiles": (
        "for i in T.parallel(n // 4):\n    for j in range(4):\n        y[i * 4 + j] = x[i * 4 + j]",
        PARAMS,
    ),
    "vectors": (
        "for i in range(n // 4):\n    for j in T.vectorized(4):\n        y[i * 4 + j] = x[i * 4 + j]",
        PARAMS,
    ),
    "rows": (
        "for i in T.parallel(n):\n    y[i, 0] = x[i, 0]\n    for j in range(m - 1):\n"
        "        y[i, j + 1] = y[i, j] + x[i, j]",
        MATRIX,
    ),
    "rows, by number": (
        "for i in T.parallel(n):\n    for j in range(m):\n        y[i * m + j] = x[i * m + j]",
        PARAMS.replace('"n"', '"n * m"') + ', z: T.Buffer(("n", "m"), "float32")',
    ),
    "memory of its own": (
        "for i in T.parallel(n):\n    t = T.alloc_buffer((1,), 'float32')\n    t[0] = x[i]\n    y[i] = t[0] + t[0]",
        PARAMS,
    ),
    "once": (block("y[0] = y[0] + x[v]", "T.parallel(1)", "T.axis.spatial(1, i)"), PARAMS),
}  # fmt: skip

DEPENDENT = {
    "sum": (block("y[0] = y[0] + x[v]"), PARAMS),
    "sum that hides": (block("T.reads(x[v])\n        T.writes(y[v])\n        y[0] = y[0] + x[v]"), PARAMS),
    "prefix": (block("y[v] = T.if_then_else(v > 0, y[v - 1], T.float32(0)) + x[v]"), PARAMS),
    "stencil in place": (block("x[v] = T.if_then_else(v + 1 < n, x[v + 1], T.float32(0))"), PARAMS),
    "two to one": (block("y[v // 2] = x[v]"), PARAMS),
    "two to one, by the axis": (block("y[v] = y[v] + x[v]", "T.parallel(n)", "T.axis.spatial(n, i // 2)"), PARAMS),
    "remainder": (block("y[v % 4] = x[v]"), PARAMS),
    "scatter": (block('y[T.Cast("int64", x[v])] = x[v]'), PARAMS),
    "overlapping tiles": (
        "for i in T.parallel(n // 4):\n    for j in range(5):\n        y[i * 4 + j] = x[i * 4]",
        PARAMS,
    ),
    "two that meet": (block("y[v] = x[v]\n        y[n - 1 - v] = x[v]"), PARAMS),
    "vectors": ("for i in T.vectorized(7):\n    y[i + 1] = y[i] + x[i]", PARAMS),
    "columns of a prefix": (
        "for i in range(n):\n    for j in T.parallel(m - 1):\n        y[i, j + 1] = y[i, j] + x[i, j]",
        MATRIX,
    ),
    "memory of all": (
        "t = T.alloc_buffer((1,), 'float32')\nfor i in T.parallel(n):\n    t[0] = x[i]\n    y[i] = t[0]",
        PARAMS,
    ),
    "threads of a device": (block("y[v] = x[v]", 'T.thread_binding(n, thread="threadIdx.x")'), PARAMS),
    "reduced axis": (
        'for i in T.parallel(n):\n    with T.sblock("b"):\n        v = T.axis.reduce(n, i)\n'
        "        with T.init():\n            y[0] = T.float32(0)\n        y[0] = y[0] + x[v]",
        PARAMS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent(name: str) -> None:
    func = program(*INDEPENDENT[name])
    assert in_order(func).same_as(func)


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent(name: str) -> None:
    """The loop is serial; nor does the rule for any program make it parallel."""
    func = program(*DEPENDENT[name])
    assert {int(loop.kind) for loop in loops_of(in_order(func))} == {0}
    if "thread_binding" in DEPENDENT[name][0]:
        return
    plain = program(
        DEPENDENT[name][0].replace("T.parallel", "range").replace("T.vectorized", "range"),
        DEPENDENT[name][1],
    )
    assert not has_parallel_loop(schedule_kernel(plain, Target.host()).parallel)


SUM = block("y[v] = T.float32(0)") + "\n" + block("y[0] = y[0] + x[v]").replace('"b"', '"c"')


def test_a_sum_is_the_same_at_each_call() -> None:
    """Over an axis that is declared spatial, in a loop that is declared parallel."""
    mod = relaxpy.parse(
        text(SUM, PARAMS)
        + """
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        y = R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "float32"))
        z = R.add(y, x)
        return z
"""
    )
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    results = [vm["main"](x).numpy() for _ in range(10)]
    assert all(np.array_equal(result, results[0]) for result in results)
    np.testing.assert_array_equal(vm["main"](x[:3000]).numpy(), interpret(mod, "main", x[:3000]))
