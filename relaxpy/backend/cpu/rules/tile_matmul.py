"""Matrix products by tiles (`relaxpy.backend.cpu.tiles`), for any number of rows and a right-hand factor in panels.

A panel is as wide as two tiles. A block of 32 rows by one panel is four tiles of sums, which stay in registers while
the depth is walked: each step loads two tiles of the left-hand factor, in place, and two of the panel, and multiplies
each by each. 16 rows or less are one row of tiles.

A task makes some blocks of rows of some neighbouring panels, one part of the depth at a time: a part of a panel stays
in the first-level cache while it is multiplied by all rows of the task. Sums are in the task's memory between parts.
For one block of rows the depth is one part, since nothing is read twice.

Where rows do not fill the last block it begins earlier: some rows are computed again, to the same bits, and are not
stored again. Fewer rows than those of a block are fewer rows of the tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.rules.matmul import Cut, Partial, ProductWriter
from relaxpy.backend.cpu.rules.places import shared_pieces
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.cpu.tiles import ROWS, Tiles, address
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, PrimFunc, Stmt
from relaxpy.tir.recognise.matmul import MatmulForm, matmul_of

BLOCK = 2 * ROWS
"""Rows and columns of a block."""

AHEAD = 4096
"""The distance in bytes between a step of a panel that is read for the first time and one that is prefetched."""

PART_BYTES = 32 << 10
"""Bytes of a part of a panel."""

MOST_BLOCKS = 8
"""The most blocks of rows of a task: a part of them, and their sums, fit into the second-level cache."""

MOST_PANELS = 4
"""The most panels of a task."""

SHARED_TASKS = 16
"""The fewest tasks that remain if each has twice as many panels."""


def tile_matmul_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is a matrix product with a packed factor, of types that the target
    multiplies by tiles, or None.

    The result has one parallel loop, over tasks; run serially it computes the same bits.
    """
    if target.kind != "llvm":
        return None
    form = matmul_of(func)
    if form is None or form.panels is None or form.panels.width != BLOCK:
        return None
    arithmetic = Arithmetic.of_packed(form, target)
    tiles = arithmetic.tiles
    if tiles is None or form.panels.group != tiles.group:
        return None

    def write() -> PrimFunc:
        body = _Writer(form, arithmetic, target, tiles).write()
        return loops.finished(func, tiles.around(body))

    return Arrangement(write)


@dataclass(frozen=True, eq=False)
class _Part:
    """A part of the depth, in steps of a tile."""

    start: Expr
    steps: Expr
    is_first: Expr
    is_last: Expr


