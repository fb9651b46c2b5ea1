"""Rows side by side in memory, many at a time: the loop over neighbouring rows goes inside of the loops along them.

    for c in rows:                              for group in groups of rows:
        total = 0                                   totals[0:64] = 0
        for i in range(n):            →             for i in range(n):
            total += x[i, c]                            for j in range(64):
            y[i, c] = total                                 totals[j] += x[i, 64 * group + j]
                                                            y[i, 64 * group + j] = totals[j]

Each row computes the same values in the same order as before, so its results are bit-identical; LLVM vectorises the
loops over j. A row may allocate cells (single elements) only; a group has one cell for each of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.knobs import knob
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    Program,
    Stmt,
    ceildiv,
    constant,
    int64,
    minimum,
    sequence,
    simplify,
)
from relaxpy.tir.recognise.rows import Rows
from relaxpy.tir.recognise.stages import loads_of, step, uses
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import contains, rewritten, walk

COLUMNS = 64
"""Rows of a group: their cells fit into registers, or nearly so."""


def are_columns(rows: Rows) -> bool:
    """Are neighbouring rows contiguous in memory, while each row is traversed with a stride, and can they run
    together?"""
    if any(constant(product(buffer.shape)) != 1 for buffer in rows.scratch):
        return False
    if contains(rows.block.body, tirx.AllocBuffer):
        return False
    form = _Columns(rows)
    return form.go_across() and form.can_split(_statements(rows.block.body))


def write_columns(p: Program, rows: Rows) -> None:
    """Write a parallel loop over groups of neighbouring rows; the rows of a group run side by side."""
    *extents, width = [loop.extent for loop in rows.loops]
    size = min(knob("columns", COLUMNS, (16, 32, 128, 256)), constant(width) or COLUMNS * 4)
    groups = ceildiv(width, size)
    with p.loop("row", product([*extents, groups]), parallel=True) as row:
        *places, group = split_index(p, row, [*extents, groups])
        first = p.let("first", simplify(group * int64(size)))
        count = p.let("count", minimum(size, width - first))
        at = dict(zip(rows.axes[:-1], places, strict=True))
        body = rewritten(rows.block.body, (tvm.ir.Var, lambda var: at.get(var, var)))
        cells = {cell: p.allocate(str(cell.name), size, str(cell.dtype)) for cell in rows.scratch}
        p.add(_Group(_Columns(rows), first, count, size, cells).together(body))


def _statements(stmt: Stmt) -> list[Stmt]:
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]


class _Columns:
    """The expressions that differ between neighbouring rows."""

    def __init__(self, rows: Rows) -> None:
        self.body = rows.block.body
        self.column = rows.axes[-1]
        self.cells = rows.scratch
        self.varying: list[Any] = [self.column]
        """The axis, and the variables that are bound to another value in each row."""
        binds: list[Any] = []
        walk(self.body, (tirx.Bind, binds.append))
        for bind in binds:
            if self.varies(bind.value):
                self.varying.append(bind.var)

    def varies(self, expr: Expr) -> bool:
        """May it have another value in another row?"""
        if any(uses(expr, var) for var in self.varying):
            return True
        return any(self.is_cell(load.source) for load in loads_of(expr))

    def is_cell(self, buffer: Buffer) -> bool:
        return any(buffer.same_as(cell) for cell in self.cells)

    def go_across(self) -> bool:
        """Are all stores contiguous across rows, and does some loop move from one line of neighbours to another?"""
        across = False
        for buffer, indices, is_store, loops in self.accesses(self.body, ()):
            beside = step(indices, buffer.shape, self.column) == 1
            if is_store and not beside:
                return False
            moves = (step(indices, buffer.shape, loop) for loop in loops)
            across = across or (beside and any(by not in (0, 1) for by in moves))
        return across

    def accesses(
        self, stmt: Stmt, loops: tuple[Any, ...]
    ) -> Iterator[tuple[Buffer, Sequence[Expr], bool, tuple[Any, ...]]]:
        """The accesses to buffers that rows share: the place, whether it is a store, and the variables of the enclosing
        loops."""
        for part in _statements(stmt):
            if isinstance(part, tirx.For):
                yield from self.accesses(part.body, (*loops, part.loop_var))
                continue
            stores: list[Any] = []
            walk(part, (tirx.BufferStore, stores.append))
            found = [(store.buffer, store.indices, True, loops) for store in stores]
            found += [(load.source, load.indices, False, loops) for load in loads_of(part)]
            yield from (access for access in found if not self.is_cell(access[0]))

    def can_split(self, stmts: Sequence[Stmt]) -> bool:
        """Does every loop run equally often in all rows, and is every variable of a row used only in the run of
        statements that binds it?"""
        for run in self.runs(stmts):
            if isinstance(run, tirx.For):
                if self.varies(run.min) or self.varies(run.extent):
                    return False
                if not self.can_split(_statements(run.body)):
                    return False
            elif isinstance(run, list):
                own = [part.var for part in run if isinstance(part, tirx.Bind)]
                others = [part for part in stmts if not any(part.same_as(one) for one in run)]
                if any(uses(part, var) for part in others for var in own):
                    return False
        return True

    def runs(self, stmts: Sequence[Stmt]) -> Iterator[tirx.For | tirx.Bind | list[Stmt]]:
        """Split into, in order: loops, variables that are equal in all rows, and lists of other statements."""
        run: list[Stmt] = []
        for stmt in stmts:
            is_same = isinstance(stmt, tirx.Bind) and not self.varies(stmt.value)
            if not is_same and not isinstance(stmt, tirx.For):
                run.append(stmt)
                continue
            if run:
                yield run
            run = []
            yield stmt
        if run:
            yield run


@dataclass(frozen=True)
class _Group:
    """Neighbouring rows that run together."""

    form: _Columns
    first: Expr
    count: Expr
    size: int
    """Their number, except in the last group."""
    cells: Mapping[Buffer, Buffer]
    """The cell of a row, and the buffer of the cells of all rows in the group."""

    def together(self, stmt: Stmt) -> Stmt:
        """The statements for all rows of the group."""
        return sequence([self.run(run) for run in self.form.runs(_statements(stmt))])

    def run(self, run: tirx.For | tirx.Bind | list[Stmt]) -> Stmt:
        if isinstance(run, tirx.Bind):
            return run
        if isinstance(run, tirx.For):
            return tirx.For(
                run.loop_var, run.min, run.extent, run.kind, self.together(run.body),
                run.thread_binding, run.annotations, run.step,
            )  # fmt: skip
        # Where nothing but cells is touched, all of them: LLVM knows how often that loop runs.
        shared = [*self.form.accesses(sequence(run), ())]
        whole = not shared and not any(uses(stmt, self.form.column) for stmt in run)
        j = tirx.Var("j", "int64")
        body = sequence([self.within(stmt, j) for stmt in run])
        extent = int64(self.size) if whole else self.count
        return tirx.For(j, int64(0), extent, tirx.ForKind.SERIAL, body)

    def within(self, stmt: Stmt, j: Expr) -> Stmt:
        """A statement for row `first + j`."""

        def load(node: Any) -> Expr:
            own = self.cells.get(node.source)
            return node if own is None else tirx.BufferLoad(own, [j])

        def store(node: Any) -> Stmt:
            own = self.cells.get(node.buffer)
            return node if own is None else tirx.BufferStore(own, node.value, [j])

        def variable(var: Any) -> Expr:
            return self.first + j if var.same_as(self.form.column) else var

        return rewritten(
            stmt, (tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tvm.ir.Var, variable)
        )
