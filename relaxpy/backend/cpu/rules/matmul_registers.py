"""Matrix products whose sums stay in registers from the first product to the result: the depth is known, and the
right-hand factor is packed.

The tiles of `relaxpy.backend.cpu.rules.matmul` put their sums into memory, from which a loop finishes and stores them:
the depth may have several blocks, and rows any distance. Where a sum takes 16 to a few hundred multiply-adds, as in
convolutions of one pixel, that costs as much as the products. Here the epilogue is written out for each vector of a
tile.

The vectors of the columns are divided evenly among the fewest panels that are at most as wide as a tile: of 80 columns
in vectors of 16, a tile of three and one of two. So no vector of padding is multiplied. A task goes down its rows, and
for each tile of them along its panels: rows of the output are written whole, and rows of the left-hand factor are read
from the first-level cache by all panels but the first. The panels of a task stay in the second-level cache.

The last tile of all rows begins earlier, so that it is whole, and does not store again what another one stores.

Large results are streamed (`relaxpy.backend.cpu.rules.streaming`): their lines do not come from memory first, or from
the cache of a core that has read what was there before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.rules.matmul_factors import widens
from relaxpy.backend.cpu.rules.matmul_finish import Total
from relaxpy.backend.cpu.rules.streaming import Stream
from relaxpy.backend.cpu.target import CACHE_LINE
from relaxpy.backend.knobs import knob
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr
from relaxpy.tir.recognise.matmul import MatmulForm
from relaxpy.tir.tvm import tirx, tvm

if TYPE_CHECKING:
    from relaxpy.backend.cpu.rules.matmul import ProductWriter

SHARE_BYTES = 1 << 18
"""About the most bytes of the panels of a task: they stay in a second-level cache beside rows."""

CHUNK_ROWS = 192
"""The most rows of a task. Each task reads or packs its panel anew, so it should reuse it often; its rows of a block
stay in a second-level cache of 1 MiB."""

TASKS = 32
"""With fewer tasks than this, those of fewer rows are made, and then those of fewer panels."""

LOW = 4
"""Rows of a low tile, for the last rows: 16, 64 and 256 rows are a multiple of 6 and these."""

STEPS = 2
"""Places of the depth that are written out one after the other, where their number divides the depth."""

AHEAD, AHEAD_OF_DEEP = 1024, 4096
"""The distance in bytes between what is read of a panel and what is prefetched; if panels are deep. The weights of a
model come from the third cache."""

TALL = 4
"""Threads divide rows where there are at least a fourth as many as columns: what a thread has written it reads next."""

DEEP = 128
"""The depth from which on the lines of a tile's result are prefetched before its products: there are enough products to
wait for them."""


def stays_in_registers(form: MatmulForm, arithmetic: Arithmetic, deepest: int) -> bool:
    """Can this rule write the product? Elements are multiplied as they are in memory, the sizes of all rows are known,
    and the depth is at most `deepest`."""
    if form.panels is None or widens(form, arithmetic) or arithmetic.group > 1:
        return False
    if arithmetic.flips or arithmetic.lhs != arithmetic.total:
        return False
    depth, columns = loops.constant(form.depth.extent), loops.constant(form.column.extent)
    strides = (form.row.lhs, form.row.out, form.depth.lhs)
    if not columns or not depth or depth > deepest:
        return False
    return None not in map(loops.constant, strides)


@dataclass(frozen=True)
class _Group:
    """Neighbouring panels of one width: those with numbers from `first` on."""

    first: int
    count: int
    width: int
    """Vectors of a panel."""
    start: int
    """The first vector of the first one."""


def divided(vectors: int, widest: int) -> list[_Group]:
    """Vectors in the fewest panels of at most `widest` vectors; their widths differ by at most 1."""
    count = -(-vectors // widest)
    width, wider = divmod(vectors, count)
    groups = [
        _Group(0, wider, width + 1, 0),
        _Group(wider, count - wider, width, wider * (width + 1)),
    ]
    return [group for group in groups if group.count]


class RegisterWriter:
    """Writes the program of many rows of one product."""

    def __init__(self, product: ProductWriter, height: int, widest: int) -> None:
        self.product, self.height = product, height
        self.program, self.form, self.factors = product.program, product.form, product.factors
        self.lanes, self.dtype = product.tiling.lanes, product.dtype
        self.rows = product.rows
        self.columns = loops.constant(product.columns) or 0
        self.groups = divided(-(-self.columns // self.lanes), widest)
        self.panels = sum(group.count for group in self.groups)
        self.size = tvm.DataType(product.arithmetic.rhs).bits // 8
        self.depth = loops.constant(self.form.depth.extent) or 1
        self.is_deep = self.depth >= DEEP
        self.ahead = (AHEAD_OF_DEEP if self.is_deep else AHEAD) // self.size
        self.stream = self._stream()

    def _stream(self) -> Stream | None:
        """The result, if it may be large, and the vectors of a row are whole cache lines where its first one is."""
        form, out, target = self.form, self.product.out, self.product.target
        line = CACHE_LINE * 8 // tvm.DataType(str(out.dtype)).bits
        stride, base = loops.constant(form.row.out), loops.constant(form.out.base)
        if self.lanes != line or stride is None or stride % line or self.columns % line:
            return None
        if form.batch or base != 0 or not self.is_deep:
            return None
        least = knob("streamed", 2 * target.second_level_bytes, (1 << 20, 1 << 25))
        nbytes = loops.simplify(self.rows * self.columns * loops.int64(CACHE_LINE // line))
        return Stream.to(self.program, target, out, nbytes, least)

    def write(self) -> None:
        """Write the tasks, for more rows than a tile has."""
        p = self.program
        tiles = p.let("tiles", loops.ceildiv(self.rows, self.height))
        chunk, share = self._task_sizes(tiles)
        chunks = p.let("chunks", loops.ceildiv(tiles, chunk))
        shares = p.let("shares", loops.ceildiv(self.panels, share))
        # Each thread begins with a half of the rows, or of the columns, whichever are more.
        is_tall = self.rows >= self.columns
        with self.product.tasks(loops.simplify(chunks * shares)) as number:
            by_rows = loops.floordiv(number, shares), loops.floormod(number, shares)
            by_panels = loops.floormod(number, chunks), loops.floordiv(number, chunks)
            own = [loops.select(is_tall, a, b) for a, b in zip(by_rows, by_panels, strict=True)]
            first = p.let("first_tile", own[0] * chunk)
            last = p.let("last_tile", loops.minimum(first + chunk, tiles))
            begin = p.let("first_panel", own[1] * share)
            end = p.let("end_panel", loops.minimum(begin + share, self.panels))
            with p.loop("tile", last - first) as tile:
                new = p.let("new", (first + tile) * self.height)
                for height, condition in self._heights(new):
                    with p.when(condition):
                        row = p.let("i", loops.minimum(new, self.rows - height))
                        for group in self.groups:
                            self._panels(group, height, row, new - row, begin, end)

    def _task_sizes(self, tiles: Expr) -> tuple[Expr, Expr]:
        """The tiles of rows and the panels of a task."""
        p, widest = self.program, self.groups[0].width * self.lanes
        share = max(1, min(self.panels, SHARE_BYTES // (self.depth * widest * self.size)))
        fewest = -(-self.panels // share)
        wanted = loops.ceildiv(TASKS, loops.maximum(1, self.product.products() * fewest))
        chunk = loops.minimum(CHUNK_ROWS // self.height, loops.floordiv(tiles, wanted))
        chunks = loops.maximum(1, loops.ceildiv(tiles, loops.maximum(1, chunk)))
        chunk = p.let("chunk_tiles", loops.maximum(1, loops.ceildiv(tiles, chunks)))
        tasks = self.product.products() * loops.ceildiv(tiles, chunk)
        shares = loops.minimum(self.panels, loops.ceildiv(TASKS, loops.maximum(1, tasks)))
        shares = loops.maximum(fewest, shares)
        return chunk, p.let("share", loops.maximum(1, loops.ceildiv(self.panels, shares)))

    def _heights(self, new: Expr) -> Iterator[tuple[int, Expr | bool]]:
        """The heights of tiles, and when each is used: a low one for the last rows if they are so few."""
        known = loops.constant(self.rows)
        rest = None if known is None else known % self.height
        if rest == 0 or (rest is not None and rest > LOW):
            yield self.height, True
            return
        yield self.height, self.rows - new > LOW
        yield LOW, self.rows - new <= LOW

    def _panels(
        self, group: _Group, height: int, row: Expr, skipped: Expr, begin: Expr, end: Expr
    ) -> None:
        """Write the panels of a group that are from `begin` to `end`."""
        p = self.program
        first = p.let("from", loops.maximum(begin, group.first))
        count = loops.maximum(0, loops.minimum(end, group.first + group.count) - first)
        if self.panels == 1:
            first, count = loops.int64(0), loops.int64(1)
        with p.loop("panel", count, about=group.count) as n:
            number = first + n - group.first
            vector = p.let("vector", loops.simplify(number * group.width + group.start))
            self._tile(height, group.width, row, skipped, vector)

    def _tile(self, height: int, width: int, row: Expr, skipped: Expr, vector: Expr) -> None:
        """Write a tile: its products, and its rows from `skipped` on."""
        p, lanes = self.program, self.lanes
        # One buffer per row: a single one would be too large for the stack, and so for registers.
        sums = [p.allocate(f"sums{r}", width * lanes, self.dtype) for r in range(height)]
        for total in sums:
            for v in range(width):
                p.store(total, v * lanes, loops.zero(self.dtype, lanes), lanes)
        column = p.let("column", loops.simplify(vector * lanes))
        masks: list[Expr | None] = [None] * width
        if self.columns % lanes and width == self.groups[-1].width:
            left = loops.clamped_int32(self.columns - (column + (width - 1) * lanes), lanes)
            masks[-1] = loops.first_lanes(p.let("left", left), lanes)
        base = self.product.out_base + row * self.form.row.out + column
        base = p.let("target", loops.simplify(base))
        if self.is_deep:
            self._prefetch_results(height, width, base)
        self._multiply(sums, width, row, vector)
        skipped = p.let("skipped", loops.simplify(skipped))
        for r, total in enumerate(sums):
            with p.when(True if r == height - 1 else skipped <= r):
                self._store(total, row + r, base + r * self.form.row.out, column, masks)

    def _prefetch_results(self, height: int, width: int, base: Expr) -> None:
        """Prefetch the lines that the tile is written to, if they are not streamed, and those of tensors that are added
        to it."""
        p, finish = self.program, self.product.finish
        views = [finish.views[source] for source in finish.aligned] if finish is not None else []
        places = [
            loops.simplify(base + r * self.form.row.out + v * self.lanes)
            for r in range(height)
            for v in range(width)
        ]
        with p.otherwise(self.stream.is_large if self.stream is not None else False):
            for at in places:
                p.prefetch(self.product.out, at, writing=True)
        for view in views:
            for at in places:
                p.prefetch(view, at)

    def _multiply(self, sums: list[Buffer], width: int, row: Expr, vector: Expr) -> None:
        """Add the products of the whole depth to the sums of a tile."""
        p, lanes, factors, form = self.program, self.lanes, self.factors, self.form
        panels = form.panels
        assert panels is not None, "as `stays_in_registers` checked"
        line = p.let("line", loops.simplify(factors.lhs_base + row * form.row.lhs))
        starts: list[Expr] = []
        for v in range(width):
            at = (vector + v) * lanes
            panel, inside = (f(at, panels.width) for f in (loops.floordiv, loops.floormod))
            start = loops.simplify(factors.rhs_base + panel * panels.stride + inside)
            starts.append(p.let("start", start))
        steps = STEPS if len(sums) == self.height and self.depth % STEPS == 0 else 1
        with p.loop("step", self.depth // steps) as step:
            for n in range(steps):
                k = p.let("k", loops.simplify(step * steps + n))
                self._add_products(sums, starts, line, k)

    def _add_products(self, sums: list[Buffer], starts: list[Expr], line: Expr, k: Expr) -> None:
        """Add the products at one place of the depth."""
        p, lanes, factors, form = self.program, self.lanes, self.factors, self.form
        panels = form.panels
        assert panels is not None, "as `stays_in_registers` checked"
        at = p.let("at", loops.simplify(k * panels.width))
        rights = [p.let("right", loops.load(factors.rhs, start + at, lanes)) for start in starts]
        for start in starts:
            p.prefetch(factors.rhs, start + at + self.ahead)
        for r, total in enumerate(sums):
            place = loops.simplify(line + k * form.depth.lhs + r * form.row.lhs)
            left = p.let("left", loops.broadcast(loops.load(factors.lhs, place), lanes))
            for v, right in enumerate(rights):
                value = loops.load(total, v * lanes, lanes) + left * right
                p.store(total, v * lanes, value, lanes)

    def _store(
        self, total: Buffer, row: Expr, target: Expr, column: Expr, masks: list[Expr | None]
    ) -> None:
        """Finish and store the sums of a row."""
        p, lanes, finish, out = self.program, self.lanes, self.product.finish, self.product.out
        stores: list[tirx.BufferStore] = []
        for v, mask in enumerate(masks):
            value, at = loops.load(total, v * lanes, lanes), loops.simplify(target + v * lanes)
            store: tirx.BufferStore | None = None
            if finish is not None:
                # An epilogue of single elements indexes the memory of the sums.
                done = p.allocate("done", lanes, self.dtype)
                p.store(done, 0, value, lanes)
                sums = Total(done, loops.int64(0))
                place = self.product.batch_place | finish.row_place(row)
                if self.stream is not None:
                    store = finish.vector(sums, place, column + v * lanes, at, lanes)
                if store is None:
                    finish.store(sums, place, column + v * lanes, at, lanes, mask)
            elif self.stream is None:
                p.store(out, at, value, lanes, mask)
            else:
                store = tirx.BufferStore(out, value, [tirx.Ramp(at, loops.int64(1), lanes)])
            if store is not None:
                stores.append(tirx.BufferStore(out, p.let("value", store.value), store.indices))
        if self.stream is not None and stores:
            with p.when(self.stream.is_large):
                for store in stores:
                    self.stream.add(store)
            with p.otherwise(self.stream.is_large):
                for store in stores:
                    p.add(store)
