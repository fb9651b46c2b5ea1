"""Direct convolutions on CPUs for results with contiguous channels: packed layouts (NCHW16c) and NHWC.

The micro-kernel is an outer product: a tile is some neighbouring pixels of a row of the result by two vectors of
channels, with the sums in vector registers. At each position of the depth it loads two vectors of the weight and, for
each pixel, one element of data, which is multiplied by both. The width of tiles is the one that suits the length of a
row. The last tile of a row begins earlier and computes some pixels again, which are not stored again.

A task computes some rows of one image for some channels. If windows leave data, it copies what its rows read into
memory of its own, with zeros around, so that the micro-kernel has no conditions. The copy stays in the second-level
cache, and each element of it is read by many products. Tasks that share weights follow one another.

Factors that are narrower than their sums, such as bytes, are multiplied in words (`relaxpy.backend.cpu.arithmetic`): of
neighbouring channels, where the target multiplies groups of these. Then a copy is one of words, which are converted
once, and the weight is in groups (`relaxpy.backend.cpu.row_tiles`).

Every element is accumulated in the order of the weight's memory, one fused multiply-add at a time: a result depends on
its window only, neither on the batch nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.rules.channel_copy import CopyWriter
from relaxpy.backend.cpu.rules.matmul_finish import Finish, Total
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.rules.transpose import transposed
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.knobs import knob
from relaxpy.tir.analyzer import equal
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, Program, Stmt
from relaxpy.tir.recognise.contraction import Epilogue, Operand
from relaxpy.tir.recognise.convolution import SUMMED_IN, ChannelForm, read_channel_convolution
from relaxpy.tir.recognise.matmul import Dimension
from relaxpy.tir.tvm import tirx

VECTORS = 2
"""Vectors of channels across a tile: with 14 pixels 28 sums, which leave a register for each operand."""

HEIGHTS = 3
"""The most rows of a tile: each needs a register for its address."""

LATENCY = 4
"""The fewest pixels of a tile whose sums hide the latency of the multiply-adds."""

TASKS = 16
"""With fewer tasks than this the rows of an image are divided."""

LEAST_TASKS = 8
"""With fewer tasks than this for a product the channels are divided."""

LEAST_ROWS = 4
"""The fewest rows of a task in an image that is divided: it copies the rows around them, too."""

WEIGHT_BYTES = 1 << 20
"""The most bytes of the weights of a task, if it has several pairs of vectors: half of a second-level cache, as they
are read again for each image."""

AHEAD = 16
"""How many positions of the depth ahead a vector of the weight is fetched."""
COPY_BYTES = 1 << 18
"""About the most bytes of the copy of a task, and of its sums if they are transposed, if it has several rows."""


def channel_convolution_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is a convolution with contiguous channels that fill whole vectors, or
    None.

    The result has one parallel loop, over tasks; run serially it computes the same bits.
    """
    if target.kind != "llvm":
        return None
    form = read_channel_convolution(func)
    if form is None:
        return None
    data, weight = str(form.data.dtype), str(form.weight.buffer.dtype)
    arithmetic = Arithmetic.of(data, weight, form.dtype, target)
    lanes = target.lanes(SUMMED_IN[form.dtype])
    pixel = _pixel_axis(form)
    if pixel is None or not _are_vectors(form, arithmetic, lanes):
        return None
    widest = (target.vector_registers - VECTORS - 1) // VECTORS

    def write() -> PrimFunc:
        body = _Writer(form, pixel, arithmetic, widest).write()
        return loops.finished(func, arithmetic.around(body))

    return Arrangement(write)


def _are_vectors(form: ChannelForm, arithmetic: Arithmetic, lanes: int) -> bool:
    """Does the weight have whole vectors of channels, except perhaps for the last one, in the groups that are
    multiplied?"""
    channels, panels = loops.constant(form.axes[form.lane].extent), form.weight.panels
    group = 1 if panels is None else panels.group
    if not channels or not loops.is_constant(form.weight.strides[form.lane], group):
        return False
    if group != arithmetic.group or (form.is_narrow and form.channel_walk is None):
        return False
    if panels is not None:
        return panels.width % lanes == 0
    return channels % lanes == 0 or form.blocks is None


def _pixel_axis(form: ChannelForm) -> int | None:
    """The last axis of the columns, if it moves along one dimension of data by known steps."""
    pixel = form.columns[-1]
    steps = [step for walk in form.walks if (step := walk.steps[pixel]) is not None]
    if len(steps) != 1 or (known := loops.constant(steps[0])) is None or known < 0:
        return None
    return pixel


