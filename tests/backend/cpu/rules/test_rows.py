"""Rows that do not look at each other run in parallel; others stay in order."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.backend.verify import check_scheduled
from relaxpy.ir.dim import SymVar
from relaxpy.ir.dtype import DType
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.lowering.heap import heap_use
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.scan import scan
from relaxpy.tir.programs.sort import sort_rows
from relaxpy.tir.schedule import has_parallel_loop, loops_of
from relaxpy.tir.to_python import to_python
from relaxpy.tir.tvm import tirx, tvm
from tests.sweeps import quick_target
from tests.tir.recognise.test_rows import ROWS, program

HOST = Target.parse("llvm")
ARRANGED = """
with T.sblock("row"):
    for i in T.parallel(n):
        total = T.alloc_buffer((1,))
        total[0] = T.float32(0)
        for j in range(m):
            total[0] = total[0] + x[i, j]
            y[i, j] = total[0]
"""


def agree(func: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Scheduled, as it is written, and as Python."""
    kernel = schedule_kernel(func, Target.host())
    check_scheduled(kernel)
    before = y.copy()
    to_python(func)(x, y)
    compiled = (
        ("parallel", kernel.parallel, HOST), ("serial", kernel.serial, quick_target()), ("written", func, quick_target()),
    )  # fmt: skip
    for name, form, target in compiled:
        got = before.copy()
        Kernels({name: PrimFunc(form)}, target, schedule=False).run(name, [x], [got])
        np.testing.assert_array_equal(got, y, err_msg=name)


def test_one_parallel_loop() -> None:
    """As somebody would arrange it by hand, scratch in the loop."""
    kernel = schedule_kernel(program(ROWS), HOST)
    assert kernel.rule == "rows"
    assert not has_parallel_loop(kernel.serial)
    wanted = schedule_kernel(program(ARRANGED), HOST)
    assert wanted.rule == "author"
    (made,), (by_hand,) = (loops(k.parallel.body)[-1:] for k in (kernel, wanted))
    tvm.ir.assert_structural_equal(made, by_hand, map_free_vars=True)


def loops(body: Any) -> list[Any]:
    """The outermost loop of a function with one last."""
    return [loop for loop in loops_of(tirx.PrimFunc([], body)) if loop.kind == 1]


def test_rows_of_several_axes_are_counted_by_one_loop() -> None:
    shape = tuple(SymVar(name).dim for name in "nml")
    x = te.placeholder(shape, "float32", "x")
    func = PrimFunc.from_te([x], sort_rows(x, shape, 2)).func
    kernel = schedule_kernel(func, HOST)
    assert [loop.kind for loop in loops_of(kernel.parallel)].count(tirx.ForKind.PARALLEL) == 1
    for sizes in ((2, 3, 7), (1, 5, 4), (0, 2, 3), (2, 0, 3), (4, 2, 0)):
        values = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
        agree(func, values, np.zeros_like(values))


def test_scratch_is_of_the_thread() -> None:
    """Two rows of keys for each thread, and not for each row."""
    shape = tuple(SymVar(name).dim for name in "nm")
    x = te.placeholder(shape, "float32", "x")
    kernel = schedule_kernel(PrimFunc.from_te([x], sort_rows(x, shape, 1)).func, HOST)
    used = heap_use(kernel.parallel)
    assert used is not None
    assert str(used.each) == "m * 8"
    assert used.shared.value == 0


DEPENDENT = {
    "a sum over the rows": """
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        for j in range(m):
            y[0, j] = y[0, j] + x[v, j]
""",
    "each from the one before it": """
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        for j in range(m):
            y[v, j] = x[v, j] + T.if_then_else(v > 0, y[T.max(v, 1) - 1, j], T.float32(0))
""",
    "where another element says": """
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        for j in range(m):
            y[T.Cast("int64", x[v, 0]) % n, j] = x[v, j]
""",
}


@pytest.mark.parametrize("body", DEPENDENT.values(), ids=DEPENDENT)
def test_dependent_rows_stay_in_order(body: str) -> None:
    """Whatever the block's axes are declared to be."""
    func = program(body)
    kernel = schedule_kernel(func, HOST)
    assert kernel.rule == "rows"
    assert not has_parallel_loop(kernel.parallel)
    x = np.random.default_rng(0).integers(0, 9, (5, 4)).astype(np.float32)
    agree(func, x, np.zeros_like(x))


def test_only_the_outer_axis_is_independent() -> None:
    func = program("""
for i, j in T.grid(n, m):
    with T.sblock("row"):
        v, w = T.axis.remap("SS", [i, j])
        for k in range(3):
            y[v, 0] = y[v, 0] * T.float32(0.5) + x[v, w]
""")
    kernel = schedule_kernel(func, HOST)
    kinds = [int(loop.kind) for loop in loops_of(kernel.parallel)]
    assert kinds == [tirx.ForKind.PARALLEL, tirx.ForKind.SERIAL, tirx.ForKind.SERIAL]
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    agree(func, x, np.zeros_like(x))


