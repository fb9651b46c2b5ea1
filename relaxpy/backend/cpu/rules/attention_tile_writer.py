"""The common part of the programs of attention by tiles: which attention they compute, blocks of keys, and results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.backend.cpu.rules.attention_access import Access, Task, splat
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.cpu.tiles import ROWS, Tiles
from relaxpy.tir.forms import stages as s
from relaxpy.tir.forms.attention import AttentionForm
from relaxpy.tir.forms.contraction import Operand
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.loops import Expr

GROUP = 2 * ROWS
"""Numbers of bfloat16 in a row of a tile."""
VECTOR = 16
"""Numbers of a vector of words."""
LEAST_TOTAL = 2.0**-100
"""A total below is one of powers of keys that are not seen."""


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
        self.scale = _scale_of(self.form)
        """The factor of products that makes them scores, if it is applied where powers are computed: until then,
        "scores" are products."""
        self.rate = (1.0 if self.scale is None else self.scale) * math.log2(math.e)
        """The factor that makes "scores" exponents of 2."""
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

    def shares(self, total: Expr) -> Expr:
        """The factors of the sums of lanes, given a vector of their totals: 0 where no key is seen."""
        none = splat(0.0, VECTOR)
        return tirx.Select(total < splat(LEAST_TOTAL, VECTOR), none, splat(1.0, VECTOR) / total)

    def store_results(
        self, place: dict[Expr, Expr], line: Expr, column: Expr, quotients: Sequence[Expr]
    ) -> None:
        """Store two vectors of neighbouring columns, of the lane whose results begin at `line`."""
        p, access, out = self.program, self.access, self.form.out
        quotients = [p.let("quotients", each) for each in quotients]
        if _is_rounded(self.form):
            to = loops.simplify(line + column)
            p.store(access.words(out), to, self.tiles.narrowed(*quotients), GROUP)
            return
        for half, each in enumerate(quotients):
            at_column = loops.simplify(column + half * VECTOR)
            access.store_quotients(each, VECTOR, place, line, at_column)


def _scale_of(form: AttentionForm) -> float | None:
    """The positive number that a product is multiplied by to make the score; None if there is more to it. Of products
    and of scores, the same is the largest then."""
    match form.score:
        case tirx.Mul(a=product, b=factor) if product.same_as(form.product):
            scale = _number(factor)
            return scale if scale is not None and scale > 0 else None
        case score if score.same_as(form.product):
            return 1.0
        case _:
            return None


def _number(value: Expr) -> float | None:
    """A literal, or a quotient or root of such."""
    match value:
        case tirx.FloatImm(value=number):
            return float(number)
        case tirx.Div(a=a, b=b):
            dividend, divisor = _number(a), _number(b)
            return dividend / divisor if dividend is not None and divisor else None
        case tvm.ir.Call(op=op, args=[arg]) if getattr(op, "name", "") == "tirx.sqrt":
            number = _number(arg)
            return math.sqrt(number) if number is not None and number >= 0 else None
        case _:
            return None


def _is_rounded(form: AttentionForm) -> bool:
    """Are results quotients that are rounded to bfloat16?"""
    match form.result:
        case tirx.Cast(value=value):
            return value.same_as(form.quotient) and str(form.out.buffer.dtype) == "bfloat16"
        case _:
            return False
