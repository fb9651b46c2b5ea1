"""Matrix products on CPUs, for any extents: register tiles over packed panels, or straight from memory for few rows.

The output is cut into panels of columns (two to four vector registers wide) and chunks of rows; one task makes one
chunk of one panel, or of up to four neighbouring ones, and every product of a batch has its own. Inside, two programs,
chosen when the kernel runs (where the depth is short, the first is that of `matmul_registers`):

* *packed*, for many rows: the task packs a block of each of its right-hand panels (at most 32 KiB, so that it stays in
  the L1 cache) into contiguous memory, from any layout of the source. The micro-kernel multiplies a tile of 6 or 8 rows
  by one panel (`Tiling`). The sums of the tile are in vector registers during a
  block, and in the task's memory between blocks. A factor that was packed at build time
  (`relaxpy.backend.cpu.panels`) is read in place, unless its elements are converted to words: then they are converted
  once a task, or in registers if there are at most two tiles. One that the program computes, such as a weight of small
  integers with scales, is computed into the panel.
* *direct*, for at most one tile of rows: each element of the right-hand factor is read once, so it is not packed. The
  panel is as wide as the registers allow, because long contiguous reads use the memory bandwidth better. A computed
  factor is computed in registers.

A word is the unit of multiplication, which depends on the dtypes and the target (`relaxpy.backend.cpu.arithmetic`): a
float32, a widened bfloat16 or float16, two bfloat16 or four bytes. `relaxpy.backend.cpu.rules.matmul_factors` reads and
packs words.

Ragged edges: columns past the end are masked in loads and stores; a row past the end reads the last row again and is
not stored. So all tiles have full size, and nothing is read out of bounds.

Every element is accumulated in the order of the depth, one multiply-add at a time, for any tile, program and number of
threads: the result of a row depends on that row only.

Two properties of LLVM and TVM shape the code. Divisions truncate (`loops.floordiv`), because nested floor divisions of
TVM made LLVM take minutes. Conditions that hold for a whole task are branches around all its loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.arithmetic import BITS, Arithmetic
from relaxpy.backend.cpu.panels import PANEL_VECTORS, reads_panels
from relaxpy.backend.cpu.rules.matmul_factors import Block, Factors, Left, Panel, RightRow, widens
from relaxpy.backend.cpu.rules.matmul_finish import Finish, Total
from relaxpy.backend.cpu.rules.matmul_registers import (
    CHUNK_ROWS,
    RegisterWriter,
    stays_in_registers,
)
from relaxpy.backend.cpu.rules.places import shared_pieces
from relaxpy.backend.cpu.rules.streaming import with_streams
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, Program, Stmt
from relaxpy.tir.recognise.contraction import linear_part, substitute
from relaxpy.tir.recognise.matmul import (
    Dimension,
    MatmulForm,
    computed_matmul_of,
    matmul_of,
    place_of,
)
from relaxpy.tir.recognise.stages import loads_of

DEPTH_BLOCK, COPIED_DEPTH = 1024, 256
"""The largest depth of a block in words: if both factors are read in place, so that a block costs only its sums, and
if the left rows are copied."""

COPIED_VECTORS = 512
"""The most vectors of a copied panel in a block: 32 KiB with AVX-512 and half of it with AVX2, to fit the L1 cache."""

FEW_TILES = 2
"""With at most this many tiles, packed panels of another type are converted in registers, once a tile. With more,
copying them is faster."""

FEW_TASKS = 16
"""With fewer tasks than this, chunks are halved, so that more threads have work."""

MOST_PANELS = 4
"""The most panels of a task, if rows are copied (once for all of them) and the number of columns is known. Otherwise
one: LLVM needs ten times as long for another loop around the tiles."""

SHARED_TASKS = 16
"""The fewest tasks that must remain if panels share one."""


def matmul_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is a matrix product, or None.

    The result has one kind of parallel loop, over tasks; run serially it computes the same bits.
    """
    if target.kind != "llvm":
        return None
    form = matmul_of(func) or computed_matmul_of(func)
    if form is None or _is_window(form):
        return None
    arithmetic = Arithmetic.of_product(form, target)
    panels = form.panels
    if panels is not None and not reads_panels(arithmetic, panels.width, panels.group):
        return None

    def write() -> PrimFunc:
        body = ProductWriter(form, arithmetic, target).write()
        return loops.finished(func, with_streams(arithmetic.around(body)))

    return Arrangement(write)


