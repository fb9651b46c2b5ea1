"""Statements that do the same to every row of a tensor, rows in parallel: what sorting and scanning are made of.

A row is all places along one axis; the rows are counted over the other axes. To be used in the `fill` of
`relaxpy.tir.writer.serial.serial`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relaxpy.ir.dim import Dim, DimLike, product
from relaxpy.tir import te
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import Buffer, Expr, Index, Program, at_least_one, int64


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
    """A buffer of one index that lives to the end of the innermost `with`; each thread of a parallel loop has its
    own."""
    buffer = tirx.decl_buffer([te.dim(size)], str(dtype), name, layout=None)
    p.add(tirx.AllocBuffer(buffer))
    return buffer


@contextmanager
def rows(p: Program, shape: Sequence[DimLike]) -> Iterator[list[Expr]]:
    """One parallel loop over all places of `shape`; gives the place as an index for each dimension."""
    dims = list(map(Dim.of, shape))
    with p.loop("row", te.dim(product(tuple(dims))), parallel=True) as rest:
        place: list[Expr] = []
        for a, size in reversed(list(enumerate(dims))[1:]):
            extent = at_least_one(te.dim(size))
            place.insert(0, p.let(f"place{a}", tirx.truncmod(rest, extent)))
            rest = p.let(f"rest{a}", tirx.truncdiv(rest, extent))
        yield [rest, *place] if dims else []
