"""The factors of a matrix product as words (`relaxpy.backend.cpu.arithmetic`), read in place or copied to contiguous
memory.

A tile reads one word of each of its rows, and vectors of words of one row of its panel. Factors with another memory
layout are copied, one block of the depth at a time: the right-hand panel unless it is packed already, the left rows if
they must be converted or their groups are not contiguous. A panel whose columns are contiguous along the depth (a
transposed factor) is transposed in registers, a strip of a square of vectors at a time. A packed factor is prefetched.

A right-hand factor may be computed instead of read (`relaxpy.backend.cpu.rules.matmul_formula`): in registers for a few
rows, and once a task, into the copy of its panel, for many.

Factors past the end of the depth that a group would contain are zero in both factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.rules.matmul_formula import Formula
from relaxpy.backend.cpu.rules.transpose import strip_of, turned
from relaxpy.backend.cpu.target import CACHE_LINE
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Program
from relaxpy.tir.recognise.contraction import Panels
from relaxpy.tir.recognise.matmul import BITS, MatmulForm
from relaxpy.tir.tvm import tvm

AHEAD = 8192
"""The distance in bytes between what is read of a packed factor and what is prefetched. Processors prefetch within a
page (4 KiB) only, which is too late if the factor comes from memory."""

RightRow = Callable[[Expr], list[Expr]]
"""The vectors of words across the panel at a position of the depth."""


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the depth, counted in words."""

    start: Expr
    count: Expr
    is_first: Expr | bool
    is_last: Expr | bool
    """Do sums begin at zero with this block, and are they complete after it?"""
    unroll: int = 1
    """Words that are written out one after the other. It divides `count`."""

    @contextmanager
    def words(self, p: Program, *, rolled: bool = False) -> Iterator[list[Expr]]:
        """A loop over the words: yields the numbers of those that are written out. `rolled`: see `Program.loop`."""
        if self.unroll == 1:
            with p.loop("k", self.count, rolled=rolled) as k:
                yield [k]
            return
        with p.loop("k", loops.floordiv(self.count, self.unroll), rolled=rolled) as k:
            yield [k * self.unroll + n for n in range(self.unroll)]


@dataclass(frozen=True, eq=False)
class Left:
    """The left-hand rows of a tile."""

    height: int
    word: Callable[[int, Expr], Expr]
    """The word of a row at a position of the depth, counted in words from the block's start, broadcast to a vector."""


@dataclass(frozen=True, eq=False)
class Panel:
    """The columns that a task computes: whole vectors from `start`, with those past the end masked out."""

    start: Expr
    step: int
    """The start is known to be a multiple of this, which is one of the lanes."""
    lanes: int
    masks: tuple[Expr | None, ...]
    """One mask per vector; None if all columns exist."""

    @property
    def width(self) -> int:
        """The number of columns, including those that do not exist."""
        return len(self.masks) * self.lanes

    def vectors(self) -> list[tuple[int, Expr | None]]:
        """The offset from the start, and the mask, of every vector."""
        return [(n * self.lanes, mask) for n, mask in enumerate(self.masks)]


def widens(form: MatmulForm, arithmetic: Arithmetic) -> bool:
    """Are the elements of a packed right-hand factor converted wherever they are read?"""
    is_wide = arithmetic.rhs == arithmetic.total
    return form.panels is not None and arithmetic.group == 1 and not is_wide


