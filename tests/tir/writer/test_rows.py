"""Rows in parallel: every place once, whatever the shape."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.dim import SymVar
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.writer.loops import Buffer
from relaxpy.tir.writer.rows import cell, rows, scratch
from relaxpy.tir.writer.serial import Serial, serial


def counting_program(rank: int) -> PrimFunc:
    """out[place] = in[place] + 1, by way of a scratch buffer and a cell."""
    shape = [SymVar(name).dim for name in "nml"[:rank]]
    x = te.placeholder(shape, "int64", "x")

    def fill(p: Serial, out: Buffer, source: Buffer) -> None:
        with rows(p, shape) as place:
            row = scratch(p, "row", 2, "int64")
            p.write(row, 1, value=p.read(source, *place))
            total = cell(p, "total", p.read(row, 1))
            total.set(total.get() + te.dim(1))
            p.write(out, *place, value=total.get())

    return PrimFunc.from_te([x], [serial((shape, "int64"), [x], fill, "counted")])


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_every_place_once(rank: int) -> None:
    kernels = Kernels({"k": counting_program(rank)})
    for shape in itertools.product((0, 1, 3), repeat=rank):
        x = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
        got = np.full_like(x, 77)
        kernels.run("k", [x], [got])
        np.testing.assert_array_equal(got, x + 1)


def test_the_program_counts_as_arranged() -> None:
    """No rule rearranges it, and its serial twin has no parallel loop."""
    kernel = schedule_kernel(counting_program(2).func, Target.host())
    assert kernel.rule == "author"
    assert "T.parallel" in PrimFunc(kernel.parallel).script()
    assert "T.parallel" not in PrimFunc(kernel.serial).script()
