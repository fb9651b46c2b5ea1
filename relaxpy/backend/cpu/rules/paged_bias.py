"""The biases of paged attention by distance, for a task: a table of each of its heads, so that those of neighbouring
keys are a vector in memory, whatever the distance of the first.

The table of a head is the operand's row, in exponents of 2, with as many first columns before it as a vector has lanes,
for keys that are further than its reach, and last ones behind it, for keys that nobody attends to.
"""

from __future__ import annotations

from relaxpy.backend.cpu.rules.attention_access import splat
from relaxpy.backend.cpu.rules.paged_tile import LOG2_E, Sizes
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Program, int64
from relaxpy.tir.tvm import tirx

MOST_REACH = 1 << 12
"""Columns of an operand: a task keeps a copy of its heads' rows."""


class Biases:
    """The tables of a task."""

    def __init__(self, program: Program, sizes: Sizes, bias: Buffer, head: Expr) -> None:
        """Writes the tables of the heads from a number on."""
        self.program, self.lanes = program, sizes.lanes
        reach = loops.constant(bias.shape[1])
        assert reach is not None, "asked before"
        self.reach = reach
        self.view = program.flat_view(bias)
        self.is_wide = str(bias.dtype) == "float32"
        self.tables = program.allocate("biases", sizes.rows * self._line, "float32")
        p, lanes = program, self.lanes
        with p.loop("r", sizes.rows) as r:
            row, to = p.let("row", (head + r) * reach), p.let("to", r * self._line)
            for at, column in ((0, 0), (lanes + reach - 1, reach - 1)):
                edge = loops.broadcast(p.let("edge", self._read(row + column, 1)), lanes)
                p.store(self.tables, to + at, edge, lanes)
            whole = reach // lanes * lanes
            with p.loop("c", reach // lanes) as c:
                p.store(
                    self.tables, to + (c + 1) * lanes, self._read(row + c * lanes, lanes), lanes
                )
            with p.loop("c", reach - whole) as c:
                at = c + whole
                p.store(self.tables, to + at + lanes, self._read(row + at, 1))

    @property
    def _line(self) -> int:
        """Numbers of a table."""
        return self.reach + 2 * self.lanes - 1

    def _read(self, at: Expr, lanes: int) -> Expr:
        value = loops.load(self.view, at, lanes)
        kind = "float32" if lanes == 1 else f"float32x{lanes}"
        factor = tirx.FloatImm("float32", LOG2_E) if lanes == 1 else splat(LOG2_E, lanes)
        return (value if self.is_wide else value.astype(kind)) * factor

    def of_keys(self, head: Expr, distance: Expr) -> Expr:
        """Those of a vector of keys for a head of the task, of which the first key is so far before the query."""
        last = self.reach + self.lanes - 1
        column = tirx.Max(tirx.Min(int64(last) - distance, int64(last)), int64(0))
        return loops.load(self.tables, head * self._line + column, self.lanes)
