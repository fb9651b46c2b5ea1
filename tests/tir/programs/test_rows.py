"""Rows: every place once, whatever the shape; programs that say nothing of a machine."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.dim import SymVar
from relaxpy.ir.module import IRModule
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import Buffer
from relaxpy.tir.programs.rows import cell, rows, scratch
from relaxpy.tir.programs.serial import Serial, serial
from relaxpy.tir.recognise.pattern_kind import PatternKind, pattern_kind
from relaxpy.tir.schedule import loops_of
from relaxpy.tir.tvm import tirx


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


def test_the_program_says_nothing_of_a_machine() -> None:
    """Rows are the spatial axes of a block, which allocates what each row needs."""
    program = counting_program(2)
    assert [loop.kind for loop in loops_of(program.func)] == [tirx.ForKind.SERIAL] * 2
    text = program.script()
    for line in (
        'with T.sblock("counted"):',
        'v_row0, v_row1 = T.axis.remap("SS", [row0, row1])',
        "T.reads(x[v_row0, v_row1])",
        "T.writes(counted[v_row0, v_row1])",
        'row = T.sblock_alloc_buffer((2,), "int64")',
    ):
        assert line in text
    assert pattern_kind(program) is PatternKind.OPAQUE


def test_the_text_is_the_program() -> None:
    program = counting_program(2)
    parsed = relaxpy.parse(IRModule({"f": program}).script())
    assert program.structural_equal(parsed.prim_funcs["f"])


def test_what_is_read_along_a_row_is_all_of_it() -> None:
    """The region names the row where all accesses do, and everything where they differ."""
    n, m = SymVar("n").dim, SymVar("m").dim
    x = te.placeholder([n, m], "int64", "x")

    def fill(p: Serial, out: Buffer, source: Buffer) -> None:
        with rows(p, [n]) as (i,), p.loop("j", te.dim(m)) as j:
            p.write(out, i, j, value=p.read(source, i, j) + p.read(source, te.dim(0), j))

    text = PrimFunc.from_te([x], [serial(((n, m), "int64"), [x], fill, "out")]).script()
    assert "T.reads(x[0:n, 0:m])" in text
    assert "T.writes(out[v_row, 0:m])" in text


def test_several_loops_over_rows_are_blocks_one_after_the_other() -> None:
    n = SymVar("n").dim
    x = te.placeholder([n], "int64", "x")

    def fill(p: Serial, out: Buffer, source: Buffer) -> None:
        with rows(p, [n]) as (i,):
            p.write(out, i, value=p.read(source, i))
        with rows(p, [n]) as (i,):
            total = cell(p, "total", p.read(out, i))
            p.write(out, i, value=total.get() * te.dim(2))

    program = PrimFunc.from_te([x], [serial(((n,), "int64"), [x], fill, "twice")])
    assert program.script().count("T.sblock(") == 2
    got = np.empty(5, np.int64)
    Kernels({"k": program}).run("k", [np.arange(5)], [got])
    assert got.tolist() == [0, 2, 4, 6, 8]
