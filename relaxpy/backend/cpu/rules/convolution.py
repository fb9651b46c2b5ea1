"""Convolutions on CPUs as implicit matrix products (im2col): panels of the right-hand factor are gathered from data.

The columns of the product are the output pixels of all images, divided into panels two vector registers wide. A task
computes some neighbouring panels for a range of channels. For a block of the depth (at most `DEPTH_BLOCK` window
positions) it gathers the input elements of its pixels into contiguous memory that stays in the L2 cache. The
micro-kernel multiplies a tile of up to 8 channels (6 on targets with 16 vector registers) by one panel. The sums of the
tile are in vector registers during a block, and in the task's memory between blocks.

Elements are gathered in runs: neighbouring pixels of a row of the image (of the whole image, where the window is one
position) read contiguous elements of data, or elements with the stride of the convolution, so that each window position
takes a few vector loads and stores. Runs are written from left to right in whole vectors; each overwrites the excess
lanes of the previous one. Positions in the padding are masked out of the loads, without branches.

The columns of a panel that contains pixels of two images are stored in two parts, so that small images (7×7) fill
vectors in a batch. Every element is accumulated in the order of the depth, one fused multiply-add at a time: a result
depends on its window only, neither on the batch nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.row_tiles import TILE_HEIGHTS, tile_height
from relaxpy.backend.cpu.rules.matmul_finish import Finish, Total
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.knobs import knob
from relaxpy.tir.analyzer import equal
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, Program, Stmt
from relaxpy.tir.programs.vectors import converted, every_second
from relaxpy.tir.recognise.contraction import Epilogue, Operand
from relaxpy.tir.recognise.convolution import (
    SUMMED_IN,
    ConvolutionForm,
    Walk,
    prefers_channels,
    read_convolution,
)
from relaxpy.tir.recognise.matmul import Dimension

VECTORS = 2
"""Vector registers across a panel: with 8 rows 16 sums, which hide the latency of the multiply-adds."""

DEPTH_BLOCK = 256
"""The largest depth of a gathered panel: with AVX-512 32 KiB."""

MOST_PANELS = 4
"""The most panels of a task. The weights are read from the outer caches once for all of them."""

MOST_TILES = 64
"""The most row tiles of a task; it has memory for this many."""

SMALL_WEIGHTS = 1 << 17
"""The most elements of a group's weights that stay in the second-level cache beside everything else."""

FEW_TASKS = 16
"""With fewer tasks than this the channels are divided too, although each part then gathers the panels anew."""

LEAST_TILES = 16
"""The fewest row tiles of such a part."""

LEAST_ROWS = 4
"""With fewer channels gathering costs more than it saves."""


