"""Recurrent layers on GPUs in one launch: what `relaxpy.tir.recognise.recurrent` recognises, with a group of threads
for each direction and sequence.

The threads of a group share the sums of a step, each the products of some units, whose weights are neighbours in
memory; then the units; they meet in between. The state is in the results, which the group has to itself. A layer whose
sums do not fit into the memory that a group shares, or whose sizes are symbols, has a thread for each direction and
sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.gpu.schedule.group import (
    SHARED_BYTES,
    launched,
    meet,
    registers,
    shared,
    shares,
)
from relaxpy.backend.gpu.target import GpuTarget
from relaxpy.ir.cell import PANEL
from relaxpy.ir.dim import Dim
from relaxpy.tir.programs.loops import Buffer, Expr, constant, floordiv, floormod, int64, simplify
from relaxpy.tir.programs.recurrent import Row
from relaxpy.tir.programs.rows import cell
from relaxpy.tir.programs.serial import Serial
from relaxpy.tir.recognise.recurrent import RecurrentForm, recurrent_of
from relaxpy.tir.tvm import tirx


def arrange_recurrent(func: tirx.PrimFunc, target: GpuTarget) -> Arrangement | None:
    """The schedule of the steps of a recurrent layer; None for other programs."""
    form = recurrent_of(func)
    if form is None or not _fits(form):
        return None
    return Arrangement(lambda: _written(func, form, target))


def _fits(form: RecurrentForm) -> bool:
    """Are the sizes known, and is there room for what the threads of a group share?"""
    sizes = [*form.x.weight.shape, *form.outs[-1].shape[2:]]
    if not all(constant(size) for size in sizes):
        return False
    _, panels, state, gates, _ = map(_known, form.x.weight.shape)
    numbers = panels * PANEL * (gates + 1) + state + PANEL
    size = 8 if str(form.x.weight.dtype) == "float64" else 4
    return numbers * size <= SHARED_BYTES


def _written(func: tirx.PrimFunc, form: RecurrentForm, target: GpuTarget) -> tirx.PrimFunc:
    """The function with its loops bound to threads."""
    p, threads = _Statements(), target.group_size
    group, thread = tirx.Var("group", "int64"), tirx.Var("thread", "int64")
    directions, batch = form.outs[1].shape[:2]
    direction, row = p.let("d", floordiv(group, batch)), p.let("b", floormod(group, batch))
    _Row(p, form, direction, row, thread, threads).write()
    groups = simplify(int64(directions) * batch)
    return launched(func, p.body(), (group, groups), (thread, threads))


class _Statements(Serial):
    """Statements of a thread, whose cells are registers."""

    def allocate(self, name: str, size: Any, dtype: str) -> Buffer:
        return registers(self, name, _known(int64(size)), dtype)


class _Row(Row):
    """The steps of a row, by the threads of a group."""

    def __init__(
        self, p: Serial, form: RecurrentForm, direction: Expr, row: Expr, thread: Expr, threads: int
    ) -> None:
        super().__init__(p, form.step, form.x, form.outs, form.batch_first, direction, row)
        self.thread, self.threads = thread, threads

    def each(self, name: str, extent: Expr) -> AbstractContextManager[Expr]:
        return shares(self.p, _known(extent), self.thread, self.threads)

    def meet(self) -> None:
        meet(self.p)

    def memory(self, name: str, size: Dim) -> Buffer:
        assert size.value is not None, "as was checked"
        return shared(self.p, name, size.value, self.wide)

    def product(
        self, to: Buffer, weight: Buffer, gates: range, factor: Callable[[Expr], Expr]
    ) -> None:
        """A sum at a time: neighbouring threads read neighbouring weights."""
        p, (panels, depth, count) = self.p, map(_known, weight.shape[1:4])
        size = len(gates) * PANEL
        with self.each("sum", int64(panels * size)) as number:
            panel, rest = (
                p.let("panel", floordiv(number, size)),
                p.let("rest", floormod(number, size)),
            )
            gate, lane = p.let("gate", floordiv(rest, PANEL)), p.let("lane", floormod(rest, PANEL))
            total = cell(p, "total", tirx.const(0.0, self.wide))
            with p.loop("k", depth) as k:
                part = self.number(weight, self.direction, panel, k, gate + gates.start, lane)
                total.set(total.get() + part * factor(k))
            place = (panel * count + gate + gates.start) * PANEL + lane
            p.write(to, place, value=total.get())


def _known(size: Expr) -> int:
    found = constant(size)
    assert found is not None, "as was checked"
    return found