class Factors:
    """Reads and copies the factors of one product."""

    def __init__(
        self, program: Program, form: MatmulForm, arithmetic: Arithmetic, lhs: Buffer, rhs: Buffer
    ) -> None:
        self.program, self.form, self.arithmetic = program, form, arithmetic
        self.lhs, self.rhs = lhs, rhs
        is_packed, is_bfloat16 = form.panels is not None, arithmetic.rhs == "bfloat16"
        # Elements of bfloat16 have no addresses: they are widened where they are read.
        self.fetched = (
            program.flat_view(form.rhs.buffer, "uint16") if is_packed and is_bfloat16 else rhs
        )
        self.group = arithmetic.group
        self.depth = form.depth.extent
        self.words = loops.ceildiv(self.depth, self.group)
        """Words along the depth."""
        self.is_even = loops.constant(loops.floormod(self.depth, self.group)) == 0
        """Is the depth known to be a multiple of the group?"""
        # The offset in each view of the product that a task works on.
        self.lhs_base = self.rhs_base = loops.int64(0)
        computed = form.rhs.formula is not None
        self.formula = (
            Formula(program, form, arithmetic.lanes, form.rhs.formula) if computed else None
        )
        """The right-hand factor, if it is computed."""

    def computing(self, block: Block) -> Block:
        """The block for code that reads the right-hand factor itself, not a copy."""
        if self.formula is None:
            return block
        return replace(block, unroll=self.formula.unroll)

    @property
    def is_padded(self) -> bool:
        """May all columns of a panel be read, also those that do not exist?"""
        if self.formula is not None:
            return self.formula.is_padded
        return self.form.panels is not None

    @property
    def copies_left(self) -> bool:
        """Are rows copied? They are if each would otherwise be converted once per panel, or if their groups are not
        contiguous."""
        if self.group == 1 or self.arithmetic.converts_left:
            return self.arithmetic.converts_left
        return not self.is_even or loops.constant(self.form.depth.lhs) != 1

    @property
    def reads_right(self) -> bool:
        """Can vectors across a panel be read in place, or computed in registers?"""
        if self.formula is not None:
            return self.formula.is_vector
        return self.form.panels is not None or loops.constant(self.form.column.rhs) == 1

    def left(self, height: int, row: Expr, block: Block) -> Left:
        """The words of rows from `row` on, in place; rows past the end repeat the last one."""
        p, form = self.program, self.form
        lines: list[Expr] = []
        for r in range(height):
            exists = loops.minimum(row + r, form.row.extent - 1)
            start = block.start * self.group * form.depth.lhs
            line = loops.simplify(self.lhs_base + exists * form.row.lhs + start)
            lines.append(p.let(f"line{r}", line))

        def word(r: int, k: Expr) -> Expr:
            at = lines[r] + k * self.group * form.depth.lhs
            return self.arithmetic.left_word(self.lhs, at)

        return Left(height, word)

    def copy_left(
        self, copy: Buffer, start: Expr, size: int, height: int, row: Expr, block: Block
    ) -> None:
        """Copy the words of rows from `row` on to `copy`, from `start` on with stride `size`."""
        p, form, a = self.program, self.form, self.arithmetic
        first = p.let("first", loops.simplify(block.start * self.group))
        with p.loop("r", height, rolled=True) as r:
            exists = loops.minimum(row + r, form.row.extent - 1)
            line = p.let("line", self.lhs_base + exists * form.row.lhs + first * form.depth.lhs)
            if loops.constant(form.depth.lhs) == 1:
                with self._vectors(block, a.lanes) as (v, left):
                    words = a.left_words(self.lhs, line + v * a.lanes * self.group, left)
                    p.store(copy, start + r * size + v * a.lanes, words, a.lanes)
            else:
                with p.loop("k", block.count, rolled=True) as k:
                    factors, exist = self._group(self.lhs, line, form.depth.lhs, first, k)
                    p.store(copy, start + r * size + k, a.left_joined(factors, exist))

    def copied_left(self, copy: Buffer, start: Expr, size: int, height: int) -> Left:
        """The words of the rows that were copied there."""
        lanes = self.arithmetic.lanes
        return Left(
            height, lambda r, k: loops.broadcast(loops.load(copy, start + r * size + k), lanes)
        )

    def right(self, panel: Panel, block: Block) -> RightRow:
        """The panel in place; lanes of columns that do not exist are undefined."""
        if self.form.panels is not None:
            return self._right_in_panels(self.form.panels, panel, block)
        p, form = self.program, self.form
        formula = self.formula
        if formula is not None:

            def computed(k: Expr) -> list[Expr]:
                place = loops.simplify(block.start + k)
                return [
                    formula.vector(place, panel.start, panel.step, at, mask)
                    for at, mask in panel.vectors()
                ]

            return computed
        first = p.let("first", loops.simplify(block.start * self.group))
        line = p.let("start", self.rhs_base + panel.start + first * form.depth.rhs)

        def row(k: Expr) -> list[Expr]:
            return [
                self.arithmetic.right_joined(
                    *self._group(self.rhs, line + at, form.depth.rhs, first, k, panel.lanes, mask)
                )
                for at, mask in panel.vectors()
            ]

        return row

    def _right_in_panels(self, panels: Panels, panel: Panel, block: Block) -> RightRow:
        """A panel of a packed factor, of another width than the factor's own panels. A wider one spans several of
        these, where missing ones repeat the last; a narrower one is a part of one."""
        assert panel.step % panel.width == 0, "else a part may be of two panels"
        p, each = self.program, panels.width // panel.lanes
        step = panels.width * self.group
        count = loops.ceildiv(self.form.column.extent, panels.width)
        number = loops.floordiv(panel.start, panels.width)
        starts: list[Expr] = []
        for n in range(-(-len(panel.masks) // each)):
            exists = number if n == 0 else loops.minimum(number + n, count - 1)
            start = self.rhs_base + exists * panels.stride + block.start * step
            if len(panel.masks) < each:
                start = start + loops.floormod(panel.start, panels.width) * self.group
            starts.append(p.let(f"from{n}", loops.simplify(start)))

        size = tvm.DataType(self.arithmetic.rhs).bits // 8
        part = min(panel.width * self.group, step)

        def row(k: Expr) -> list[Expr]:
            at = k * step
            for start in starts:
                for n in range(0, part, CACHE_LINE // size):
                    p.prefetch(self.fetched, start + at + (AHEAD // size // len(starts) + n))
            return [
                self.arithmetic.right_words(
                    self.rhs, starts[n // each] + at + n % each * panel.lanes * self.group
                )
                for n in range(len(panel.masks))
            ]

        return row

    def copy_right(self, copy: Buffer, width: int, panel: Panel, block: Block, end: Expr) -> None:
        """Copy the panel, which ends before column `end`, to `copy`: rows of vectors with stride `width`, in which
        columns that do not exist are undefined."""
        p, form = self.program, self.form
        if self.reads_right:
            row = self.right(panel, block)
            with self.computing(block).words(p, rolled=True) as places:
                for k in places:
                    for n, words in enumerate(row(k)):
                        p.store(copy, k * width + n * panel.lanes, words, panel.lanes)
        elif self.formula is not None:
            own = self.computing(block)
            with (
                p.loop("column", end - panel.start, rolled=True) as column,
                own.words(p, rolled=True) as places,
            ):
                exists = p.let("exists", panel.start + column)
                for k in places:
                    word = self.formula.element(loops.simplify(block.start + k), exists)
                    p.store(copy, k * width + column, word)
        elif loops.constant(form.depth.rhs) == 1:
            self._turn(copy, width, panel, block, end)
        else:
            first = p.let("first", loops.simplify(block.start * self.group))
            with p.loop("column", end - panel.start, rolled=True) as column:
                line = p.let("line", self._column(panel, column) + first * form.depth.rhs)
                with p.loop("k", block.count, rolled=True) as k:
                    factors, exist = self._group(self.rhs, line, form.depth.rhs, first, k)
                    word = self.arithmetic.right_joined(factors, exist)
                    p.store(copy, k * width + column, word)

    def copied_right(self, copy: Buffer, width: int, panel: Panel) -> RightRow:
        """The panel that was copied there, with this stride of rows."""
        p = self.program

        def row(k: Expr) -> list[Expr]:
            at = p.let("at", k * width)
            return [loops.load(copy, at + n, panel.lanes) for n, _ in panel.vectors()]

        return row

    def _turn(self, copy: Buffer, width: int, panel: Panel, block: Block, end: Expr) -> None:
        """Copy a panel whose columns are contiguous along the depth: strips of words, transposed in registers. A strip
        at the end of the depth has zeros behind it, so `copy` must have whole strips of rows."""
        p, a = self.program, self.arithmetic
        first = p.let("first", loops.simplify(block.start * self.group))
        with p.loop("n", loops.ceildiv(end - panel.start, a.lanes), rolled=True) as n:
            lines = [
                p.let(f"line{j}", self._column(panel, n * a.lanes + j) + first)
                for j in range(a.lanes)
            ]
            words = strip_of(a.lanes, BITS[a.total])
            with self._vectors(block, words) as (v, left):
                at = v * words * self.group
                registers = a.right_strips(self.rhs, [line + at for line in lines], words, left)
                for i, row in enumerate(turned(p, registers)):
                    p.store(copy, (v * words + i) * width + n * a.lanes, row, a.lanes)

    def _column(self, panel: Panel, column: Expr) -> Expr:
        """The offset of a column of the panel; columns that do not exist repeat the last one."""
        exists = loops.minimum(panel.start + column, self.form.column.extent - 1)
        return self.rhs_base + exists * self.form.column.rhs

    def _group(
        self,
        buffer: Buffer,
        line: Expr,
        stride: Expr,
        first: Expr,
        k: Expr,
        lanes: int = 1,
        mask: Expr | None = None,
    ) -> tuple[list[Expr], list[Expr | bool]]:
        """The factors of a word, each read from its own row of memory, and which of them exist. `line` is the offset of
        the block's first factor, which has number `first` in the whole depth."""
        factors: list[Expr] = []
        exist: list[Expr | bool] = []
        for t in range(self.group):
            place = k * self.group + t
            exists: Expr | bool = True
            if t and not self.is_even:  # a word has at least one factor
                exists = first + place < self.depth
                place = loops.minimum(place, self.depth - 1 - first)
            factors.append(loops.load(buffer, line + place * stride, lanes, mask))
            exist.append(exists)
        return factors, exist

    @contextmanager
    def _vectors(self, block: Block, lanes: int) -> Iterator[tuple[Expr, Expr | None]]:
        """A loop over vectors of `lanes` words along the depth. Yields the number of the vector, and the number of its
        factors if not all vectors are known to be whole."""
        p, size = self.program, lanes * self.group
        if loops.constant(loops.floormod(self.depth, size)) == 0:
            with p.loop("v", loops.floordiv(block.count, lanes), rolled=True) as v:
                yield v, None
            return
        factors = loops.minimum(self.depth - block.start * self.group, block.count * self.group)
        with p.loop("v", loops.ceildiv(factors, size), rolled=True) as v:
            yield v, loops.clamped_int32(factors - v * size, size)
