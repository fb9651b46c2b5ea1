"""Matrix products on CPUs, for any extents: register tiles over packed panels, or straight from memory for few rows.

The output is cut into panels of columns (two vector registers wide) and chunks of rows; one task makes one such piece,
and every product of a batch has its own. Inside, two programs, chosen when the kernel runs:

* *packed*, for many rows: the task copies a block of its right-hand panel (at most 512 deep, so that it stays in the
  second-level cache) to contiguous memory, whichever way it lies in the source, and multiplies a tile of up to 8 rows
  (6 where there are 16 registers) at a time with it. The tile's sums stay in vector registers over the block; between
  blocks they rest in the task's own memory.
  A factor that the build has packed already (`relaxpy.tir.panels`) is read where it lies.
* *direct*, for at most one tile of rows: nothing would be read twice, so nothing is copied. The panel is as wide as
  registers allow, because memory likes long rows.

Ragged edges: columns past the end are masked out of loads and stores; a row past the end reads the last row again and
is not stored. So no tile is smaller than it is in the middle, and nothing is read out of bounds.

Every element is summed in the order of the depth by one fused multiply-add after another, whatever the tile, the
program and the number of threads: a row's result depends on nothing but its row.

Two habits of LLVM and TVM shape the code. Divisions are written as the processor's (`loops.floordiv`), because TVM's
rounding ones, nested, made LLVM take minutes; and what holds for a whole task is decided once, around all its loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from relaxpy.schedule.cpu.matmul_finish import Finish, Total, place_of
from relaxpy.tir import loops
from relaxpy.tir.contraction import Panels, substitute
from relaxpy.tir.loops import Buffer, Expr, PrimFunc, Program, Stmt
from relaxpy.tir.matmul_form import BITS, MatmulForm, matmul_of
from relaxpy.tir.panels import PANEL_VECTORS, panel_width
from relaxpy.tir.target import Target

DEPTH_BLOCK = 512
"""How deep a packed panel is at most: 512 rows of two registers are 64 KiB with AVX-512, half of it with AVX2."""

CHUNK_TILES = 24
"""Row tiles of a task at most: each task packs its panel anew, so it should multiply often with it."""

FEW_TASKS = 32
"""Below this many tasks chunks are halved: a dozen threads should find work."""


def matmul_program(func: PrimFunc, target: Target) -> PrimFunc | None:
    """The function with its loops rewritten if it is a matrix product, or None.

    The result has one kind of parallel loop, over tasks; run serially it computes the same bits.
    """
    form = matmul_of(func)
    if form is None or target.kind != "llvm":
        return None
    if form.panels is not None and form.panels.width != panel_width(target, form.dtype):
        return None
    return loops.finished(func, _Writer(form, Tiling.of(target, BITS[form.dtype])).write())


@dataclass(frozen=True)
class Tiling:
    """Register tiles for one kind of processor."""

    lanes: int
    """Elements of a vector register."""
    registers: int
    """Vector registers of the architecture."""
    heights: tuple[int, ...]
    """Heights that tiles come in; a remainder takes the smallest that covers it."""

    panel_vectors = PANEL_VECTORS
    """Vectors across a packed panel. With 8 rows 16 sums hide the latency of the multiply-adds (two a cycle, four
    cycles each), ragged columns waste less than with wider panels, and 12 rows would run out of address registers
    where the depth is not known: half the speed."""

    @classmethod
    def of(cls, target: Target, bits: int) -> Tiling:
        """The tiles that keep all sums in this target's registers."""
        heights = (1, 4, 8) if target.vector_registers >= 32 else (1, 3, 6)
        return cls(target.lanes(bits), target.vector_registers, heights)

    @property
    def height(self) -> int:
        """Rows of a whole tile."""
        return self.heights[-1]

    def direct_vectors(self, height: int) -> int:
        """Vectors across a panel that is read from memory once: sums, one row of the panel and two more registers."""
        return next(n for n in (8, 4, 2, 1) if height * n + n + 2 <= self.registers or n == 1)


@dataclass(frozen=True, eq=False)
class _Panel:
    """Columns that a task computes: whole vectors from `start`, those past the end masked out."""

    start: Expr
    lanes: int
    masks: tuple[Expr | None, ...]
    """A mask a vector; None where all its columns exist."""

    @property
    def width(self) -> int:
        """Columns, with those that do not exist."""
        return len(self.masks) * self.lanes

    def vectors(self) -> Iterator[tuple[int, Expr | None]]:
        """Offset from the start, and mask, of every vector."""
        return ((n * self.lanes, mask) for n, mask in enumerate(self.masks))