def _is_window(form: MatmulForm) -> bool:
    """Does one vector slide along the right-hand factor, as a depthwise convolution's weight along a line? A product
    would gather each window for one use; `window` reads the lines in place."""
    if loops.constant(form.row.extent) != 1 or form.panels is not None:
        return False
    depth, column = form.depth, form.column
    if form.rhs.formula is None:
        return _overlap(depth, column, depth.rhs, column.rhs)
    extents = {axis.var: axis.extent for dim in (depth, column) for axis in dim.axes}
    (k, *_), (j, *_) = ([axis.var for axis in dim.axes] for dim in (depth, column))
    steps = (
        linear_part(index, extents)[0]
        for load in loads_of(form.rhs.formula)
        for index in load.indices
    )
    return any(_overlap(depth, column, own[k], own[j]) for own in steps if k in own and j in own)


def _overlap(depth: Dimension, column: Dimension, down: Expr, along: Expr) -> bool:
    """Do neighbouring columns share elements, if the depth and the columns move along one line by these steps?"""
    steps = [loops.constant(step) for step in (down, along)]
    spans = [loops.constant(dim.extent) for dim in (depth, column)]
    if None in steps or 0 in steps:
        return False
    one, other = (abs(step or 0) for step in steps)
    return all(
        extent is None or step * extent > rest
        for step, extent, rest in ((one, spans[0], other), (other, spans[1], one))
    )


@dataclass(frozen=True)
class Tiling:
    """The register tiles for one kind of processor."""

    lanes: int
    """Elements of a vector register."""
    registers: int
    """Vector registers of the architecture."""
    heights: tuple[int, ...]
    """The heights of tiles; a remainder takes the smallest one that covers it."""
    direct_heights: tuple[int, ...]
    """The heights of tiles of the only rows there are."""
    widths: tuple[int, ...] = (PANEL_VECTORS,)
    """Vectors across a packed panel, and a tile of it: one number, or two that follow each other. Then the first panels
    are the wide ones, as many as the columns need: 13 vectors are 4 + 3 + 3 + 3."""
    cached: int = 1 << 14
    """Vectors that a second-level cache holds."""

    @classmethod
    def of(cls, form: MatmulForm, arithmetic: Arithmetic, target: CpuTarget) -> Tiling:
        """The tiles that keep all sums in this target's registers. Their 12 to 24 sums hide the latency of the
        multiply-adds (two a cycle, four cycles each). The more of them, the fewer vectors are read for each: 6 rows by
        4 vectors read 10 for 24, 8 by 2 read 10 for 16. 12 rows would run out of address registers where the depth is
        not known: half the speed."""
        lanes, registers = target.lanes(BITS[form.dtype]), target.vector_registers
        cached = target.second_level_bytes * 8 // target.vector_bits
        if registers < 32:
            return cls(lanes, registers, (1, 3, 6), (1, 3, 6), cached=cached)
        widths = _widths(form, arithmetic, lanes)
        wide = (2, 4, 6) if form.panels is not None else (3, 6)
        heights = {4: wide, 3: (4, 8)}.get(widths[-1], (1, 4, 8))
        if len(widths) > 1:
            # A second height for both widths takes as long to compile as direct tiles.
            heights = heights[-1:]
        # A factor that is read in place once takes as long for two rows as for one; not if it is converted or computed.
        is_plain = form.panels is None and form.rhs.formula is None and arithmetic.group == 1
        direct = (2 if is_plain else 1, 4, 8)
        return cls(lanes, registers, heights, direct, widths, cached)

    @property
    def height(self) -> int:
        """Rows of a whole tile."""
        return self.heights[-1]

    @property
    def register_tile(self) -> tuple[int, int]:
        """Rows of a tile whose sums stay in registers, and the most vectors across it."""
        if self.panel_vectors > PANEL_VECTORS:
            return self.height, self.panel_vectors
        return (8, 3) if self.registers >= 32 else (6, 2)

    @property
    def deepest(self) -> int:
        """The largest depth of a product whose sums stay in registers. A panel of it is read again for each tile of
        rows, from half of a second-level cache. On an Emerald Rapids (2 MiB) products that are 1536 to 4096 deep take
        0.87 to 0.97 of the time with blocks, one that is 8960 deep 1.5 times as long."""
        return self.cached // 2 // self.register_tile[1]

    @property
    def chunk_tiles(self) -> int:
        """The most tiles of a task."""
        return CHUNK_ROWS // self.height

    @property
    def panel_vectors(self) -> int:
        """The most vectors across a packed panel."""
        return self.widths[-1]

    @property
    def copied_depth(self) -> int:
        """The largest depth of a block in words if the panels are copied."""
        return COPIED_VECTORS // self.panel_vectors // self.lanes * self.lanes

    def direct_vectors(self, height: int) -> int:
        """Vectors across a panel that is read from memory once: registers hold the sums, one row of the panel and two
        more values."""
        return next(n for n in (8, 4, 2, 1) if height * n + n + 2 <= self.registers or n == 1)