@dataclass(frozen=True, eq=False)
class _Sums:
    """The description of the sums for `Finish`: columns are channels."""

    epilogue: Epilogue | None
    out: Operand
    row: Dimension
    column: Dimension


@dataclass(frozen=True, eq=False)
class _Source:
    """Where the elements of data are read."""

    buffer: Buffer
    """Data, or a copy of words."""
    base: Expr
    """The element that the first window of the task begins with."""
    strides: Mapping[int, Expr]
    """The stride of each axis that moves along data, in elements; of the one in groups, that of a group."""


@dataclass(frozen=True, eq=False)
class _Task:
    """The work of a task: `rows` rows from row `row` of an image on, `length` pixels of each from `start` on, `panels`
    pairs of vectors from `panel` on."""

    row: Expr
    rows: Expr
    start: Expr
    length: Expr
    panel: Expr
    panels: Expr
    image: Mapping[int, Expr]
    """The position along each axis of the columns before the rows."""


@dataclass(frozen=True, eq=False)
class _Tile:
    """A tile: the element that its first window begins with, and its vectors of channels."""

    start: Expr
    place: Expr
    """The number of its first pixel in the task."""
    below: Expr
    """How many rows of the task are below its first one."""
    places: Sequence[tuple[Expr, Expr]]
    """The block and the first channel in it of each vector."""


@dataclass(frozen=True, eq=False)
class _Done:
    """The finished sums of a row of a tile."""

    sums: Buffer
    first: Expr
    """The number of the row's first pixel among the sums."""
    place: Mapping[int, Expr]
    """The position along each axis of the columns but that of the pixels."""
    x: Expr
    """The first pixel in its row."""
    skipped: Expr
    """The first pixels that are stored already."""
    width: Expr
    places: Sequence[tuple[Expr, Expr]]
    """The block and the first channel in it of each vector."""


@dataclass(frozen=True, eq=False)
class _Line:
    """The finished sums of one channel, for all pixels of a task."""

    sums: Buffer
    start: Expr
    to: Expr
    """The element of the output that the first one is."""
    pixel: Expr
    """The number of that pixel in its image."""
    place: Mapping[Expr, Expr]


_Shape = tuple[int, int]
"""The pixels of a row of a tile, and its rows."""

_Loop = tuple[Expr, Expr, Expr]
"""A loop over the depth: its extent, and its strides in data and in the weight."""


