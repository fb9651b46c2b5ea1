"""Statements that are applied independently to every row of a tensor: the basis of sorting and scanning.

A row is all elements along one axis; the rows are counted over the other axes. For use in the `fill` of
`relaxpy.tir.programs.serial.serial`. The program does not say how rows are distributed over a machine. They are the
spatial axes of a block whose statements run in order, and memory that a row needs for itself is allocated by the block.
Schedule rules distribute them (on processors `relaxpy.backend.cpu.rules.rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relaxpy.ir.dim import Dim, DimLike
from relaxpy.tir import te
from relaxpy.tir.programs.loops import Buffer, Expr, Index, Program, int64
from relaxpy.tir.programs.serial import Serial
from relaxpy.tir.tvm import tirx


@dataclass(frozen=True)
class Cell:
    """A mutable value in a program."""

    program: Program
    buffer: Buffer
    place: Index = 0

    def get(self) -> Expr:
        return tirx.BufferLoad(self.buffer, [int64(self.place)])

    def set(self, value: Expr) -> None:
        """Assign a new value."""
        self.program.add(tirx.BufferStore(self.buffer, value, [int64(self.place)]))


def cell(p: Program, name: str, value: Expr) -> Cell:
    """A cell with an initial value; it lives to the end of the innermost `with`."""
    made = Cell(p, p.allocate(name, 1, str(value.ty.dtype)))
    made.set(value)
    return made


def known(p: Program, name: str, value: Any) -> Any:
    """Bind the value to a name, through memory. TVM expands names that `let` binds when it proves facts, which takes
    very long if a value uses another several times over."""
    return p.let(name, cell(p, f"{name}_cell", value).get())


def scratch(p: Program, name: str, size: DimLike, dtype: str) -> Buffer:
    """A flat buffer that lives to the end of the innermost `with`; in `rows` each row has its own. Of no elements it
    has one: compilers of devices have no empty arrays."""
    elements = te.dim(1 if Dim.of(size) == Dim.of(0) else size)
    buffer = tirx.decl_buffer([elements], str(dtype), name, layout=None)
    p.add(tirx.AllocBuffer(buffer))
    return buffer


@contextmanager
def rows(p: Serial, shape: Sequence[DimLike]) -> Iterator[list[Expr]]:
    """Write statements that run for each index into `shape`; yields the index of each dimension. Iterations must write
    disjoint elements."""
    with p.block("row", [te.dim(Dim.of(size)) for size in shape]) as place:
        yield place
