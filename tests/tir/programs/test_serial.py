"""Tensors that are filled by loops written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.dim import Dim
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.serial import Serial, serial
from relaxpy.tir.schedule import with_outer_loops_parallel
from relaxpy.tir.to_python import to_python
from relaxpy.tir.tvm import te as tvm_te


def histogram(p: Serial, out: Any, places: Any) -> None:
    """How often each place of `out` is named."""
    with p.loop("i", out.shape[0]) as i:
        p.write(out, i, value=te.const(0, "int32"))
    with p.loop("k", places.shape[0]) as k:
        at = p.let("at", p.read(places, k))
        p.write(out, at, value=p.read(out, at) + te.const(1, "int32"))


def program(before: bool, after: bool) -> PrimFunc:
    n, m = Dim.var("n"), Dim.var("m")
    places = te.placeholder((m,), "int64", "places")
    read = te.compute((m,), lambda i: places(i) + 1, "next") if before else places
    counted = serial(((n,), "int32"), [read], histogram, "histogram")
    found = te.compute((n,), lambda i: counted(i) * 2, "twice") if after else counted
    return PrimFunc.from_te([places], [found], [n.symbol] if n.symbol else [])


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_serial_programs_alone_and_between_others(before: bool, after: bool) -> None:
    """Scheduled, compiled and as Python: repeated places count each time."""
    func, places = program(before, after), np.array([1, 0, 1, 1], np.int64)
    wanted = np.bincount(places + before, minlength=3).astype(np.int32) * (2 if after else 1)
    kernel, python = np.full(3, 77, np.int32), np.full(3, 77, np.int32)
    Kernels({"k": func}).run("k", [places], [kernel], [3])
    to_python(func.func)(places, python, 3)
    np.testing.assert_array_equal(kernel, wanted)
    np.testing.assert_array_equal(python, wanted)


def test_several_results() -> None:
    """Each has its own shape and dtype; what the block reads and writes is known."""
    x = te.placeholder((4,), "int32", "x")

    def ends(p: Serial, low: Any, high: Any, x: Any) -> None:
        p.write(low, value=p.read(x, 0))
        p.write(high, 0, value=p.read(x, 3))

    low, high = serial([((), "int32"), ((1,), "int32")], [x], ends, "ends")
    func = PrimFunc.from_te([x], [low, high])
    assert "T.reads(x[0:4])" in func.script()
    outputs = [np.zeros((), np.int32), np.zeros(1, np.int32)]
    to_python(func.func)(np.arange(4, dtype=np.int32), *outputs)
    assert [out.item() for out in outputs] == [0, 3]


def test_a_program_without_a_root_block_is_left_as_it_is() -> None:
    """TVM's scheduler cannot read it: no rule fails."""
    x = te.placeholder((4,), "int32", "x")
    y = serial(((4,), "int32"), [x], lambda p, out, x: p.write(out, 0, value=p.read(x, 0)), "y")
    func = tvm_te.create_prim_func([x, y])
    assert with_outer_loops_parallel(func).same_as(func)
    assert schedule_kernel(func, Target.host()).rule == "fallback"