def convolution_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is a convolution of at least `LEAST_ROWS` channels a group, or None.

    The result has one kind of parallel loop, over tasks; run serially it computes the same bits.
    """
    form = read_convolution(func)
    if form is None or target.kind != "llvm":
        return None
    if loops.is_constant(form.weight.strides[form.row], 1) and prefers_channels(func):
        return None
    rows = loops.constant(form.axes[form.row].extent)
    if rows is not None and rows < LEAST_ROWS:
        return None
    height = tile_height(target)
    if form.weight.panels is not None:
        if form.weight.panels.width not in TILE_HEIGHTS or form.weight.panels.width > height:
            return None
        height = (
            form.weight.panels.width
        )  # the smaller height if a processor with fewer registers reads the weight too
    lanes = target.lanes(SUMMED_IN[form.dtype])
    return Arrangement(lambda: loops.finished(func, _Writer(form, lanes, height).write()))


@dataclass(frozen=True, eq=False)
class _Sums:
    """The description of the sums for `Finish`."""

    epilogue: Epilogue | None
    out: Operand
    row: Dimension
    column: Dimension


@dataclass(frozen=True, eq=False)
class _Runs:
    """Tables of a panel's runs, one entry per run. A run is a sequence of neighbouring pixels along the last spatial
    axis."""

    count: Expr
    place: Buffer
    """Offset in the panel."""
    length: Buffer
    base: Buffer
    """The element of data that the first pixel reads at position 0 of the depth."""
    at: tuple[Buffer | None, ...]
    """The position along each padded dimension of data, and along the last one."""


@dataclass(frozen=True, eq=False)
class _Task:
    """The work of a task: panels from `first` to `last`, tiles of rows from `tile` to `end`."""

    first: Expr
    last: Expr
    tile: Expr
    end: Expr


class _Writer:
    """Writes the program of one convolution."""

    def __init__(self, form: ConvolutionForm, lanes: int, height: int) -> None:
        self.form, self.lanes, self.height, self.dtype = form, lanes, height, form.dtype
        self.width = VECTORS * lanes
        self.program = p = Program()
        self.out = p.flat_view(form.out.buffer)
        self.data = p.flat_view(form.data)
        self.weight = p.flat_view(form.weight.buffer)
        self.rows = form.axes[form.row].extent
        self.depth = p.let("depth", _product(form.extents(form.depth)))
        self.columns = p.let("columns", _product(form.extents(form.columns)))
        self.merged = 2 if _are_lines_joined(form) else 1
        self.run = p.let("run", _product(form.extents(form.columns[-self.merged :])))
        image, self.images = self._image_axes()
        self.pixels = p.let("pixels", _product(form.extents(image)))
        zero = loops.int64(0)
        axis = form.axes[form.row]
        row = Dimension(axis.extent, self._stride(form.out, form.row), zero, zero, (axis,))
        column = Dimension(
            self.pixels, loops.int64(1), zero, zero, tuple(form.axes[n] for n in image)
        )
        sums = _Sums(form.epilogue, form.out, row, column)
        self.finish = Finish(p, sums, self.out) if form.epilogue is not None else None
        self.row_stride = row.out
        # Set by `_tasks`: the offset of the task's group in each buffer, and the values of the group's axes.
        self.out_base = self.data_base = self.weight_base = zero
        self.place: dict[Expr, Expr] = {}

    def write(self) -> Stmt:
        """Write the whole body."""
        p, width = self.program, self.width
        most = knob("depth_block", DEPTH_BLOCK, (64, 128, 512))
        block = min(most, loops.constant(self.depth) or most)
        blocks = p.let("blocks", loops.maximum(1, loops.ceildiv(self.depth, block)))
        with self._tasks() as task:
            # A panel's last store may exceed it by a panel's width, into the first row of the next.
            size = MOST_PANELS * block * width + width
            packed = p.allocate("packed", size, self.dtype)
            partial = p.allocate(
                "partial", MOST_PANELS * MOST_TILES * self.height * width, self.dtype
            )
            with p.loop("block", blocks) as number:
                start = p.let("k0", loops.simplify(number * block))
                count = p.let("count", loops.minimum(self.depth - start, block))
                with p.loop("panel", task.last - task.first) as panel:
                    first = p.let("pixel", loops.simplify((task.first + panel) * width))
                    into = p.let("into", loops.simplify(panel * (block * width)))
                    self._gather(packed, into, first, start, count)
                self._tiles(task, packed, partial, block, number, blocks, start, count)
        return p.body()

    @contextmanager
    def _tasks(self) -> Iterator[_Task]:
        """The parallel loop over all pieces of all groups."""
        p, form = self.program, self.form
        groups = p.let("groups", _product(form.extents(form.batch)))
        panels = p.let("panels", loops.ceildiv(self.columns, self.width))
        tiles = p.let("tiles", loops.ceildiv(self.rows, self.height))
        # Weights that stay in the second-level cache need not be shared by panels; others are read as rarely as
        # possible.
        many = loops.floordiv(groups * panels, FEW_TASKS)
        large = self.rows * self.depth > SMALL_WEIGHTS
        most = loops.minimum(loops.select(large, panels, many), MOST_PANELS)
        strips = p.let("strips", loops.ceildiv(panels, loops.maximum(1, most)))
        wide = p.let("wide", loops.ceildiv(panels, loops.maximum(1, strips)))
        # As few parts of the rows as there is memory for; more if there are few strips.
        needed = loops.maximum(1, loops.ceildiv(tiles, MOST_TILES))
        useful = loops.minimum(
            loops.ceildiv(FEW_TASKS, loops.maximum(1, groups * strips)),
            loops.floordiv(tiles, LEAST_TILES),
        )
        parts = p.let("parts", loops.maximum(needed, useful))
        chunk = p.let("chunk", loops.ceildiv(tiles, parts))
        with p.loop("task", loops.simplify(groups * parts * strips), parallel=True) as task:
            strip = p.let("strip", loops.floormod(task, strips))
            left = p.let("left", loops.floordiv(task, strips))
            part = p.let("part", loops.floormod(left, parts))
            self._place_group(p.let("group", loops.floordiv(left, parts)))
            first = p.let("first_panel", loops.simplify(strip * wide))
            last = p.let("last_panel", loops.minimum(first + wide, panels))
            tile = p.let("first_tile", loops.minimum(part * chunk, tiles))
            end = p.let("last_tile", loops.minimum(tile + chunk, tiles))
            yield _Task(first, last, tile, end)

    def _place_group(self, group: Expr) -> None:
        """Compute the offsets of a group in all buffers."""
        p, form = self.program, self.form
        coordinates = self._coordinates(group, form.batch)
        self.place = {form.axes[n].var: value for n, value in coordinates.items()}
        out, weight = form.out.base, form.weight.base
        data = _sum(walk.base * walk.stride for walk in form.walks)
        for n, value in coordinates.items():
            out = out + value * self._stride(form.out, n)
            weight = weight + value * self._stride(form.weight, n)
            data = data + value * _data_stride(form.walks, n)
        self.out_base = p.let("out_base", loops.simplify(out))
        self.weight_base = p.let("weight_base", loops.simplify(weight))
        self.data_base = p.let("data_base", loops.simplify(data))

    def _gather(self, packed: Buffer, into: Expr, first: Expr, start: Expr, count: Expr) -> None:
        """Gather rows `start` to `start + count` of the panel of pixels from `first` on, to `packed[into:]`."""
        p, form, width = self.program, self.form, self.width
        with p.scope():
            runs = self._runs(first)
            odometer = self._odometer(start)
            walks = [n for n, at in enumerate(runs.at) if at is not None]
            with p.loop("k", count) as k:
                place = [loops.load(digit, 0) for digit in odometer]
                offset = p.let(
                    "offset",
                    _sum(
                        v * _data_stride(form.walks, n)
                        for n, v in zip(form.depth, place, strict=True)
                    ),
                )
                moved = {n: p.let("moved", _moved(form.walks[n], form.depth, place)) for n in walks}
                row = p.let("row", loops.simplify(into + k * width))
                with p.loop("run", runs.count) as run:
                    target = p.let("target", row + loops.load(runs.place, run))
                    source = p.let("source", loops.load(runs.base, run) + offset)
                    self._copy_run(packed, target, source, runs, run, moved)
                self._advance(odometer)

    def _runs(self, first: Expr) -> _Runs:
        """The runs of the panel that begins at column `first`."""
        p, form, width = self.program, self.form, self.width
        inner = form.columns[-1]
        guarded = [n for n, walk in enumerate(form.walks) if walk.is_guarded]
        names = sorted({*guarded, len(form.walks) - 1})
        place, length, base = (
            p.allocate(name, width, "int64") for name in ("place", "length", "base")
        )
        at = {n: p.allocate(f"at{n}", width, "int64") for n in names}
        stop = p.let("stop", loops.minimum(first + width, self.columns))
        begin = p.let("begin", loops.floordiv(first, self.run))
        count = p.let("runs", loops.simplify(loops.floordiv(stop - 1, self.run) - begin + 1))
        with p.loop("run", count) as run:
            line = p.let("line", begin + run)
            x0 = p.let("x0", loops.maximum(0, first - line * self.run))
            x1 = p.let("x1", loops.minimum(self.run, stop - line * self.run))
            p.store(place, run, loops.simplify(line * self.run + x0 - first))
            p.store(length, run, loops.simplify(x1 - x0))
            outer = self._coordinates(line, form.columns[: -self.merged])
            coordinates = {**outer, inner: x0}
            start = self.data_base
            for n, value in coordinates.items():
                start = start + value * _data_stride(form.walks, n)
            p.store(base, run, loops.simplify(start))
            for n, table in at.items():
                walk = form.walks[n]
                axes = [*coordinates, *form.batch]
                values = [
                    *coordinates.values(),
                    *(self.place[form.axes[g].var] for g in form.batch),
                ]
                p.store(table, run, loops.simplify(walk.base + _moved(walk, axes, values)))
        return _Runs(count, place, length, base, tuple(at.get(n) for n in range(len(form.walks))))

    def _copy_run(
        self,
        packed: Buffer,
        target: Expr,
        source: Expr,
        runs: _Runs,
        run: Expr,
        moved: dict[int, Expr],
    ) -> None:
        """Copy the data that a run reads at one position of the depth, in whole vectors: always a panel's width,
        whatever the length of the run."""
        p, form, step = self.program, self.form, self.form.step
        last = len(form.walks) - 1
        at = {
            n: p.let("at", loops.load(table, run) + moved[n])
            for n, table in enumerate(runs.at)
            if table is not None
        }
        size = form.walks[last].size if self.merged == 1 else self.run
        exists: Expr | None = None
        for n, place in at.items():
            if n != last:
                here = loops.both(place >= 0, place < form.walks[n].size)
                exists = here if exists is None else loops.both(exists, here)
        # Nothing is read of a row that does not exist.
        size = size if exists is None else p.let("size", loops.select(exists, size, 0))
        if step > 2:
            with p.loop("x", loops.load(runs.length, run)) as x:
                here = loops.both(at[last] + x * step >= 0, at[last] + x * step < size)
                value = loops.guarded(here, loops.load(self.data, source + x * step))
                p.store(packed, target + x, value.astype(self.dtype))
            return
        for v in range(VECTORS):
            offset = v * self.lanes * step
            value = self._vector(source + offset, at[last] + offset, size)
            p.store(packed, target + v * self.lanes, value, self.lanes)

    def _vector(self, source: Expr, at: Expr, size: Expr) -> Expr:
        """The elements from `source` on, with stride `step`, converted to the accumulator type. `at` is the position of
        the first one in a dimension of `size`; zeros for positions outside of it."""
        step, lanes = self.form.step, self.lanes
        parts: list[Expr] = []
        for n in range(step):
            mask = loops.lanes_within(at + n * lanes, size, lanes)
            value = loops.load(self.data, source + n * lanes, lanes, mask)
            parts.append(converted(value, self.dtype, lanes, mask))
        return parts[0] if step == 1 else every_second(*parts, lanes)

    def _odometer(self, start: Expr) -> list[Buffer]:
        """The position along each axis of the depth, at `start`, in memory that `_advance` counts up."""
        p = self.program
        digits = [p.allocate(f"digit{n}", 1, "int64") for n in self.form.depth]
        coordinates = self._coordinates(start, self.form.depth)
        for digit, n in zip(digits, self.form.depth, strict=True):
            p.store(digit, 0, coordinates[n])
        return digits

    def _advance(self, odometer: Sequence[Buffer]) -> None:
        """Advance by one position, without divisions."""
        p, form = self.program, self.form
        carry: Expr = loops.int64(1)
        for digit, n in reversed(list(zip(odometer, form.depth, strict=True))):
            value = p.let("digit", loops.load(digit, 0) + carry)
            if n == form.depth[0]:
                p.store(digit, 0, value)
                return
            over = p.let("over", value >= form.axes[n].extent)
            p.store(digit, 0, loops.select(over, 0, value))
            carry = loops.select(over, 1, 0)

    def _tiles(
        self,
        task: _Task,
        packed: Buffer,
        partial: Buffer,
        block: int,
        number: Expr,
        blocks: Expr,
        start: Expr,
        count: Expr,
    ) -> None:
        """Multiply all tiles of the task by its panels, over one block of the depth."""
        p, width, height = self.program, self.width, self.height
        whole = loops.floordiv(self.rows, height)
        is_first, is_last = loops.equals(number, 0), loops.equals(number, blocks - 1)

        def by_panels(tile: Expr, rows: int) -> None:
            with p.loop("panel", task.last - task.first) as panel:
                first = p.let("pixel", loops.simplify((task.first + panel) * width))
                source = p.let("source", loops.simplify(panel * (block * width)))
                own = p.let("own", ((tile - task.tile) * MOST_PANELS + panel) * (height * width))
                for vectors in self._widths(first):
                    line = self._weights(tile, start)
                    sums = _TileSums(rows, vectors, partial, own)
                    self._multiply(sums, line, packed, source, count, is_first)
                    with p.when(is_last):
                        self._store(sums, tile, first)

        with p.loop("tile", loops.minimum(task.end, whole) - task.tile) as tile:
            by_panels(p.let("t", task.tile + tile), height)
        rest = loops.simplify(self.rows - whole * height)
        with p.when(loops.both(task.end > whole, rest > 0)):
            known = loops.constant(rest)
            by_panels(p.let("t", whole), known or height)

    def _widths(self, first: Expr) -> Iterator[int]:
        """The number of vectors of a panel, for code that is written once for each number."""
        p, known = self.program, loops.constant(loops.floormod(self.columns, self.width))
        left = p.let("left", self.columns - first)
        full = True if known == 0 else left > (VECTORS - 1) * self.lanes
        with p.when(full):
            yield VECTORS
        for vectors in range(1, VECTORS):
            with p.when(
                False
                if full is True
                else loops.between(left, (vectors - 1) * self.lanes, vectors * self.lanes)
            ):
                yield vectors

    def _weights(self, tile: Expr, start: Expr) -> list[Expr]:
        """The offsets of a tile's rows in the weights, at position `start` of the depth; rows past the end repeat the
        last one."""
        p, form = self.program, self.form
        base = self.weight_base + start * form.depth_stride
        if form.weight.panels is not None:
            line = p.let("line", base + tile * form.weight.panels.stride)
            return [loops.simplify(line + r) for r in range(self.height)]
        stride = self._stride(form.weight, form.row)
        lines: list[Expr] = []
        for r in range(self.height):
            row = loops.minimum(tile * self.height + r, self.rows - 1)
            lines.append(p.let(f"line{r}", loops.simplify(base + row * stride)))
        return lines

    def _multiply(
        self,
        sums: _TileSums,
        lines: Sequence[Expr],
        packed: Buffer,
        source: Expr,
        count: Expr,
        is_first: Expr,
    ) -> None:
        """Add a block of the depth to the sums of a tile."""
        p, lanes = self.program, self.lanes
        # One buffer per row: a single one would be too large for the stack, and so for registers.
        rows = [p.allocate(f"sums{r}", sums.vectors * lanes, self.dtype) for r in range(sums.rows)]
        places = [(r, v * lanes) for r in range(sums.rows) for v in range(sums.vectors)]
        with p.when(is_first):
            for r, at in places:
                p.store(rows[r], at, loops.zero(self.dtype, lanes), lanes)
        with p.otherwise(is_first):
            for r, at in places:
                value = loops.load(sums.buffer, sums.start + r * self.width + at, lanes)
                p.store(rows[r], at, value, lanes)
        with p.loop("k", count) as k:
            at = p.let("at", source + k * self.width)
            rights = [
                p.let("right", loops.load(packed, at + v * lanes, lanes))
                for v in range(sums.vectors)
            ]
            step = p.let("step", k * self.form.depth_stride)
            for r in range(sums.rows):
                left = p.let("left", loops.load(self.weight, lines[r] + step).astype(self.dtype))
                for v, right in enumerate(rights):
                    product = loops.broadcast(left, lanes) * right
                    p.store(
                        rows[r], v * lanes, loops.load(rows[r], v * lanes, lanes) + product, lanes
                    )
        for r, at in places:
            value = loops.load(rows[r], at, lanes)
            p.store(sums.buffer, sums.start + r * self.width + at, value, lanes)

    def _store(self, sums: _TileSums, tile: Expr, first: Expr) -> None:
        """Store the finished sums of a tile: for every image, the part that is in the panel."""
        p, form, lanes = self.program, self.form, self.lanes
        width = sums.vectors * lanes
        count = p.let("rows", loops.minimum(self.rows - tile * self.height, sums.rows))
        stop = p.let("stop", loops.minimum(first + width, self.columns))
        begin = p.let("begin", loops.floordiv(first, self.pixels))
        images = p.let("images", loops.floordiv(stop - 1, self.pixels) - begin + 1)
        with p.loop("image", images) as number:
            image = p.let("image", begin + number)
            pixel = p.let("pixel", loops.simplify(first - image * self.pixels))
            end = p.let("end", loops.minimum(self.pixels, stop - image * self.pixels))
            coordinates = self._coordinates(image, self.images)
            base = self.out_base
            for n, value in coordinates.items():
                base = base + value * self._stride(form.out, n)
            base = p.let("base", loops.simplify(base + pixel))
            place = {**self.place, **{form.axes[n].var: v for n, v in coordinates.items()}}
            whole = p.let("whole", loops.both(pixel >= 0, end >= pixel + width))
            for is_whole in (True, False):
                branch = p.when(whole) if is_whole else p.otherwise(whole)
                with branch, p.loop("r", count) as r:
                    row = p.let("row", tile * self.height + r)
                    target = p.let("target", base + row * self.row_stride)
                    for v in range(sums.vectors):
                        at = pixel + v * lanes
                        window = None
                        if not is_whole:
                            window = tuple(
                                loops.clamped_int32(e - at, lanes) for e in (loops.int64(0), end)
                            )
                        total = Total(
                            sums.buffer, loops.simplify(sums.start + r * self.width + v * lanes)
                        )
                        self._store_vector(total, place, row, at, target + v * lanes, window)

    def _store_vector(
        self,
        total: Total,
        place: dict[Expr, Expr],
        row: Expr,
        pixel: Expr,
        target: Expr,
        window: tuple[Expr, ...] | None,
    ) -> None:
        """Store one vector of finished sums, only the lanes in the window (from, to)."""
        p, lanes = self.program, self.lanes
        mask = None if window is None else loops.lanes_between(*window, lanes)
        if self.finish is None:
            p.store(self.out, target, loops.load(total.buffer, total.start, lanes), lanes, mask)
            return
        place = place | self.finish.row_place(row)
        self.finish.store(total, place, pixel, target, lanes, mask, window)

    def _image_axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The columns' axes that are contiguous in the output (the pixels of an image), and those before them
        (images)."""
        form = self.form
        columns = form.columns
        start = len(columns) - 1
        while start > 0:
            outer, inner = columns[start - 1], columns[start]
            walk = self._stride(form.out, inner) * form.axes[inner].extent
            if not equal(self._stride(form.out, outer), walk):
                break
            start -= 1
        return columns[start:], columns[:start]

    def _coordinates(self, number: Expr, axes: Sequence[int]) -> dict[int, Expr]:
        """Split a flat number into the positions along the axes, the last one fastest."""
        p, form = self.program, self.form
        places: dict[int, Expr] = {}
        for n in reversed(axes[1:]):
            places[n] = p.let("place", loops.floormod(number, form.axes[n].extent))
            number = p.let("number", loops.floordiv(number, form.axes[n].extent))
        if axes:
            places[axes[0]] = number
        return {n: places[n] for n in axes}

    @staticmethod
    def _stride(operand: Operand, axis: int) -> Expr:
        stride = operand.strides[axis]
        return loops.int64(0) if stride is None else stride