class _Writer:
    """Writes the program of one convolution."""

    def __init__(self, form: ChannelForm, pixel: int, arithmetic: Arithmetic, widest: int) -> None:
        self.form, self.widest, self.dtype = form, widest, form.dtype
        self.arithmetic, self.lanes, self.group = arithmetic, arithmetic.lanes, arithmetic.group
        self.channel_walk = form.channel_walk if form.is_narrow else None
        """The dimension of data that is divided into groups."""
        self.program = p = Program()
        self.out = p.flat_view(form.out.buffer)
        self.data = p.flat_view(form.data)
        self.weight = p.flat_view(form.weight.buffer)
        *others, self.pixel = form.columns
        self.row = others.pop() if others and self._has_rows_along(others[-1]) else None
        self.images = others
        self.is_padded = any(walk.is_guarded for walk in form.walks)
        self.length = self._extent(pixel)
        self.rows = loops.int64(1) if self.row is None else self._extent(self.row)
        self.is_turned = self._has_contiguous_pixels()
        """Are the pixels of an image contiguous in the output? Then sums are transposed before they are stored."""
        self.joined: list[int] = []
        """The axes before that of the pixels whose rows follow one another: together they are one row."""
        self._join_rows()
        # The most rows of a task, and the fewest pixels of one; `_divided` sets them.
        self.most_rows, self.least_length = self.rows, self.length
        self.channels = loops.constant(self._extent(form.lane)) or 0
        """Channels of a block."""
        blocks = loops.int64(1) if form.blocks is None else self._extent(form.blocks)
        self.in_block = -(-self.channels // self.lanes)
        """Vectors of a block."""
        self.vectors = loops.simplify(blocks * self.in_block)
        self.parts = self._weight_parts()
        channel = columns = self._dimension(form.lane)
        if self.is_turned:
            columns = self._dimension(*([] if self.row is None else [self.row]), pixel)
        sums = _Sums(form.epilogue, form.out, channel, columns)
        self.finish = Finish(p, sums, self.out) if form.epilogue is not None else None

    def _join_rows(self) -> None:
        """Without a window and padding, the rows of an image follow one another, and perhaps images do."""
        form = self.form
        if self.is_copied or self.is_turned:
            return
        data = _strides(form, [walk.stride for walk in form.walks])
        out = dict(enumerate(form.out.strides))
        for axis in reversed(form.columns[:-1]):
            for strides in (data, out):
                inner, outer = strides.get(self.pixel), strides.get(axis)
                if inner is None or outer is None or not equal(outer, inner * self.length):
                    return
            self.joined.insert(0, axis)
            self.length = loops.simplify(self._extent(axis) * self.length)
            self.row, self.rows = None, loops.int64(1)
            self.images = [n for n in form.columns[:-1] if n not in self.joined]

    @property
    def is_copied(self) -> bool:
        """Does a task copy what it reads?"""
        if self.arithmetic.converts_left or loops.constant(self._of_last_group) != 0:
            return True
        return self.is_padded or self.form.channels is not None

    @property
    def _of_last_group(self) -> Expr:
        """The channels of data in a last group that is not whole."""
        if self.group == 1:
            return loops.int64(0)
        return loops.floormod(self._extent(self.form.depth[-1]), self.group)

    def _has_rows_along(self, axis: int) -> bool:
        """Are positions along this axis rows of pixels? Where images are known to have one row, the axis before that of
        the pixels is that of the images: in plain results, rows of a channel do not follow one another along it."""
        if (
            loops.constant(self._out(self.pixel)) != 1
            or loops.constant(self._out(self.form.lane)) == 1
        ):
            return True
        return equal(self._out(axis), self._extent(self.pixel))

    def _has_contiguous_pixels(self) -> bool:
        pixel, row = self._out(self.pixel), None if self.row is None else self._out(self.row)
        if self.form.blocks is not None or loops.constant(pixel) != 1:
            return False
        return row is None or equal(row, self.length)

    def _dimension(self, *axes: int) -> Dimension:
        """Axes as a dimension of the sums."""
        zero, own = loops.int64(0), tuple(self.form.axes[axis] for axis in axes)
        extent = product([axis.extent for axis in own])
        return Dimension(extent, self._out(axes[-1]), zero, zero, own)

    def _sums_size(self, shapes: Sequence[_Shape]) -> Expr:
        """The elements of memory for the sums of a tile, or of all pixels of a task in squares of vectors."""
        if not self.is_turned:
            most = loops.int64(max(wide * high for wide, high in shapes))
        else:
            most = loops.ceildiv(self.most_rows * self.length, self.lanes) * self.lanes
        return loops.simplify(most * (VECTORS * self.lanes))

    def _extent(self, axis: int) -> Expr:
        return loops.int64(self.form.axes[axis].extent)

    def _out(self, axis: int) -> Expr:
        """The stride of an axis in the output."""
        stride = self.form.out.strides[axis]
        return loops.int64(0) if stride is None else stride

    def write(self) -> Stmt:
        """Write the whole body."""
        p, shapes = self.program, self._shapes()
        with self._tasks() as task:
            width, height = self._best(shapes)
            pieces = p.let("pieces", loops.ceildiv(task.length, width))
            stacks = p.let("stacks", loops.ceildiv(task.rows, height))
            source = self._copied(task) if self.is_copied else self._in_place(task)
            self.excess = p.allocate("excess", VECTORS * self.lanes, self.dtype)
            sums = p.allocate("sums", self._sums_size(shapes), self.dtype)
            size = self._sums_size(shapes) if self.is_turned else 1
            turned = p.allocate("turned", size, self.dtype)
            with p.loop("pair", task.panels) as pair:
                first = p.let("vector", loops.simplify((task.panel + pair) * VECTORS))
                for vectors in self._counts(first):
                    places = [self._place(first + v) for v in range(vectors)]
                    if self.arithmetic.flips:
                        self._write_excess(places)
                    with p.loop("stack", stacks) as stack, p.loop("piece", pieces) as piece:
                        row = p.let("row", loops.simplify(stack * height))
                        new = p.let("new", loops.simplify(piece * width))
                        x = p.let("x", loops.minimum(new, task.length - width))
                        start = source.base + (task.start + x) * source.strides[self.pixel]
                        if self.row is not None:
                            start = start + row * source.strides[self.row]
                        start = p.let("start", loops.simplify(start))
                        below = p.let("below", loops.simplify(task.rows - 1 - row))
                        place = p.let("place", loops.simplify(row * self.length + x))
                        tile = _Tile(start, place, below, places)
                        for shape in shapes:
                            known = len(shapes) == 1
                            with p.when(True if known else loops.equals(width, shape[0])):
                                for each in self._parts_of(shape, below):
                                    self._multiply(source, tile, each, sums, len(shapes))
                        if not self.is_turned:
                            count = loops.minimum(height, below + 1)
                            with p.loop("line", loops.simplify(count)) as line:
                                at = {**task.image, **self._position(task.row + row + line)}
                                begin = p.let("begin", loops.simplify(line * width))
                                skipped = p.let("skipped", loops.simplify(new - x))
                                here = loops.simplify(task.start + x)
                                self._store(_Done(sums, begin, at, here, skipped, width, places))
                    if self.is_turned:
                        self._store_turned(task, sums, turned, places)
        return p.body()

    def _shapes(self) -> Sequence[_Shape]:
        """The shapes of tiles that the code exists for."""
        length, most = loops.constant(self.length), self.widest
        tallest = HEIGHTS if self.row is not None else 1
        if length is not None:
            known = [
                (wide, high)
                for high in range(1, tallest + 1)
                for wide in range(1, min(most // high, max(1, length)) + 1)
            ]
            return [min(known, key=lambda s: (_cost(length, s) / s[1], -s[0] * s[1]))]
        found = [(most // n, min(n, tallest)) for n in range(1, HEIGHTS + 1)]
        return [(1, 1), *sorted({shape for shape in found if shape[0] > 1})]

    def _parts_of(self, shape: _Shape, below: Expr) -> Iterator[_Shape]:
        """The shape of a tile with this many rows below its first one, for code that is written once for each: a last
        row alone takes half the time of two."""
        if shape[1] != 2:
            yield shape
            return
        with self.program.when(below > 0):
            yield shape
        with self.program.otherwise(below > 0):
            yield shape[0], 1

    def _best(self, shapes: Sequence[_Shape]) -> tuple[Expr, Expr]:
        """The one of these that takes the least time for a task, not wider than a row: its width and its height."""
        p = self.program
        if len(shapes) == 1:
            return loops.int64(shapes[0][0]), loops.int64(shapes[0][1])
        # In memory: a chain of selections would be written out in all that follows.
        length = self.least_length
        names = ("wide", "high", "least")
        best = [p.allocate(name, 1, "int64") for name in names]
        for shape in shapes:
            stacks = loops.ceildiv(self.most_rows, shape[1])
            cost = p.let("cost", loops.simplify(_cost(length, shape) * stacks))
            better: Expr | bool = True
            if shape is not shapes[0]:
                better = loops.both(cost <= loops.load(best[2], 0), length >= shape[0])
            with p.when(better):
                for place, value in zip(best, (*shape, cost), strict=True):
                    p.store(place, 0, loops.int64(value))
        return p.let("width", loops.load(best[0], 0)), p.let("height", loops.load(best[1], 0))

    @contextmanager
    def _tasks(self) -> Iterator[_Task]:
        """The parallel loop over the tasks."""
        p = self.program
        extents = [self._extent(axis) for axis in self.images]
        images = product(extents)
        panels = p.let("panels", loops.ceildiv(self.vectors, VECTORS))
        parts, strips = self._divided(images, panels)
        images, strips, parts = (
            p.let("images", images),
            p.let("strips", strips),
            p.let("parts", parts),
        )
        with p.loop("task", loops.simplify(parts * images * strips), parallel=True) as task:
            part, image, strip = split_index(p, task, [parts, images, strips])
            divided = self.length if self.joined else self.rows
            first = p.let("first", loops.floordiv(strip * divided, strips))
            count = p.let("rows", loops.floordiv((strip + 1) * divided, strips) - first)
            row, rows, start, length = first, count, loops.int64(0), self.length
            if self.joined:
                row, rows, start, length = loops.int64(0), self.rows, first, count
            panel = p.let("first_panel", loops.floordiv(part * panels, parts))
            last = loops.floordiv((part + 1) * panels, parts)
            places = split_index(p, image, extents) if extents else []
            yield _Task(
                row, rows, start, length, panel, p.let("count", last - panel),
                dict(zip(self.images, places, strict=True)),
            )  # fmt: skip

    def _divided(self, images: Expr, panels: Expr) -> tuple[Expr, Expr]:
        """The parts of the channels, and the strips of an image or of a long row, that are tasks."""
        parts = loops.int64(self.parts)
        needed = loops.ceildiv(loops.int64(TASKS), loops.maximum(1, images * parts))
        if self.joined:
            strips = loops.minimum(needed, loops.floordiv(self.length, 2 * self.widest) * 2)
            strips = loops.maximum(1, strips)
            self.least_length = loops.floordiv(self.length, strips)
            tasks = loops.maximum(1, images * strips)
            more = loops.ceildiv(loops.int64(LEAST_TASKS), tasks)
            return loops.maximum(parts, loops.minimum(more, panels)), strips
        if self.is_copied:
            size = product(self._copy_shape(self.rows))
            bits = int(tirx.const(0, self.dtype).ty.dtype.bits)
            if self.is_turned:
                size = loops.maximum(size, self.rows * self.length * (VECTORS * self.lanes))
            needed = loops.maximum(needed, loops.ceildiv(size * (bits // 8), COPY_BYTES))
        # An even number, so that two threads have the same work.
        most = loops.floordiv(self.rows, 2 * LEAST_ROWS) * 2
        even = loops.minimum(loops.ceildiv(needed, 2) * 2, most)
        strips = loops.maximum(1, loops.select(needed > 1, even, 1))
        self.most_rows = loops.ceildiv(self.rows, strips)
        return parts, strips

    def _weight_parts(self) -> int:
        """The parts that the channels are divided into for large weights, a power of two."""
        size = loops.constant(product([loops.int64(n) for n in self.form.weight.buffer.shape]))
        vectors = loops.constant(self.vectors)
        bits = int(self.form.weight.buffer.dtype.bits)
        most = knob("weight_bytes", WEIGHT_BYTES, (WEIGHT_BYTES // 4, WEIGHT_BYTES * 4))
        parts = 1
        while (
            size and vectors and 4 * parts * VECTORS <= vectors and size * bits // 8 > parts * most
        ):
            parts *= 2
        return parts

    def _counts(self, first: Expr) -> Iterator[int]:
        """The number of vectors of a tile, for code that is written once for each number."""
        p, known = self.program, loops.constant(loops.floormod(self.vectors, VECTORS))
        whole = True if known == 0 else first + VECTORS <= self.vectors
        with p.when(whole):
            yield VECTORS
        with p.otherwise(whole):
            yield 1

    def _place(self, vector: Expr) -> tuple[Expr, Expr]:
        """The block and the first channel in it of a vector."""
        p, size = self.program, self.in_block
        if self.form.blocks is None:
            return loops.int64(0), p.let("channel", loops.simplify(vector * self.lanes))
        block = p.let("block", loops.floordiv(vector, size))
        return block, p.let("channel", loops.simplify(loops.floormod(vector, size) * self.lanes))

    # Where data is read

    def _in_place(self, task: _Task) -> _Source:
        """Data itself."""
        form = self.form
        strides = _strides(form, [walk.stride for walk in form.walks])
        base = _sum([walk.base * walk.stride for walk in form.walks])
        for axis, place in self._first(task).items():
            base = base + place * strides.get(axis, loops.int64(0))
        if self.group > 1:
            strides[form.depth[-1]] = loops.int64(self.group)
        return _Source(self.data, self.program.let("base", loops.simplify(base)), strides)

    def _first(self, task: _Task) -> dict[int, Expr]:
        """The position of the task's first pixel along each axis of the columns."""
        return {**task.image, **({} if self.row is None else {self.row: task.row})}

    def _copy_shape(self, rows: Expr) -> list[Expr]:
        """How far the windows of this many rows reach along each dimension of data; of the one in groups, how many
        groups."""
        moving = {axis: self._extent(axis) for axis in self.form.depth}
        moving[self.pixel] = self.length
        if self.row is not None:
            moving[self.row] = rows
        shape: list[Expr] = []
        for n, walk in enumerate(self.form.walks):
            reach = loops.int64(1)
            for axis, extent in moving.items():
                if (step := walk.steps[axis]) is not None:
                    reach = reach + (extent - 1) * step
            if n == self.channel_walk:
                reach = loops.ceildiv(reach, self.group)
            shape.append(loops.simplify(reach))
        return shape

    def _copied(self, task: _Task) -> _Source:
        """A copy of what the task reads, with zeros where there is no data."""
        p, form = self.program, self.form
        shape = [p.let("reach", size) for size in self._copy_shape(task.rows)]
        first = self._first(task)
        starts = [
            p.let("from", loops.simplify(_moved(walk.base, walk.steps, first)))
            for walk in form.walks
        ]
        # In terms of the parameters' sizes, so that the memory is known before a call.
        most = product(self._copy_shape(self.most_rows))
        writer = CopyWriter(p, form, self.data, self.arithmetic)
        copy, steps = writer.write(shape, starts, most)
        return _Source(copy, loops.int64(0), _strides(form, steps))

    # The micro-kernel

    def _multiply(
        self, source: _Source, tile: _Tile, shape: _Shape, sums: Buffer, variants: int
    ) -> None:
        """Compute the sums of a tile. Rows that do not exist repeat the last one."""
        p, lanes = self.program, self.lanes
        pixels = shape[0] * shape[1]
        lines = [loops.int64(0)]
        for n in range(1, shape[1]):
            down = loops.minimum(n, tile.below) * source.strides[self.row or 0]
            lines.append(p.let("down", loops.simplify(down)))
        step = source.strides[self.pixel]
        offsets = [loops.simplify(line + x * step) for line in lines for x in range(shape[0])]
        width = len(tile.places) * lanes
        # One buffer per pixel: a single one would be too large for the stack, and so for registers.
        own = [p.allocate(f"pixel{x}", width, self.dtype) for x in range(pixels)]
        places = [(x, v) for x in range(pixels) for v in range(len(tile.places))]
        for x, v in places:
            start = loops.zero(self.dtype, lanes)
            if self.arithmetic.flips:
                start = start - loops.load(self.excess, v * lanes, lanes)
            p.store(own[x], v * lanes, start, lanes)
        lines = [p.let("line", self._weight_base(*place)) for place in tile.places]
        is_padded = self.form.weight.panels is not None
        masks = [None if is_padded else self._existing(channel) for _, channel in tile.places]
        *outer, inner = self._depth(source)
        with ExitStack() as stack:
            at, step = tile.start, loops.int64(0)
            for extent, data, weight in outer:
                # The code of only one width runs.
                about = loops.ceildiv(extent, variants if data is outer[0][1] else 1)
                k = stack.enter_context(p.loop("k", extent, about=about))
                at, step = at + k * data, step + k * weight
            extent, data, weight = inner
            k = stack.enter_context(p.loop("k", extent))
            at = p.let("at", loops.simplify(at + k * data))
            step = p.let("step", loops.simplify(step + k * weight))
            vectors = [
                p.let("weight", self._weight_vector(x + step, mask))
                for x, mask in zip(lines, masks, strict=True)
            ]
            for line in lines:
                p.prefetch(self.weight, loops.simplify(line + step + AHEAD * weight))
            for x, offset in enumerate(offsets):
                word = self._word(source, loops.simplify(at + offset))
                for v, vector in enumerate(vectors):
                    total = loops.load(own[x], v * lanes, lanes)
                    total = self.arithmetic.add_product(total, word, vector)
                    p.store(own[x], v * lanes, total, lanes)
        rows = [loops.int64(n * shape[0]) for n in range(shape[1])]
        if self.is_turned:
            rows = [
                tile.place + loops.minimum(n, tile.below) * self.length for n in range(len(rows))
            ]
        for x, v in places:
            number = loops.simplify(rows[x // shape[0]] + x % shape[0])
            value = loops.load(own[x], v * lanes, lanes)
            p.store(sums, loops.simplify((number * VECTORS + v) * lanes), value, lanes)

    def _word(self, source: _Source, at: Expr) -> Expr:
        """A word of data, in each lane: element `at` of a copy, or the elements from there on."""
        p, lanes = self.program, self.lanes
        if self.is_copied or self.group == 1:
            element = p.let("element", loops.load(source.buffer, at))
            return loops.broadcast(element, lanes)
        return p.let("element", self.arithmetic.left_word(source.buffer, at))

    def _weight_vector(self, at: Expr, mask: Expr | None) -> Expr:
        """A vector of words of the weight."""
        if mask is not None:  # not in tiles, and not narrow
            return loops.load(self.weight, at, self.lanes, mask)
        return self.arithmetic.right_words(self.weight, at)

    def _write_excess(self, places: Sequence[tuple[Expr, Expr]]) -> None:
        """Sum up what flipped words add to each channel."""
        p, lanes, arithmetic = self.program, self.lanes, self.arithmetic
        lines = [p.let("line", self._weight_base(*place)) for place in places]
        for v in range(len(lines)):
            p.store(self.excess, v * lanes, loops.zero(self.dtype, lanes), lanes)
        with ExitStack() as stack:
            step = loops.int64(0)
            for extent, _, weight in self._depth(_Source(self.data, step, {})):
                step = step + stack.enter_context(p.loop("k", extent)) * weight
            step = p.let("step", loops.simplify(step))
            for v, line in enumerate(lines):
                total = loops.load(self.excess, v * lanes, lanes)
                vector = p.let("weight", self._weight_vector(line + step, None))
                total = arithmetic.add_product(total, arithmetic.flipped(), vector)
                p.store(self.excess, v * lanes, total, lanes)

    def _depth(self, source: _Source) -> list[_Loop]:
        """The loops over the depth, outermost first: extent, stride in data, stride in the weight. Axes that follow one
        another in both are one loop."""
        found: list[_Loop] = []
        for axis in self.form.depth:
            stride, extent = self.form.weight.strides[axis], self._extent(axis)
            weight = loops.int64(0) if stride is None else stride
            if axis == self.form.depth[-1] and self.group > 1:
                extent, weight = loops.ceildiv(extent, self.group), weight * self.group
            own = (extent, source.strides.get(axis, loops.int64(0)), loops.simplify(weight))
            if found and all(
                equal(out, inside * own[0])
                for out, inside in zip(found[-1][1:], own[1:], strict=True)
            ):
                own = (loops.simplify(found.pop()[0] * own[0]), *own[1:])
            found.append(own)
        return found or [(loops.int64(1), loops.int64(0), loops.int64(0))]

    def _weight_base(self, block: Expr, channel: Expr) -> Expr:
        """The offset of a vector of channels in the weight."""
        strides, panels = self.form.weight.strides, self.form.weight.panels
        base = self.form.weight.base
        if panels is None:
            base = base + channel
        else:
            panel, inside = (f(channel, panels.width) for f in (loops.floordiv, loops.floormod))
            base = base + panel * panels.stride + inside * self.group
        if self.form.blocks is not None and (step := strides[self.form.blocks]) is not None:
            base = base + block * step
        return loops.simplify(base)

    def _existing(self, channel: Expr) -> Expr | None:
        """The mask of the lanes of a vector that are channels; None if all are."""
        if self.channels % self.lanes == 0:
            return None
        return loops.first_lanes(
            loops.clamped_int32(self.channels - channel, self.lanes), self.lanes
        )

    def _store(self, done: _Done) -> None:
        """Store the finished sums of a tile without the first pixels, which are stored already."""
        p, form, lanes = self.program, self.form, self.lanes
        masks = [self._existing(channel) for _, channel in done.places]
        with p.loop("pixel", loops.simplify(done.width - done.skipped), about=done.width) as number:
            pixel = p.let("pixel", loops.simplify(number + done.skipped))
            here = {**done.place, self.pixel: done.x + pixel}
            base = form.out.base + _sum([n * self._out(a) for a, n in here.items()])
            base = p.let("base", loops.simplify(base))
            here |= self._along(done.x + pixel)
            for v, (block, channel) in enumerate(done.places):
                there = dict(here) if form.blocks is None else {**here, form.blocks: block}
                target = base + channel * self._out(form.lane)
                if form.blocks is not None:
                    target = target + block * self._out(form.blocks)
                target = p.let("target", loops.simplify(target))
                start = loops.simplify(((done.first + pixel) * VECTORS + v) * lanes)
                if self.finish is None:
                    self._store_vector(done.sums, start, target, channel, masks[v])
                    continue
                place = {form.axes[axis].var: value for axis, value in there.items()}
                self._finish_vector(Total(done.sums, start), place, channel, target, masks[v])

    def _finish_vector(
        self,
        total: Total,
        place: Mapping[Expr, Expr],
        channel: Expr,
        target: Expr,
        mask: Expr | None,
    ) -> None:
        """Store the finished sums of a vector of channels, which may be apart in the output."""
        assert self.finish is not None
        p, lanes, step = self.program, self.lanes, self._out(self.form.lane)
        if loops.constant(step) == 1:
            self.finish.store(total, place, channel, target, lanes, mask)
            return
        with self._lanes(channel, mask) as lane:
            one = Total(total.buffer, p.let("place", loops.simplify(total.start + lane)))
            at = p.let("at", loops.simplify(target + lane * step))
            self.finish.store(one, place, p.let("channel", channel + lane), at, 1, None)

    def _store_turned(
        self, task: _Task, sums: Buffer, turned: Buffer, places: Sequence[tuple[Expr, Expr]]
    ) -> None:
        """Store the finished sums of all pixels of a task, transposed: one channel after the other, as each is in other
        pages of memory."""
        p, form, lanes = self.program, self.form, self.lanes
        pixels = p.let("pixels", loops.simplify(task.rows * self.length))
        squares = p.let("squares", loops.ceildiv(pixels, lanes))
        line = p.let("line", squares * lanes)
        with p.loop("square", squares) as square:
            for v in range(len(places)):
                begin = p.let("begin", loops.simplify(square * (lanes * VECTORS * lanes)))
                starts = [begin + (n * VECTORS + v) * lanes for n in range(lanes)]
                rows = [loops.load(sums, start, lanes) for start in starts]
                for n, column in enumerate(transposed(p, rows)):
                    at = (v * lanes + n) * line + square * lanes
                    p.store(turned, loops.simplify(at), column, lanes)
        begin = p.let("begin", loops.simplify(task.row * self.length))
        for v, (_, first) in enumerate(places):
            count = loops.minimum(lanes, self.channels - first)
            with p.loop("lane", count, about=lanes) as lane:
                channel = p.let("channel", first + lane)
                here = {**task.image, form.lane: channel}
                base = form.out.base + begin + _sum([n * self._out(a) for a, n in here.items()])
                base = p.let("base", loops.simplify(base))
                source = p.let("source", loops.simplify((v * lanes + lane) * line))
                place = {form.axes[axis].var: value for axis, value in here.items()}

                row = _Line(turned, source, base, begin, place)
                with p.loop("vector", loops.floordiv(pixels, lanes)) as vector:
                    self._store_pixels(row, p.let("at", vector * lanes), None)
                last = p.let("at", loops.simplify(loops.floordiv(pixels, lanes) * lanes))
                left = p.let("left", (pixels - last).astype("int32"))
                with p.when(left > 0):
                    self._store_pixels(row, last, left)

    def _store_pixels(self, row: _Line, at: Expr, left: Expr | None) -> None:
        """Store a vector of pixels of a channel, or the first `left` lanes of it."""
        p, lanes = self.program, self.lanes
        target, total = loops.simplify(row.to + at), loops.simplify(row.start + at)
        mask = None if left is None else loops.first_lanes(left, lanes)
        if self.finish is None:
            p.store(self.out, target, loops.load(row.sums, total, lanes, mask), lanes, mask)
            return
        window = None if left is None else (_int32(0), left)
        pixel = loops.simplify(row.pixel + at)
        self.finish.store(Total(row.sums, total), row.place, pixel, target, lanes, mask, window)

    def _position(self, row: Expr) -> dict[int, Expr]:
        """The position of a row of pixels in an image."""
        return {} if self.row is None else {self.row: row}

    def _along(self, pixel: Expr) -> dict[int, Expr]:
        """The position of a pixel along its row, which may be all rows of the images."""
        places: dict[int, Expr] = {}
        number = loops.simplify(pixel)
        for axis in reversed([*self.joined, self.pixel][1:]):
            number = self.program.let("number", number)
            places[axis] = self.program.let("at", loops.floormod(number, self._extent(axis)))
            number = loops.floordiv(number, self._extent(axis))
        return {**places, [*self.joined, self.pixel][0]: self.program.let("at", number)}

    def _store_vector(
        self, sums: Buffer, start: Expr, target: Expr, channel: Expr, mask: Expr | None
    ) -> None:
        p, lanes, step = self.program, self.lanes, self._out(self.form.lane)
        if loops.constant(step) == 1:
            p.store(self.out, target, loops.load(sums, start, lanes), lanes, mask)
            return
        with self._lanes(channel, mask) as lane:
            p.store(self.out, target + lane * step, loops.load(sums, start + lane))

    @contextmanager
    def _lanes(self, channel: Expr, mask: Expr | None) -> Iterator[Expr]:
        """A loop over the lanes of a vector that are channels."""
        count = self.lanes if mask is None else loops.minimum(self.lanes, self.channels - channel)
        with self.program.loop("lane", count, about=self.lanes) as lane:
            yield lane


def _int32(value: int) -> Expr:
    return tirx.const(value, "int32")


def _cost(length: Any, shape: _Shape) -> Any:
    """About the time of rows of a length, as many as tiles of a shape have."""
    wide, high = shape
    return (length + (wide - 1)) // wide * (4 * max(wide * high, LATENCY) + 1)


def _strides(form: ChannelForm, steps: Sequence[Expr]) -> dict[int, Expr]:
    """The stride of each axis in memory in which the dimensions of data have the strides `steps`."""
    found: dict[int, Expr] = {}
    for walk, stride in zip(form.walks, steps, strict=True):
        for axis, step in enumerate(walk.steps):
            if step is not None:
                found[axis] = loops.simplify(found.get(axis, loops.int64(0)) + step * stride)
    return found


def _moved(base: Expr, steps: Sequence[Expr | None], places: Mapping[int, Expr]) -> Expr:
    """The index of a window along a dimension for these positions of the axes."""
    own = [place * step for axis, place in places.items() if (step := steps[axis]) is not None]
    return base + _sum(own)


def _sum(terms: Sequence[Expr]) -> Expr:
    return reduce(lambda a, b: a + b, terms, loops.int64(0))
