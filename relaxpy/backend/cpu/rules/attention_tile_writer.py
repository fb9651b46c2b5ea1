"""The common part of the programs of attention by tiles: which attention they compute, blocks of keys, and results."""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.backend.cpu.rules.attention_access import Access, Exponents, Task
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.cpu.tiles import ROWS, Tiles
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.contraction import Operand

GROUP = 2 * ROWS
"""Numbers of bfloat16 in a row of a tile."""
VECTOR = 16
"""Numbers of a vector of words."""


def tiles_of(access: Access, target: CpuTarget) -> Tiles | None:
    """The tiles that multiply the factors, if the target has them, if these are contiguous and as wide as whole tiles
    are, and if powers may be rounded as they are."""
    form = access.form
    tiles = Tiles.of(form.dtype, form.dtype, "float32", target) if form.is_rounded else None
    if tiles is None or not (target.has("avx512bf16") and target.has_avx512):
        return None
    accesses = (
        (form.query, "depth"), (form.key, "depth"), (form.value, "column"), (form.out, "column"),
    )  # fmt: skip
    return tiles if all(access.is_contiguous(o, axis, GROUP) for o, axis in accesses) else None


@dataclass(frozen=True, eq=False)
class Block:
    """A block of keys: its number, its first one, their number, and that of their groups."""

    number: Expr
    start: Expr
    count: Expr
    groups: Expr


class TileWriter:
    """Writes the program of one task; the base of both."""

    def __init__(self, access: Access, task: Task, tiles: Tiles) -> None:
        self.access, self.task, self.form, self.tiles = access, task, access.form, tiles
        self.program = p = access.program
        self.depth, self.columns = self.form.depth, self.form.columns
        self.exponents = Exponents.of(self.form)
        place = access.shared_place(task)
        self.key_line = p.let("key_line", access.offset(self.form.key, place))
        self.value_line = p.let("value_line", access.offset(self.form.value, place))

    @property
    def reads(self) -> bool:
        """Do scores read memory, which has nothing for keys that do not exist?"""
        return len(list(s.loads_of(self.form.score))) > 0

    def row(self, operand: Operand, line: Expr, block: Block, number: Expr) -> Expr:
        """The offset of a row of the block; rows past the end repeat the last one."""
        row = block.start + loops.minimum(number, block.count - 1)
        at = line + row * self.access.stride(operand, "key")
        return self.program.let("row", loops.simplify(at))