@dataclass(frozen=True, eq=False)
class _TileSums:
    """The sums of one tile: rows by vectors, and their memory between blocks."""

    rows: int
    vectors: int
    buffer: Buffer
    start: Expr


def _are_lines_joined(form: ConvolutionForm) -> bool:
    """Do the pixels of a line follow those of the one before, in data as in the output? So they do where the window is
    one position without steps: a run may go on from line to line."""
    if len(form.columns) < 2 or len(form.walks) < 2:
        return False
    for axis, walk in zip(form.columns[-2:], form.walks[-2:], strict=True):
        moving = [n for n, step in enumerate(walk.steps) if step is not None]
        if moving != [axis] or not equal(walk.size, form.axes[axis].extent):
            return False
        if walk.is_guarded or not loops.is_constant(walk.base, 0):
            return False
        if not loops.is_constant(walk.steps[axis], 1):
            return False
    return True


def _product(extents: Sequence[Expr]) -> Expr:
    total = loops.int64(1)
    for extent in extents:
        total = loops.simplify(total * extent)
    return total


def _sum(terms: Iterator[Expr]) -> Expr:
    total = loops.int64(0)
    for term in terms:
        total = total + term
    return loops.simplify(total)


def _data_stride(walks: Sequence[Walk], axis: int) -> Expr:
    """The stride of an axis in data, in elements."""
    return _sum(walk.stride * step for walk in walks if (step := walk.steps[axis]) is not None)


def _moved(walk: Walk, axes: Sequence[int], places: Sequence[Expr]) -> Expr:
    """The offset along a dimension of data for these positions of the axes."""
    return _sum(
        place * step
        for axis, place in zip(axes, places, strict=True)
        if (step := walk.steps[axis]) is not None
    )
