"""Statements that do the same to every row of a tensor, in no order: what sorting and scanning are made of.

A row is all places along one axis; the rows are counted over the other axes. To be used in the `fill` of
`relaxpy.tir.writer.serial.serial`. The program says nothing of how rows are spread over a machine: they are the
spatial axes of a block, whose statements run in order, and what a row needs for itself is allocated by the block.
Schedule rules make of it what their machine wants (on processors `relaxpy.backend.cpu.rules.rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relaxpy.ir.dim import Dim, DimLike
from relaxpy.tir import te
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import Buffer, Expr, Index, Program, int64
from relaxpy.tir.writer.serial import Serial


@dataclass(frozen=True)
class Cell:
    """A value that changes while the program runs."""

    program: Program
    buffer: Buffer
    place: Index = 0

    def get(self) -> Expr:
        return tirx.BufferLoad(self.buffer, [int64(self.place)])

    def set(self, value: Expr) -> None:
        """From here on."""
        self.program.add(tirx.BufferStore(self.buffer, value, [int64(self.place)]))


def cell(p: Program, name: str, value: Expr) -> Cell:
    """A cell with its first value; it lives to the end of the innermost `with`."""
    made = Cell(p, p.allocate(name, 1, str(value.ty.dtype)))
    made.set(value)
    return made


def known(p: Program, name: str, value: Any) -> Any:
    """The value under a name, through memory. What `let` names TVM puts in the name's place to prove things, which
    takes very long where one value is made of another several times over."""
    return p.let(name, cell(p, f"{name}_cell", value).get())


def scratch(p: Program, name: str, size: DimLike, dtype: str) -> Buffer:
    """A buffer of one index that lives to the end of the innermost `with`; in `rows` each row has its own."""
    buffer = tirx.decl_buffer([te.dim(size)], str(dtype), name, layout=None)
    p.add(tirx.AllocBuffer(buffer))
    return buffer


@contextmanager
def rows(p: Serial, shape: Sequence[DimLike]) -> Iterator[list[Expr]]:
    """The statements for one place of `shape`, which run for all of them; gives the place as an index for each
    dimension. What they write for one place, those for another must not touch."""
    with p.block("row", [te.dim(Dim.of(size)) for size in shape]) as place:
        yield place