@dataclass(frozen=True, eq=False)
class _Source:
    """Where a tile finds row `k` of the right-hand panel: at `start + k * stride`."""

    buffer: Buffer
    start: Expr
    stride: Expr
    is_padded: bool
    """Whether columns that do not exist may be read all the same."""
    panels: Panels | None = None
    """How the buffer is cut, where a tile may be wider than one panel."""

    def offset(self, column: int) -> Expr:
        """How far from the start of a row the vector at a column is."""
        if self.panels is None:
            return loops.int64(column)
        panel, inside = divmod(column, self.panels.width)
        return loops.simplify(panel * self.panels.stride + inside)


@dataclass(frozen=True, eq=False)
class _Range:
    """The part of the depth that a tile adds up."""

    start: Expr
    count: Expr
    is_first: Expr | bool
    is_last: Expr | bool
    """Whether sums begin at zero, and whether they are complete afterwards."""


@dataclass(frozen=True, eq=False)
class _Partial:
    """Memory of the task for the sums of one tile, row after row, before they go out."""

    buffer: Buffer
    start: Expr


class _Writer:
    """Writes the program of one product."""

    def __init__(self, form: MatmulForm, tiling: Tiling) -> None:
        self.form, self.tiling, self.dtype = form, tiling, form.dtype
        self.rows, self.columns = form.row.extent, form.column.extent
        self.depth = form.depth.extent
        self.program = p = Program()
        self.out = p.flat_view(form.out.buffer)
        self.lhs = p.flat_view(form.lhs.buffer)
        shared = form.rhs.buffer.same_as(form.lhs.buffer)
        self.rhs = self.lhs if shared else p.flat_view(form.rhs.buffer)
        self.finish = Finish(p, form, self.out) if form.epilogue is not None else None
        # Where in each view the product lies that a task works on; set by `_tasks`.
        self.out_base = self.lhs_base = self.rhs_base = loops.int64(0)
        self.batch_place: dict[Expr, Expr] = {}

    def write(self) -> Stmt:
        """The whole body: every program that some number of rows needs, under its condition."""
        p, low = self.program, 0
        if loops.constant(self.form.column.rhs) == 1:
            for above, height in self._heights(self.rows):
                with p.when(loops.between(self.rows, above, height)):
                    self._direct(height)
            low = self.tiling.height
        with p.when(self.rows > low):
            self._packed()
        return p.body()

    def _heights(self, rows: Expr) -> list[tuple[int, int]]:
        """Tiles for up to a whole one's rows: the height, after the next lower. Exact where rows are known."""
        known = loops.constant(rows)
        if known is not None and 0 < known <= self.tiling.height:
            return [(known - 1, known)]
        heights = self.tiling.heights
        return list(zip((0, *heights), heights, strict=False))

    def _direct(self, height: int) -> None:
        """At most one tile of rows: the panel is read where it lies."""
        p, vectors = self.program, self.tiling.direct_vectors(height)
        depth = _Range(loops.int64(0), self.depth, is_first=True, is_last=True)
        with self._tasks(loops.ceildiv(self.columns, vectors * self.tiling.lanes)) as number:
            size = height * vectors * self.tiling.lanes
            partial = _Partial(p.allocate("partial", size, self.dtype), loops.int64(0))
            for panel in self._panels(number, vectors):
                # Of a panel that is wider than the factor's own, the last ones may not exist.
                source = self._in_place(panel, loops.int64(0), is_padded=False)
                self._tile(height, loops.int64(0), panel, source, depth, partial)

    def _packed(self) -> None:
        """Any number of rows: chunks of them by panels that are copied, a block of the depth at a time."""
        p, height, vectors = self.program, self.tiling.height, self.tiling.panel_vectors
        width = vectors * self.tiling.lanes
        panels = p.let("panels", loops.ceildiv(self.columns, width))
        tiles = p.let("tiles", loops.ceildiv(self.rows, height))
        chunk = p.let("chunk_tiles", self._chunk_tiles(tiles, panels))
        chunks = p.let("chunks", loops.ceildiv(tiles, chunk))
        block_depth = min(DEPTH_BLOCK, loops.constant(self.depth) or DEPTH_BLOCK)
        blocks = loops.maximum(1, loops.ceildiv(self.depth, block_depth))
        with self._tasks(loops.simplify(chunks * panels)) as number:
            column = p.let("panel", loops.floormod(number, panels))
            first = p.let("first_tile", loops.floordiv(number, panels) * chunk)
            last = p.let("last_tile", loops.minimum(first + chunk, tiles))
            is_packed = self.form.panels is not None
            copy = None if is_packed else p.allocate("packed", block_depth * width, self.dtype)
            partial = p.allocate("partial", CHUNK_TILES * height * width, self.dtype)
            for panel in self._panels(column, vectors):
                with p.loop("block", blocks) as block:
                    start = p.let("k0", loops.simplify(block * block_depth))
                    count = p.let("block_depth", loops.minimum(self.depth - start, block_depth))
                    is_first, is_last = loops.equals(block, 0), loops.equals(block, blocks - 1)
                    depth = _Range(start, count, is_first, is_last)
                    if copy is not None:
                        self._pack(copy, panel, depth)
                        stride = loops.int64(panel.width)
                        source = _Source(copy, loops.int64(0), stride, is_padded=True)
                    else:
                        source = self._in_place(panel, start, is_padded=True)
                    self._chunk(first, last, panel, source, depth, partial)

    def _in_place(self, panel: _Panel, first: Expr, *, is_padded: bool) -> _Source:
        """The columns of a panel where they lie in memory, from row `first` on."""
        form, start = self.form, panel.start
        if form.panels is not None:
            start = loops.floordiv(start, form.panels.width) * form.panels.stride
        start = self.program.let("from", self.rhs_base + start + first * form.depth.rhs)
        return _Source(self.rhs, start, form.depth.rhs, is_padded, form.panels)

    def _chunk_tiles(self, tiles: Expr, panels: Expr) -> Expr:
        """Row tiles a task: about `CHUNK_TILES`, chunks of equal size, more of them where tasks are few."""
        tasks = loops.ceildiv(tiles, CHUNK_TILES) * panels * self._products()
        aim = loops.select(tasks < FEW_TASKS, CHUNK_TILES // 2, CHUNK_TILES)
        chunks = loops.maximum(1, loops.ceildiv(tiles, aim))
        return loops.maximum(1, loops.ceildiv(tiles, chunks))

    def _pack(self, packed: Buffer, panel: _Panel, depth: _Range) -> None:
        """Copy a block of the panel: row after row of whole vectors, columns that do not exist undefined."""
        p, form = self.program, self.form
        origin = p.let("origin", self.rhs_base + depth.start * form.depth.rhs)
        if loops.constant(form.column.rhs) != 1:
            # The source is contiguous along the depth, if at all: read it that way.
            with p.loop("column", panel.width) as column:
                exists = loops.minimum(panel.start + column, self.columns - 1)
                line = p.let("line", origin + exists * form.column.rhs)
                with p.loop("k", depth.count) as k:
                    value = loops.load(self.rhs, line + k * form.depth.rhs)
                    p.store(packed, k * panel.width + column, value)
            return
        with p.loop("k", depth.count) as k:
            line = p.let("line", origin + k * form.depth.rhs + panel.start)
            for at, mask in panel.vectors():
                value = loops.load(self.rhs, line + at, panel.lanes, mask)
                p.store(packed, k * panel.width + at, value, panel.lanes)

    def _chunk(
        self,
        first: Expr,
        last: Expr,
        panel: _Panel,
        source: _Source,
        depth: _Range,
        sums: Buffer,
    ) -> None:
        """The tiles from `first` to `last` of one panel; the last of all rows may be a low one."""
        p, height = self.program, self.tiling.height
        size = height * panel.width
        whole = loops.floordiv(self.rows, height)
        with p.loop("tile", loops.minimum(last, whole) - first) as tile:
            row = p.let("i", (first + tile) * height)
            partial = _Partial(sums, p.let("own", tile * size))
            self._tile(height, row, panel, source, depth, partial, is_whole=True)
        rest = loops.simplify(self.rows - whole * height)
        with p.when(loops.both(last > whole, rest > 0)):
            row = p.let("i", whole * height)
            partial = _Partial(sums, p.let("own", (whole - first) * size))
            for above, low in self._heights(rest):
                with p.when(loops.between(rest, above, low)):
                    self._tile(low, row, panel, source, depth, partial)

    def _tile(
        self,
        height: int,
        row: Expr,
        panel: _Panel,
        source: _Source,
        depth: _Range,
        partial: _Partial,
        *,
        is_whole: bool = False,
    ) -> None:
        """`out[row:, panel] = lhs[row:] @ source` over a part of the depth, the sums in registers.

        Unless it `is_whole`, rows past the end compute the last row, and are not stored.
        """
        p, form, lanes = self.program, self.form, panel.lanes
        lines: list[Expr] = []
        for r in range(height):
            exists = row + r if is_whole else loops.minimum(row + r, self.rows - 1)
            line = self.lhs_base + exists * form.row.lhs + depth.start * form.depth.lhs
            lines.append(p.let(f"line{r}", loops.simplify(line)))
        # One buffer a row: together they would be too large for the stack, and so for registers.
        sums = [p.allocate(f"sums{r}", panel.width, self.dtype) for r in range(height)]
        places = [(r, at) for r in range(height) for at, _ in panel.vectors()]
        with p.when(depth.is_first):
            for r, at in places:
                p.store(sums[r], at, loops.zero(self.dtype, lanes), lanes)
        with p.otherwise(depth.is_first):
            for r, at in places:
                value = loops.load(partial.buffer, partial.start + r * panel.width + at, lanes)
                p.store(sums[r], at, value, lanes)
        with p.loop("k", depth.count) as k:
            rights: list[tuple[int, Expr]] = []
            start = p.let("at", source.start + k * source.stride)
            for at, mask in panel.vectors():
                needed = None if source.is_padded else mask
                right = loops.load(source.buffer, start + source.offset(at), lanes, needed)
                rights.append((at, p.let("right", right)))
            for r in range(height):
                left = p.let("left", loops.load(self.lhs, lines[r] + k * form.depth.lhs))
                for at, right in rights:
                    product = loops.broadcast(left, lanes) * right
                    p.store(sums[r], at, loops.load(sums[r], at, lanes) + product, lanes)
        for r, at in places:
            value = loops.load(sums[r], at, lanes)
            p.store(partial.buffer, partial.start + r * panel.width + at, value, lanes)
        with p.when(depth.is_last):
            # A loop, not a store a row: LLVM takes minutes to choose addresses for a dozen rows of unknown length.
            count = loops.int64(height) if is_whole else loops.minimum(self.rows - row, height)
            with p.loop("r", count) as r:
                target = p.let("target", self.out_base + (row + r) * form.row.out + panel.start)
                sums_at = loops.simplify(partial.start + r * panel.width)
                if self.finish is not None:
                    place = self.batch_place | self.finish.row_place(row + r)
                    for at, mask in panel.vectors():
                        total = Total(partial.buffer, sums_at + at)
                        self.finish.store(total, place, panel.start + at, target + at, lanes, mask)
                else:
                    for at, mask in panel.vectors():
                        value = loops.load(partial.buffer, sums_at + at, lanes)
                        p.store(self.out, target + at, value, lanes, mask)

    def _panels(self, number: Expr, vectors: int) -> Iterator[_Panel]:
        """The panel of this number, for code that is written once for whole panels and again for ragged ones.

        It must be: a branch at every access would have LLVM duplicate each loop for each way through the others.
        """
        p, lanes = self.program, self.tiling.lanes
        width = vectors * lanes
        start = p.let("j", loops.simplify(number * width))
        is_exact = loops.constant(loops.floormod(self.columns, width)) == 0
        inside = True if is_exact else start + width <= self.columns
        with p.when(inside):
            yield _Panel(start, lanes, (None,) * vectors)
        with p.otherwise(inside):
            left = p.let("left", loops.clamped_int32(self.columns - start, width))
            for above, upto in ((0, 1), (1, vectors)):
                with p.when(loops.between(left, above * lanes, upto * lanes)):
                    masks = [loops.first_lanes(left - n * lanes, lanes) for n in range(upto)]
                    yield _Panel(start, lanes, tuple(masks))

    def _products(self) -> Expr:
        """How many products the batch has."""
        products = loops.int64(1)
        for dim in self.form.batch:
            products = loops.simplify(products * dim.extent)
        return products

    @contextmanager
    def _tasks(self, pieces: Expr) -> Iterator[Expr]:
        """The parallel loop over all pieces of all products; gives the number of the piece in its product."""
        p, form = self.program, self.form
        pieces = p.let("pieces", pieces)
        total = p.let("tasks", loops.simplify(self._products() * pieces))
        with p.loop("task", total, parallel=True) as task:
            piece = p.let("piece", loops.floormod(task, pieces))
            left = p.let("product", loops.floordiv(task, pieces))
            values: dict[Expr, Expr] = {}
            bases = [loops.int64(0)] * 3
            for n, dim in reversed(list(enumerate(form.batch))):
                value = p.let(f"b{n}", loops.floormod(left, dim.extent) if n else left)
                left = loops.floordiv(left, dim.extent)
                values |= place_of(dim, value)
                strides = (dim.out, dim.lhs, dim.rhs)
                bases = [base + value * by for base, by in zip(bases, strides, strict=True)]
            self.out_base, self.lhs_base, self.rhs_base = (
                p.let("base", loops.simplify(base + substitute(operand.base, values)))
                for base, operand in zip(bases, (form.out, form.lhs, form.rhs), strict=True)
            )
            self.batch_place = values
            yield piece