class _Writer(ProductWriter):
    """Writes the program of one product."""

    def __init__(
        self, form: MatmulForm, arithmetic: Arithmetic, target: CpuTarget, tiles: Tiles
    ) -> None:
        super().__init__(form, arithmetic, target)
        self.tiles = tiles
        p = self.program
        # Elements of bfloat16 have no addresses.
        self.word = {1: "uint8", 2: "uint16"}[tiles.size]
        self.left_words = p.flat_view(form.lhs.buffer, self.word)
        self.right_words = p.flat_view(form.rhs.buffer, self.word)
        self.steps = loops.simplify(loops.floordiv(form.depth.extent, self.tiles.depth))
        """Tiles along the depth."""

    def write(self) -> Stmt:
        p, rows = self.program, self.rows
        blocks = p.let("blocks", loops.ceildiv(rows, BLOCK))
        panels = p.let("panels", loops.ceildiv(self.columns, BLOCK))
        chunks = p.let("chunks", loops.ceildiv(blocks, MOST_BLOCKS))
        chunk = p.let("chunk", loops.ceildiv(blocks, chunks))
        tasks = loops.simplify(chunks * panels * self.products())
        share = p.let("share", shared_pieces(tasks, MOST_PANELS, SHARED_TASKS))
        shares = p.let("shares", loops.ceildiv(panels, share))
        with self.tasks(loops.simplify(chunks * shares)) as number:
            first = p.let("first", loops.simplify(loops.floordiv(number, shares) * chunk))
            count = p.let("count", loops.minimum(chunk, blocks - first))
            panel = p.let("panel", loops.simplify(loops.floormod(number, shares) * share))
            own = p.let("own", loops.minimum(share, panels - panel))
            sums = p.allocate("sums", MOST_BLOCKS * MOST_PANELS * BLOCK * BLOCK, self.dtype)
            upper = p.let("upper", loops.minimum(rows, ROWS))
            lower = p.let("lower", loops.minimum(loops.maximum(rows - ROWS, 1), ROWS))
            self.tiles.configure(p, (upper, lower))
            with self._parts(blocks) as part, p.loop("n", own) as n, p.loop("m", count) as m:
                row = p.let("row", self._row(first + m))
                at = p.let("at", loops.simplify((m * MOST_PANELS + n) * (BLOCK * BLOCK)))
                partial = Partial(sums, at, BLOCK)
                left = self._left(row, part)
                cases = (
                    (1, True, rows <= ROWS),
                    (2, True, loops.both(rows > ROWS, loops.equals(m, 0))),
                    (2, False, loops.both(rows > ROWS, m > 0)),
                )
                for height, fetches, condition in cases:
                    with p.when(condition):
                        self._multiply(height, left, panel + n, partial, part, fetches=fetches)
                with p.when(part.is_last):
                    new = p.let("new", loops.simplify((first + m) * BLOCK))
                    skipped = p.let("skipped", loops.simplify(at + (new - row) * BLOCK))
                    count_new = loops.minimum(rows - new, BLOCK)
                    finished = Partial(sums, skipped, BLOCK)
                    start = p.let("j", loops.simplify((panel + n) * BLOCK))
                    self.store(new, count_new, Cut(start, BLOCK, BLOCK, self.columns), finished)
            self.tiles.release(p)
        return p.body()

    def _row(self, block: Expr) -> Expr:
        """The first row of a block."""
        return loops.maximum(0, loops.minimum(block * BLOCK, self.rows - BLOCK))

    @contextmanager
    def _parts(self, blocks: Expr) -> Iterator[_Part]:
        """The loop over the parts of the depth."""
        p = self.program
        length = p.let("length", loops.select(blocks > 1, self._most_steps, self.steps))
        parts = p.let("parts", loops.ceildiv(self.steps, length))
        with p.loop("part", parts) as part:
            start = p.let("start", loops.simplify(part * length))
            steps = p.let("steps", loops.minimum(length, self.steps - start))
            yield _Part(start, steps, loops.equals(part, 0), loops.equals(part, parts - 1))

    @property
    def _step(self) -> int:
        """Elements of a step, in the rows of a block and in a panel."""
        return BLOCK * self.tiles.depth

    @property
    def _most_steps(self) -> int:
        """Steps of a part."""
        return PART_BYTES // (self._step * self.tiles.size)

    def _left(self, row: Expr, part: _Part) -> Expr:
        """The first element of the rows from this one on."""
        place = self.factors.lhs_base + row * self.form.row.lhs + part.start * self.tiles.depth
        return self.program.let("left", loops.simplify(place))

    def _multiply(
        self,
        height: int,
        left: Expr,
        panel: Expr,
        partial: Partial,
        part: _Part,
        *,
        fetches: bool,
    ) -> None:
        """Add the products of a part of the depth to the sums of a block of `height` rows of tiles."""
        p, tiles, panels = self.program, self.tiles, self.form.panels
        assert panels is not None
        with p.when(part.is_first):
            tiles.begin(p, height)
        with p.otherwise(part.is_first):
            tiles.load(p, height, partial.buffer, partial.start)
        right = self.factors.rhs_base + panel * panels.stride + part.start * self._step
        right = p.let("right", loops.simplify(right))
        stride = p.let("stride", loops.simplify(self.form.row.lhs * tiles.size))
        with p.loop("k", part.steps) as k:
            at = right + k * self._step
            if fetches:
                tiles.prefetch(p, address(self.right_words, at + AHEAD // tiles.size))
            # Groups of neighbours along the depth are one row of a panel.
            row_bytes = BLOCK * tiles.group * tiles.size
            rows = address(self.left_words, left + k * tiles.depth)
            tiles.multiply(p, height, rows, stride, address(self.right_words, at), row_bytes)
        tiles.store(p, height, partial.buffer, partial.start)