def test_stages_beside_rows_are_arranged_by_their_rules() -> None:
    """A running total, and twice of it: two parallel loops, the second one of vectors, the total in memory between
    them, which the graph allocates."""
    shape = tuple(SymVar(name).dim for name in "nm")
    x = te.placeholder(shape, "int64", "x")
    sums = scan(x, shape, 1, DType("int64"), operator.add, 0)
    func = PrimFunc.from_te([x], [te.compute(shape, lambda i, j: sums(i, j) * 2, "twice")]).func
    kernel = schedule_kernel(func, HOST)
    assert kernel.rule == "rows"
    assert [loop.kind for loop in loops_of(kernel.parallel)].count(tirx.ForKind.PARALLEL) == 2
    assert "int64x" in PrimFunc(kernel.parallel).script()
    launches = backend_of(HOST).launches(PrimFunc(func), HOST)
    assert launches is not None
    assert [buffer.name for buffer in launches.workspaces] == ["scanned"]
    agree(func, np.arange(12).reshape(3, 4), np.zeros((3, 4), np.int64))


BESIDE = {
    "what no rule arranges": """
for i in range(n):
    with T.sblock("first"):
        v = T.axis.spatial(n, i)
        for j in range(m):
            y[v, j] = x[v, j]
with T.sblock("all"):
    for i, j in T.grid(n, m):
        y[n - 1 - i, j] = y[i, j] + x[i, j]
for i, j in T.grid(n, m):
    with T.sblock("twice"):
        v, w = T.axis.remap("SS", [i, j])
        y[v, w] = y[v, w] * T.float32(2)
""",
    "memory of all rows": """
kept = T.sblock_alloc_buffer((n, m))
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        for j in range(m):
            kept[v, j] = x[v, j]
        for j in range(m):
            y[v, j] = kept[v, m - 1 - j]
""",
    "stages that write the same": """
for i, j in T.grid(n, m):
    with T.sblock("zero"):
        v, w = T.axis.remap("SS", [i, j])
        y[v, w] = T.float32(0)
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        for j in range(m):
            y[v, m - 1 - j] = y[v, j] + x[v, j]
for i, j in T.grid(n, m):
    with T.sblock("more"):
        v, w = T.axis.remap("SS", [i, j])
        y[v, w] = y[v, w] + x[v, w]
""",
    "a sum between rows": """
total = T.sblock_alloc_buffer((n,))
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        for j in range(m):
            y[v, j] = x[v, m - 1 - j]
for i, j in T.grid(n, m):
    with T.sblock("sum"):
        v, w = T.axis.remap("SR", [i, j])
        with T.init():
            total[v] = T.float32(0)
        total[v] = total[v] + y[v, w]
for i in range(n):
    with T.sblock("row"):
        v = T.axis.spatial(n, i)
        for j in range(m):
            y[v, j] = y[v, j] + total[v]
""",
}


@pytest.mark.parametrize("body", BESIDE.values(), ids=BESIDE)
def test_whatever_is_beside_rows(body: str) -> None:
    func = program(body)
    kernel = schedule_kernel(func, HOST)
    assert kernel.rule == "rows"
    assert has_parallel_loop(kernel.parallel)
    for size in ((4, 5), (1, 1), (0, 3), (3, 40)):
        x = np.random.default_rng(0).integers(-9, 9, size).astype(np.float32)
        agree(func, x, np.zeros_like(x))


def test_what_parts_hand_on_is_planned() -> None:
    """A median counts, sorts and picks: nothing that is shared is asked for in the kernel."""
    mod = relaxpy.parse("""
@I.ir_module
class M:
    @R.function
    def main(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n",), "float32"):
        both = R.median(x, axis=1)
        y = both[0]
        return y
""")
    exe = relaxpy.build(mod)
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    got = relaxpy.VirtualMachine(exe)["main"](x).numpy()
    np.testing.assert_array_equal(got, np.median(x, 1))
    assert all(kernel.image.memory and kernel.image.memory.shared == 0 for kernel in exe.kernels)


def test_users_rows_are_checked_and_run_in_parallel() -> None:
    """An index that is read from memory is checked before the rows run."""
    exe = relaxpy.build(
        relaxpy.parse("""
@I.ir_module
class M:
    @T.prim_func(private=True)
    def pick(x: T.Buffer(("n", "m"), "float32"), at: T.Buffer(("n",), "int64"), y: T.Buffer(("n",), "float32")):
        n, m = T.int64(), T.int64()
        for i in range(n):
            with T.sblock("row"):
                v = T.axis.spatial(n, i)
                total = T.sblock_alloc_buffer((1,))
                total[0] = T.float32(0)
                for j in range(3):
                    total[0] = total[0] + x[v, at[v]]
                y[v] = total[0]

    @R.function
    def main(x: R.Tensor(("n", "m"), "float32"), at: R.Tensor(("n",), "int64")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = M
        y = R.call_tir(cls.pick, (x, at), out_ty=R.Tensor((n,), "float32"))
        return y
""")
    )
    vm = relaxpy.VirtualMachine(exe)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(vm["main"](x, np.array([2, 0])).numpy(), [6, 9])
    with pytest.raises(relaxpy.RelaxError, match="index") as caught:
        vm["main"](x, np.array([2, 3]))
    assert "3" in str(caught.value)