def _widths(form: MatmulForm, arithmetic: Arithmetic, lanes: int) -> tuple[int, ...]:
    """Vectors across the panels, with 32 registers: the wide panels that are packed already span two of these."""
    columns = form.column.extent
    is_whole = loops.constant(loops.floormod(columns, 4 * lanes)) == 0
    if form.panels is not None:
        return (4,) if is_whole and not widens(form, arithmetic) else (PANEL_VECTORS,)
    known = loops.constant(columns)
    if is_whole or known is None:
        return (4,) if is_whole else (3, 4)
    vectors = -(-known // lanes)
    panels = -(-vectors // 4)
    if vectors <= 3 * panels:
        return (min(vectors, 3),)
    return 3, 4


@dataclass(frozen=True, eq=False)
class Cut:
    """The columns of a task's panel."""

    start: Expr
    step: int
    """The start is known to be a multiple of this."""
    width: int
    """The most columns there are."""
    end: Expr
    """A column behind it, at most the number of columns."""
    is_wide: Expr | bool = True
    """Does it have as many vectors as the width says, or one less?"""


@dataclass(frozen=True, eq=False)
class Partial:
    """A task's memory for the sums of one tile, row after row, before they are stored."""

    buffer: Buffer
    start: Expr
    stride: int
    """The stride of rows."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """A task's memory for a block of its rows."""

    buffer: Buffer
    words: int
    """Words of a row."""


@dataclass(frozen=True, eq=False)
class _Memory:
    """The memory of a task."""

    partial: Buffer
    """The sums of all its tiles."""
    left: _Rows | None
    """A block of all its rows, if they are copied."""
    right: Buffer | None
    """A block of one of its panels, if they are copied."""
    excess: Buffer | None
    """The excess that flipped words add to the sums of each column of that panel."""


class ProductWriter:
    """Writes the program of one product."""

    def __init__(self, form: MatmulForm, arithmetic: Arithmetic, target: CpuTarget) -> None:
        self.form, self.arithmetic, self.target, self.dtype = form, arithmetic, target, form.dtype
        self.tiling = Tiling.of(form, arithmetic, target)
        self.rows, self.columns = form.row.extent, form.column.extent
        self.program = p = Program()
        self.out = p.flat_view(form.out.buffer)
        lhs = p.flat_view(form.lhs.buffer)
        shared = form.rhs.buffer.same_as(form.lhs.buffer)
        shared = shared or form.rhs.formula is not None
        rhs = lhs if shared else p.flat_view(form.rhs.buffer)
        self.factors = Factors(p, form, arithmetic, lhs, rhs)
        self.widens = widens(form, arithmetic)
        self.finish = Finish(p, form, self.out) if form.epilogue is not None else None
        self.copies_right = form.panels is None or self.widens
        shares = self.factors.copies_left and loops.constant(self.columns) is not None
        self.most_panels = MOST_PANELS if shares else 1
        # The offset in each view of the product that a task works on; set by `tasks`.
        self.out_base = loops.int64(0)
        self.batch_place: dict[Expr, Expr] = {}

    def write(self) -> Stmt:
        """Write the whole body: every program that some number of rows needs, under its condition."""
        p, low = self.program, 0
        for above, height in self._direct_heights():
            with p.when(loops.between(self.rows, above, height)):
                self._direct(height)
            low = height
        if self.widens:
            few = FEW_TILES * self.tiling.height
            with p.when(loops.between(self.rows, low, few)):
                self._packed(FEW_TILES, copies_right=False)
            low = max(low, few)
        with p.when(self.rows > low):
            if stays_in_registers(self.form, self.arithmetic, self.tiling.deepest):
                RegisterWriter(self, *self.tiling.register_tile).write()
            else:
                self._packed(self.tiling.chunk_tiles, copies_right=self.copies_right)
        return p.body()

    def _direct_heights(self) -> list[tuple[int, int]]:
        """Pairs (next lower height, height) of the tiles for up to a whole tile's rows, if the panel can be read in
        place; one exact pair if the number of rows is known. If the panel is converted, more rows than those of a low
        tile share the conversion of the left rows as well."""
        if not self.factors.reads_right:
            return []
        known = loops.constant(self.rows)
        heights = self.tiling.direct_heights
        if known is not None and 0 < known <= heights[-1]:
            return [(known - 1, known)]
        pairs = list(zip((0, *heights), heights, strict=False))
        return pairs[:1] if self.widens else pairs

    def _direct(self, height: int) -> None:
        """Write the program for at most one tile of rows: the panel is read in place."""
        p, vectors = self.program, self.tiling.direct_vectors(height + self.arithmetic.flips)
        with self.tasks(loops.ceildiv(self.columns, vectors * self.tiling.lanes)) as number:
            width = vectors * self.tiling.lanes
            sums = p.allocate("partial", height * width, self.dtype)
            partial = Partial(sums, loops.int64(0), width)
            # Copied rows are copied one block at a time; others need no blocks.
            copy = self._left_copy(height, self._block_words(DEPTH_BLOCK))
            words = copy.words if copy is not None else None
            # A factor in panels is padded: only stores need masks.
            is_filled = self.factors.is_padded
            cut = Cut(p.let("j", loops.simplify(number * width)), width, width, self.columns)
            whole = [self._panel(cut, vectors)]
            for panel in whole if is_filled else self._panels(cut):
                with self._blocks(words) as block:
                    zero = loops.int64(0)
                    if copy is not None:
                        left = self._copied_left(copy, zero, height, (zero, block))
                    else:
                        left = self.factors.left(height, zero, block)
                    right = self.factors.right(panel, block)
                    self._tile(panel, left, right, self.factors.computing(block), partial)
                    with p.when(block.is_last):
                        known = None if is_filled else panel
                        self.store(loops.int64(0), self.rows, cut, partial, known)

    def _packed(self, most_tiles: int, *, copies_right: bool) -> None:
        """Write the program for any number of rows: chunks of rows by panels, one block of the depth at a time. A task
        has at most that many tiles."""
        p, height, width = self.program, self.tiling.height, self._width
        panels = p.let("panels", loops.ceildiv(self.columns, width))
        tiles = p.let("tiles", loops.ceildiv(self.rows, height))
        chunk = p.let("chunk_tiles", self._chunk_tiles(tiles, panels))
        chunks = p.let("chunks", loops.ceildiv(tiles, chunk))
        share = p.let("share", self._shared_panels(chunks, panels))
        shares = p.let("shares", loops.ceildiv(panels, share))
        with self.tasks(loops.simplify(chunks * shares)) as number:
            first_panel = p.let("first_panel", loops.floormod(number, shares) * share)
            own = p.let("own_panels", self._own_panels(share, panels - first_panel))
            first = p.let("first_tile", loops.floordiv(number, shares) * chunk)
            last = p.let("last_tile", loops.minimum(first + chunk, tiles))
            deepest = COPIED_DEPTH if self.factors.copies_left else DEPTH_BLOCK
            if copies_right:
                deepest = min(deepest, self.tiling.copied_depth)
            words = self._block_words(deepest)
            memory = self._memory(most_tiles, words, copies_right=copies_right)
            with self._blocks(words) as block:
                if memory.left is not None:
                    with p.loop("tile", last - first) as tile:
                        row = p.let("i", (first + tile) * height)
                        self._copied_left(memory.left, tile, height, (row, block))
                with p.loop("own_panel", own) as n:
                    number = p.let("number", first_panel + n)
                    cut = self._cut(number, panels)
                    self._prepare(cut, block, memory)
                    self._chunk(first, last, cut, n, block, memory)

    def _cut(self, number: Expr, panels: Expr) -> Cut:
        """The columns of the panel of this number."""
        p, lanes, widths = self.program, self.tiling.lanes, self.tiling.widths
        if len(widths) == 1:
            start = p.let("j", loops.simplify(number * self._width))
            end = loops.minimum(self.columns, start + self._width)
            return Cut(start, self._width, self._width, p.let("end", end))
        low, high = widths
        vectors = loops.ceildiv(self.columns, lanes)
        wide = p.let("wide", loops.maximum(vectors - panels * low, 0))
        start = p.let("j", (number * low + loops.minimum(number, wide)) * lanes)
        is_wide = p.let("is_wide", number < wide)
        end = start + loops.select(is_wide, high * lanes, low * lanes)
        end = p.let("end", loops.minimum(self.columns, end))
        return Cut(start, lanes, self._width, end, is_wide)

    @property
    def _width(self) -> int:
        """The most columns of a panel."""
        return self.tiling.panel_vectors * self.tiling.lanes

    def _block_words(self, deepest: int) -> int:
        """The depth of a block of at most this many words: whole vectors."""
        known, lanes = loops.constant(self.factors.words) or deepest, self.tiling.lanes
        return min(deepest, lanes * -(-known // lanes))

    def _memory(self, tiles: int, words: int, *, copies_right: bool) -> _Memory:
        """The memory of a task with this many tiles of rows, and blocks of this many words."""
        p, a, width = self.program, self.arithmetic, self._width
        rows = tiles * self.tiling.height
        return _Memory(
            partial=p.allocate("partial", rows * self.most_panels * width, self.dtype),
            left=self._left_copy(rows, words),
            right=p.allocate("packed", words * width, a.word) if copies_right else None,
            excess=p.allocate("excess", width, self.dtype) if a.flips else None,
        )

    def _prepare(self, cut: Cut, block: Block, memory: _Memory) -> None:
        """Copy the panel, and compute the excess of its columns from flipped words."""
        whole = self._panel(cut, self.tiling.panel_vectors)
        if memory.right is not None:
            is_cut = self.factors.reads_right and not self.factors.is_padded
            for panel in self._panels(cut) if is_cut else [whole]:
                self.factors.copy_right(memory.right, whole.width, panel, block, cut.end)
        if memory.excess is not None:
            self._excess(memory.excess, whole, self._right(whole, block, memory), block)

    def _right(self, panel: Panel, block: Block, memory: _Memory) -> RightRow:
        """The panel, copied or in place."""
        if memory.right is None:
            return self.factors.right(panel, block)
        return self.factors.copied_right(memory.right, self._width, panel)

    def _left_copy(self, rows: int, words: int) -> _Rows | None:
        """Memory for a block of this many rows, if they have to be copied."""
        if not self.factors.copies_left:
            return None
        return _Rows(self.program.allocate("left", rows * words, self.arithmetic.word), words)

    def _copied_left(
        self, copy: _Rows, tile: Expr, height: int, fill: tuple[Expr, Block] | None = None
    ) -> Left:
        """The copy of a task's tile of this height; made here, if `fill` is its first row and the block."""
        at = loops.simplify(tile * (height * copy.words))
        at = self.program.let("copied", at)
        if fill is not None:
            self.factors.copy_left(copy.buffer, at, copy.words, height, *fill)
        return self.factors.copied_left(copy.buffer, at, copy.words, height)

    @contextmanager
    def _blocks(self, size: int | None) -> Iterator[Block]:
        """A loop over blocks of the depth of `size` words, at least one block; one block of all words if there is no
        size."""
        p, words = self.program, self.factors.words
        if size is None:
            yield Block(loops.int64(0), p.let("words", words), is_first=True, is_last=True)
            return
        blocks = loops.maximum(1, loops.ceildiv(words, size))
        with p.loop("block", blocks) as block:
            start = p.let("k0", loops.simplify(block * size))
            count = p.let("block_words", loops.minimum(words - start, size))
            is_first, is_last = loops.equals(block, 0), loops.equals(block, blocks - 1)
            yield Block(start, count, is_first, is_last)

    def _excess(self, excess: Buffer, panel: Panel, right: RightRow, block: Block) -> None:
        """The excess of the block's sums in the panel, due to flipped left words."""
        p, lanes = self.program, panel.lanes
        sums = [p.allocate(f"column{at}", lanes, self.dtype) for at, _ in panel.vectors()]
        for total in sums:
            p.store(total, 0, loops.zero(self.dtype, lanes), lanes)
        with p.loop("k", block.count) as k:
            for total, words in zip(sums, right(k), strict=True):
                value = loops.load(total, 0, lanes)
                value = self.arithmetic.add_product(value, self.arithmetic.flipped(), words)
                p.store(total, 0, value, lanes)
        for vector, total in enumerate(sums):
            p.store(excess, vector * lanes, loops.load(total, 0, lanes), lanes)

    def _chunk_tiles(self, tiles: Expr, panels: Expr) -> Expr:
        """Row tiles per task: about as many as `CHUNK_ROWS` are, in chunks of equal size, and fewer per task if there
        are few tasks."""
        most = self.tiling.chunk_tiles
        tasks = loops.ceildiv(tiles, most) * panels * self.products()
        aim = loops.select(tasks < FEW_TASKS, most // 2, most)
        chunks = loops.maximum(1, loops.ceildiv(tiles, aim))
        return loops.maximum(1, loops.ceildiv(tiles, chunks))

    def _shared_panels(self, chunks: Expr, panels: Expr) -> Expr:
        """Panels per task: several if enough tasks remain and sharing saves work."""
        if self.most_panels == 1:
            return loops.int64(1)
        tasks = loops.simplify(chunks * panels * self.products())
        return shared_pieces(tasks, self.most_panels, SHARED_TASKS)

    def _own_panels(self, share: Expr, left: Expr) -> Expr:
        """The number of panels of a task; the last task of a row may have fewer than its share."""
        return share if self.most_panels == 1 else loops.minimum(share, left)

    def _chunk(
        self, first: Expr, last: Expr, cut: Cut, n: Expr, block: Block, memory: _Memory
    ) -> None:
        """The tiles from `first` to `last`, by the task's `n`-th panel; the last tile of all rows may have a lower
        height."""
        p, height, width = self.program, self.tiling.height, self._width
        size = height * width
        panels = [self._panel(cut, vectors) for vectors in self.tiling.widths]
        pairs = [(panel, self._right(panel, block, memory)) for panel in panels]
        excess = None
        if memory.excess is not None:
            excess = Partial(memory.excess, loops.int64(0), width)
        with p.loop("tile", last - first) as tile:
            row = p.let("i", (first + tile) * height)
            rows = p.let("rows", loops.minimum(self.rows - row, height))
            own = p.let("own", loops.simplify((tile * self.most_panels + n) * size))
            partial = Partial(memory.partial, own, width)
            copied = None
            if memory.left is not None:
                copied = self._copied_left(memory.left, tile, height)
            for low, condition in self._low_tiles(rows):
                with p.when(condition):
                    left = copied or self.factors.left(low, row, block)
                    left = Left(low, left.word)
                    for panel, right in pairs:
                        is_wide = panel.width == width
                        with p.when(cut.is_wide) if is_wide else p.otherwise(cut.is_wide):
                            self._tile(panel, left, right, block, partial, excess)
            with p.when(block.is_last):
                self.store(row, rows, cut, partial)

    def _low_tiles(self, rows: Expr) -> list[tuple[int, Expr | bool]]:
        """The tile heights that a remainder of rows may need, and their conditions."""
        height = self.tiling.height
        known = loops.constant(self.rows)
        # Two programs have tiles if panels are converted: the lowest tile would save little.
        heights = self.tiling.heights[1 if self.widens else 0 :]
        if known is not None and known % height == 0:
            return [(height, True)]
        if known is not None:
            low = next(low for low in heights if low >= known % height)
            if known < height or low == height:
                return [(low, True)]
            return [(height, rows > low), (low, rows <= low)]
        pairs = zip((0, *heights), heights, strict=False)
        return [(low, loops.between(rows, above, low)) for above, low in pairs]

    def _tile(
        self,
        panel: Panel,
        left: Left,
        right: RightRow,
        block: Block,
        partial: Partial,
        excess: Partial | None = None,
    ) -> None:
        """Add `left @ right` over a block of the depth to the sums in `partial`, kept in registers meanwhile. `excess`
        is the excess of sums of flipped words; it is computed here if not given.
        """
        p, lanes, height = self.program, panel.lanes, left.height
        stride = partial.stride
        # One buffer per row: a single one would be too large for the stack, and so for registers.
        sums = [p.allocate(f"sums{r}", panel.width, self.dtype) for r in range(height)]
        places = [(r, at) for r in range(height) for at, _ in panel.vectors()]

        zero = loops.zero(self.dtype, lanes)
        begins_in_memory = self.dtype.startswith("int")
        with p.when(block.is_first):
            if begins_in_memory:
                # LLVM would keep sums of integers that begin with a constant on the stack: half of the speed.
                with p.loop("r", height, rolled=True) as row:
                    for at, _ in panel.vectors():
                        p.store(partial.buffer, partial.start + row * stride + at, zero, lanes)
            else:
                for r, at in places:
                    p.store(sums[r], at, zero, lanes)
        with p.otherwise(False if begins_in_memory else block.is_first):
            for r, at in places:
                at_partial = partial.start + r * stride + at
                p.store(sums[r], at, loops.load(partial.buffer, at_partial, lanes), lanes)
        flipped = self.arithmetic.flips and excess is None
        own = self._multiply(sums, left, panel, right, block, with_excess=flipped)
        if own is not None:
            excess = Partial(own, loops.int64(0), panel.width)
        for r, at in places:
            value = loops.load(sums[r], at, lanes)
            if excess is not None:
                value = value - loops.load(excess.buffer, excess.start + at, lanes)
            p.store(partial.buffer, partial.start + r * stride + at, value, lanes)

    def _multiply(
        self,
        sums: list[Buffer],
        left: Left,
        panel: Panel,
        right: RightRow,
        block: Block,
        *,
        with_excess: bool,
    ) -> Buffer | None:
        """Add the products of a block to the sums of a tile. With `with_excess`, also return the excess of flipped
        words."""
        p, a, lanes = self.program, self.arithmetic, panel.lanes
        excess = p.allocate("excess", panel.width, self.dtype) if with_excess else None
        if excess is not None:
            for at, _ in panel.vectors():
                p.store(excess, at, loops.zero(self.dtype, lanes), lanes)

        def add(total: Buffer, at: int, words: Expr, by: Expr) -> None:
            p.store(total, at, a.add_product(loops.load(total, at, lanes), words, by), lanes)

        with block.words(p) as places:
            for k in places:
                rights = [
                    (at, p.let("right", words))
                    for (at, _), words in zip(panel.vectors(), right(k), strict=True)
                ]
                for r, total in enumerate(sums):
                    words = p.let("left", left.word(r, k))
                    for at, by in rights:
                        add(total, at, words, by)
                if excess is not None:
                    for at, by in rights:
                        add(excess, at, a.flipped(), by)
        return excess

    def store(
        self,
        row: Expr,
        rows: Expr,
        cut: Cut,
        partial: Partial,
        known: Panel | None = None,
    ) -> None:
        """Finish this many rows of a tile's sums and write them to a panel of the output. `known` is that panel, if it
        is known which of its columns exist."""
        p, lanes = self.program, self.tiling.lanes
        for panel in self._panels(cut) if known is None else [known]:
            # A loop instead of one store per row: LLVM takes minutes to choose addresses for a dozen rows of unknown
            # length.
            with p.loop("r", rows) as r:
                target = self.out_base + (row + r) * self.form.row.out + panel.start
                target = p.let("target", target)
                sums_at = loops.simplify(partial.start + r * partial.stride)
                if self.finish is not None:
                    place = self.batch_place | self.finish.row_place(row + r)
                    for at, mask in panel.vectors():
                        total = Total(partial.buffer, sums_at + at)
                        self.finish.store(total, place, panel.start + at, target + at, lanes, mask)
                else:
                    for at, mask in panel.vectors():
                        value = loops.load(partial.buffer, sums_at + at, lanes)
                        p.store(self.out, target + at, value, lanes, mask)

    def _panel(self, cut: Cut, vectors: int) -> Panel:
        """The panel with the first vectors of these columns, as if all of them existed."""
        return Panel(cut.start, cut.step, self.tiling.lanes, (None,) * vectors)

    def _panels(self, cut: Cut) -> Iterator[Panel]:
        """The panel, for code that is written twice: for whole panels and for ragged ones. With a branch at every
        access instead, LLVM would duplicate each loop for each path through the others.
        """
        p, lanes, width = self.program, self.tiling.lanes, cut.width
        vectors = width // lanes
        is_exact = loops.constant(loops.floormod(self.columns, width)) == 0
        inside = True if is_exact else cut.start + width <= cut.end
        with p.when(inside):
            yield self._panel(cut, vectors)
        with p.otherwise(inside):
            left = p.let("left", loops.clamped_int32(cut.end - cut.start, width))
            # A single vector at the end of a wide panel saves most of its reads.
            for above, upto in ((0, 1), (1, vectors)) if vectors > 4 else ((0, vectors),):
                with p.when(loops.between(left, above * lanes, upto * lanes)):
                    masks = [loops.first_lanes(left - n * lanes, lanes) for n in range(upto)]
                    yield Panel(cut.start, cut.step, lanes, tuple(masks))

    def products(self) -> Expr:
        """The number of products in the batch."""
        products = loops.int64(1)
        for dim in self.form.batch:
            products = loops.simplify(products * dim.extent)
        return products

    @contextmanager
    def tasks(self, pieces: Expr) -> Iterator[Expr]:
        """The parallel loop over all pieces of all products. Yields the number of the piece in its product."""
        p, form = self.program, self.form
        pieces = p.let("pieces", pieces)
        total = p.let("tasks", loops.simplify(self.products() * pieces))
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
            self.out_base, self.factors.lhs_base, self.factors.rhs_base = (
                p.let("base", loops.simplify(base + substitute(operand.base, values)))
                for base, operand in zip(bases, (form.out, form.lhs, form.rhs), strict=True)
            )
            self.batch_place = values
            if self.factors.formula is not None:
                self.factors.formula.place = values
            yield piece
