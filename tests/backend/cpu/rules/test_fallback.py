"""Programs that no other rule knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaxpy.backend.schedule import schedule_kernel
from relaxpy.tir.schedule import has_parallel_loop, is_scheduled, loops_of, serial_twin
from relaxpy.tir.tvm import s_tir, script_tirx, te, tirx, tvm
from tests.backend.support import HOST, Kernel, as_tensor, compute, f32, i64, load, n, over, tensor

T = script_tirx


@T.prim_func(s_tir=True)
def prefix_sums(
    x: T.Buffer((T.int64(5), T.int64(7)), "float32"),
    y: T.Buffer((T.int64(5), T.int64(7)), "float32"),
):
    """Each element needs the one before it: only the rows are independent."""
    for i, j in T.grid(T.int64(5), T.int64(7)):
        with T.sblock("row"):
            vi = T.axis.spatial(T.int64(5), i)
            vj = T.axis.opaque(T.int64(7), j)
            y[vi, vj] = x[vi, vj] + T.if_then_else(
                vj > T.int64(0), y[vi, vj - T.int64(1)], T.float32(0)
            )


def test_dependent_iterations_stay_in_order(tmp_path: Path) -> None:
    kernel = schedule_kernel(prefix_sums, HOST)
    assert kernel.rule == "fallback"
    a = np.arange(35, dtype=np.float32).reshape(5, 7)
    for form in (kernel.parallel, kernel.serial):
        out = np.zeros_like(a)
        load(tmp_path, {"k": form})["k"](as_tensor(a), as_tensor(out))
        np.testing.assert_array_equal(out, a.cumsum(1, dtype=np.float32))


@pytest.mark.parametrize("marked", [True, False])
def test_what_its_author_arranged_stays(marked: bool) -> None:
    x = tensor(n, 64)
    func = te.create_prim_func([x, compute((n, 64), lambda i, j: x[i, j] + f32(1.0))])
    if marked:
        func = func.with_attr("tirx.is_scheduled", True)
    else:
        schedule = s_tir.Schedule(func)
        schedule.vectorize(schedule.get_loops(schedule.get_sblock("out"))[1])
        func = schedule.mod["main"]
    assert is_scheduled(func)
    kernel = schedule_kernel(func, HOST)
    assert kernel.rule == "author"
    assert kernel.parallel.same_as(func)


def test_scheduling_does_not_touch_its_argument() -> None:
    """TVM's scheduler writes into functions that share their body with another; it gets copies."""
    x, k = tensor(n, 64), over(64)
    pair = te.compute(
        (n, i64(1)),
        lambda i, _: te.comm_reducer(lambda a, b: a - b, lambda t: tirx.const(0, t))(
            x[i, k], axis=k
        ),
        name="odd",
    )
    original = te.create_prim_func([x, pair])
    func = original.with_attr("global_symbol", "renamed")
    kernel = schedule_kernel(func, HOST)
    assert kernel.rule == "fallback"
    assert has_parallel_loop(kernel.parallel)
    assert all(loop.kind == tirx.ForKind.SERIAL for loop in [*loops_of(func), *loops_of(original)])


def test_serial_twin_is_the_same_program_without_threads(tmp_path: Path) -> None:
    x = tensor(n, 64)
    kernel = Kernel(tmp_path, [x, compute((n, 64), lambda i, j: x[i, j] + f32(1.0))])
    twin = serial_twin(kernel.scheduled.parallel)
    assert not has_parallel_loop(twin)
    assert serial_twin(twin) is twin
    tvm.ir.assert_structural_equal(twin, kernel.scheduled.serial)
