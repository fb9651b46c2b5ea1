"""Sliding windows on CPUs: poolings, and convolutions without reuse (depthwise ones).

Vectors run along the output's last axis, whatever it is (pixels or channels). The axis before it is that of the rows: a
task goes down a column of rows with its vectors, a block of rows at a time. Windows of neighbouring rows overlap, so
each vector of data is read once for all rows of a block (`window_taps`). Where only data are reduced (poolings), so is
what the windows of several rows have in common along a line.

Windows of step 1 read contiguous elements, those of step 2 read two vectors and keep every second element, larger steps
are read one by one. The code of a block is written twice: for blocks inside of data, and for those at an edge, where
positions outside of data are masked lanes or, along the other dimensions, branches.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.rules.joining import joining
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.rules.window_taps import MOST_TAPS, Block, Tap
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.knobs import knob
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, Program
from relaxpy.tir.programs.vectors import (
    converted,
    every_second,
    masked_store,
    vector_value,
    vectorise,
)
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.contraction import places_behind
from relaxpy.tir.recognise.stages import Load, Stage, Var
from relaxpy.tir.recognise.windows import (
    Guarded,
    Walk,
    read_guarded,
    read_walks,
    with_padding_inlined,
)
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

ROWS = 16
"""About as many rows of the output does a task compute with its vectors."""

TOGETHER = 16
"""Vectors of channels of a task. Tasks that follow one another find the weights of these, and what their windows share
of data, in the first-level cache: all channels of a wide network leave it."""

LEAST_LANES = 4
"""Vectors have at least this many lanes, however narrow the output is."""

_READS = (tirx.Cast, tvm.ir.Call, tirx.Select, Load)
"""The expressions that a read with its guard and its conversion may be."""


def window_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """Schedule a reduction over windows, perhaps with an element-wise stage after it. None for other programs: those
    without real windows, and those that cannot be vectorised along the output's last axis."""
    if target.kind != "llvm":
        return None
    found = s.stages_of(func)
    if found is None:
        return None
    stages = with_padding_inlined(found, func)
    if len(stages) > 2 or not s.is_output(stages[-1], func):
        return None
    window, last = stages[0], stages[-1]
    if window.combiner is None or not window.axes or str(window.buffer.dtype) == "bool":
        return None
    moved: Mapping[Expr, Expr] | None = {}
    if last is not window:
        moved = None if s.is_output(window, func) else places_behind(window, last)
    if moved is None:
        return None
    reads = _reads(window)
    if not reads or not any(read.is_window for read in reads):
        return None
    try:
        body = _Writer(window, last, moved, reads, target).write()
    except _NotVectors:
        return None
    return Arrangement(lambda: loops.finished(func, body))


class _NotVectors(Exception):
    """An expression cannot be vectorised."""


@dataclass(frozen=True, eq=False)
class _Read:
    """A read that is vectorised by itself, and the expression that it replaces: the read with its guard and its
    conversion."""

    expr: Expr
    guarded: Guarded
    walks: tuple[Walk, ...]
    """One for each dimension."""
    step: int
    """The step along the last dimension from lane to lane."""
    is_window: bool
    """Do windows overlap or leave the tensor along some dimension, or are lanes not contiguous?"""

    @property
    def load(self) -> Load:
        return self.guarded.load


def _reads(stage: Stage) -> list[_Read]:
    """The reads that move along the vectorised axis, or have guards; none if one of them cannot be vectorised."""
    found: list[tuple[Expr, Guarded]] = []

    def is_inside(load: Load) -> bool:
        return any(load.same_as(guarded.load) for _, guarded in found)

    def conversion(node: tirx.Cast) -> None:
        add(node, node.value)

    def choice(node: Expr) -> None:
        add(node, node)

    def add(node: Expr, inner: Expr) -> None:
        guarded = read_guarded(inner)
        if guarded is not None and not is_inside(guarded.load):
            found.append((node, guarded))

    # Outermost first: a conversion includes the guard under it.
    visits = [(tirx.Cast, conversion), (tvm.ir.Call, choice), (tirx.Select, choice), (Load, choice)]
    for visit in visits:
        tvm_ffi.structural_walk(stage.value, (visit,))
    reads = [_read(stage, node, guarded) for node, guarded in found]
    return [] if None in reads else [read for read in reads if read is not None]


def _read(stage: Stage, node: Expr, guarded: Guarded) -> _Read | None:
    axis, load = stage.axes[-1], guarded.load
    axes = (*stage.axes, *stage.reduce_axes)
    extents = dict(zip(axes, (*stage.extents, *stage.reduce_extents), strict=True))
    walks = read_walks(load, guarded.bounds, extents)
    if walks is None or not walks or any(s.uses(walk.base, axis) for walk in walks):
        return None
    here = len(stage.axes) - 1
    if any(walk.steps[here] is not None for walk in walks[:-1]):
        return None
    step = walks[-1].steps[here]
    known = 0 if step is None else loops.constant(step)
    if known is None or known < 0:
        return None
    together = (len([step for step in walk.steps if step is not None]) > 1 for walk in walks)
    is_window = known > 1 or any(together) or any(walk.is_guarded for walk in walks)
    return _Read(node, guarded, walks, known, is_window)


@dataclass(frozen=True, eq=False)
class _Line:
    """A line of data, as a block reads it."""

    data: Buffer
    start: Expr
    """The element that the first tap reads in its first lane."""
    at: Expr
    """Its position along the last dimension."""
    size: Expr | None
    """The size of that dimension, outside of which positions may be; None if they are not."""
    exists: Expr | None
    """Whether the line is in data at all; None if it is."""
    dtype: str
    other: Expr
    """The value outside, of this type."""

    def element(self, offset: Expr) -> Expr:
        """The element this far from the first."""
        value = converted(loops.load(self.data, self.start + offset), self.dtype, 1)
        if self.size is None:
            return value
        at = self.at + offset
        inside = loops.both(at >= 0, at < self.size)
        inside = inside if self.exists is None else loops.both(self.exists, inside)
        return tirx.if_then_else(inside, value, self.other)

    def neighbours(self, offset: int, lanes: int) -> Expr:
        """The vector of the elements from this far from the first one on."""
        if self.size is None:
            return converted(loops.load(self.data, self.start + offset, lanes), self.dtype, lanes)
        low = loops.clamped_int32(-(self.at + offset), lanes)
        high = loops.clamped_int32(self.size - (self.at + offset), lanes)
        mask = loops.lanes_between(low, high, lanes)
        if self.exists is not None:
            mask = tirx.And(mask, tirx.Broadcast(self.exists, lanes))
        value = converted(
            loops.load(self.data, self.start + offset, lanes, mask), self.dtype, lanes
        )
        return tirx.Select(mask, value, loops.broadcast(self.other, lanes))


class _Writer:
    """Writes the program of one reduction over windows."""

    def __init__(
        self,
        window: Stage,
        last: Stage,
        moved: Mapping[Expr, Expr],
        reads: list[_Read],
        target: CpuTarget,
    ) -> None:
        self.window, self.last, self.moved = window, last, moved
        assert window.combiner is not None
        self.combiner = window.combiner
        self.joining = joining(window, target)
        self.dtype = str(window.buffer.dtype)
        *self.outer, self.axis = window.axes
        *self.sizes, self.width = map(loops.int64, window.extents)
        self.row = self.outer.pop() if self.outer else None
        self.height = self.sizes.pop() if self.sizes else loops.int64(1)
        self.lanes = _lanes(target.lanes(max(32, tvm.DataType(self.dtype).bits)), self.width)
        self.program = p = Program()
        sources = [load.source for load in (*window.loads, *last.loads)]
        sources = [x for x in sources if last is window or not x.same_as(window.buffer)]
        self.views: dict[Buffer, Buffer] = {}
        for buffer in (*sources, last.buffer):
            if buffer not in self.views:
                self.views[buffer] = p.flat_view(buffer)
        moving = [read for read in reads if read.is_window or read.step > 0]
        self.reads = sorted(moving, key=lambda read: not read.is_window)
        # Lanes that are read one by one, as all masked ones are without masked loads, are many branches already.
        by_vectors = target.vector_bits > 128 and all(read.step <= 2 for read in reads)
        most = MOST_TAPS if by_vectors else 0
        self.block = Block.of(window, [read.walks for read in self.reads], most)
        looped = len(window.reduce_axes) - self.block.axes
        self.loops = list(zip(window.reduce_axes, window.reduce_extents, strict=True))[:looped]
        self.tapped = window.reduce_axes[looped:]
        self.width_rest = loops.constant(loops.floormod(self.width, self.lanes))
        self.height_rest = loops.constant(loops.floormod(self.height, self.block.rows))
        self.placeholders = [
            tirx.decl_buffer(
                [loops.int64(self.lanes)], str(read.expr.ty.dtype), "read", layout=None
            )
            for read in self.reads
        ]
        self.is_along_lanes = any(
            read.walks[-1].is_guarded or sum(step is not None for step in read.walks[-1].steps) > 1
            for read in self.reads
        )
        """Do windows move along the vectorised axis?"""
        self.value = self._value()
        self.shared = self._shared_dimensions()
        variables = (*window.axes, *window.reduce_axes)
        self.is_of_data_alone = all(
            any(load.source.same_as(each) for each in self.placeholders)
            for load in s.loads_of(self.value)
        ) and not any(s.uses(self.value, var) for var in variables)

    def _shared_dimensions(self) -> list[int]:
        """The dimensions along which the first read may leave data, and rows and lanes do not move. None where what it
        gives outside changes a total, as zeros in a maximum do."""
        first, row = self.reads[0], len(self.window.axes) - 2

        def outside(node: Expr) -> Expr:
            return first.guarded.otherwise if node.same_as(first.expr) else node

        value = tvm_ffi.structural_map(self.window.value, tuple((kind, outside) for kind in _READS))
        value, init = tvm.sym.Analyzer().simplify(value), self.combiner.init
        constants = (tirx.FloatImm, tirx.IntImm)
        if not (
            isinstance(value, constants)
            and isinstance(init, constants)
            and value.value == init.value
        ):
            return []
        return [
            n
            for n, walk in enumerate(first.walks[:-1])
            if walk.is_guarded and (row < 0 or walk.steps[row] is None)
        ]

    def write(self) -> tirx.Stmt:
        """Write the whole body: a task has a few blocks of rows."""
        p, lanes, rows = self.program, self.lanes, self.block.rows
        chunk = -(-knob("rows", ROWS, (4, 8, 32, 64)) // rows) * rows
        pieces = loops.ceildiv(self.height, chunk)
        vectors = loops.ceildiv(self.width, lanes)
        together = vectors if self.is_along_lanes else knob("together", TOGETHER, (4, 8, 32, 64))
        groups = loops.ceildiv(vectors, together)
        # The tasks of a group follow one another along the last axis of those outside of a task.
        *before, last = [loops.int64(1), *self.sizes]
        extents = [*before, groups, last, pieces]
        with p.loop("task", product(extents), parallel=True) as task:
            *places, group, place, piece = split_index(p, task, extents)
            outer = [*places, place][-len(self.outer) :] if self.outer else []
            at: dict[Var, Expr] = dict(zip(self.outer, outer, strict=True))
            first = p.let("first", loops.simplify(piece * chunk))
            count = p.let("count", loops.minimum(chunk, self.height - first))
            own = p.let("own", loops.minimum(together, vectors - group * together))
            blocks = loops.ceildiv(count, rows)
            with ExitStack() as stack:
                # Down a column, whose masks are computed once; along channels, which are contiguous.
                names = ("vector", "block") if self.is_along_lanes else ("block", "vector")
                numbers = {
                    name: stack.enter_context(p.loop(name, own if name == "vector" else blocks))
                    for name in names
                }
                vector = group * together + numbers["vector"]
                at[self.axis] = p.let("x", loops.simplify(vector * lanes))
                if self.row is not None:
                    at[self.row] = p.let("top", loops.simplify(first + numbers["block"] * rows))
                inside = self._is_inside(at)
                with p.when(inside):
                    self._rows(at, inside=True)
                with p.otherwise(inside):
                    self._rows(at, inside=False)
        return p.body()

    def _is_inside(self, at: Mapping[Var, Expr]) -> Expr | bool:
        """Does a block at this place have all its lanes and rows, and is all of data that it reads?"""
        conditions: list[Expr] = []
        if self.width_rest != 0:
            conditions.append(at[self.axis] + self.lanes <= self.width)
        if self.row is not None and self.height_rest != 0:
            conditions.append(at[self.row] + self.block.rows <= self.height)
        for n, read in enumerate(self.reads):
            ends = zip(*((*tap.lines[n], tap.lasts[n]) for tap in self.block.taps), strict=True)
            for number, (walk, offsets) in enumerate(zip(read.walks, ends, strict=True)):
                is_last = number == len(read.walks) - 1
                if not walk.is_guarded and not (is_last and read.step):
                    continue
                start = self._start(read.load.indices[number], at)
                if any(s.uses(start, k) for k, _ in self.loops):
                    return False
                if walk.is_guarded:
                    conditions.append(start >= 0)
                # A vector with a step reads the elements between those of its lanes, too.
                beyond = self.lanes * read.step if is_last else 1
                conditions.append(start + (max(offsets) + beyond) <= walk.size)
        return reduce(loops.both, conditions) if conditions else True

    def _start(self, index: Expr, at: Mapping[Var, Expr]) -> Expr:
        """The index that a block's first tap reads."""
        return s.substitute(index, {**at, **{k: loops.int64(0) for k in self.tapped}})

    def _rows(self, at: Mapping[Var, Expr], *, inside: bool) -> None:
        """Compute the rows of the block at this place."""
        p, lanes = self.program, self.lanes
        with p.scope():
            totals = [p.allocate(f"total{r}", lanes, self.dtype) for r in range(self.block.rows)]
            for total in totals:
                p.store(total, 0, loops.broadcast(self.combiner.init, lanes), lanes)
            with ExitStack() as stack:
                outer = {k: stack.enter_context(p.loop(k.name, size)) for k, size in self.loops}
                self._reduce(totals, {**at, **outer}, inside=inside)
            left: Expr | None = None
            if self.width_rest != 0 and not inside:
                left = p.let("left", loops.clamped_int32(self.width - at[self.axis], lanes))
            for number, total in enumerate(totals):
                place, own = dict(at), left
                if self.row is not None:
                    place[self.row] = row = at[self.row] + number
                    if not inside and self.height_rest != 0:
                        all_lanes = tirx.const(lanes, "int32") if left is None else left
                        own = tirx.Select(row < self.height, all_lanes, tirx.const(0, "int32"))
                self._finish(total, place, own)

    def _reduce(self, totals: Sequence[Buffer], at: Mapping[Var, Expr], *, inside: bool) -> None:
        """Add what all taps read to the totals of their rows."""
        # A branch around the taps of lines that all rows share also keeps LLVM from reading all lines first, for which
        # there are no registers.
        for _, group in itertools.groupby(self.block.taps, self._shared_place):
            taps = list(group)
            exists = None if inside else self._exists(taps[0], at)
            with self.program.when(True if exists is None else exists):
                self._add(taps, totals, at, inside=inside)

    def _shared_place(self, tap: Tap) -> tuple[int, ...]:
        """The position of a tap's first read along the dimensions that rows do not move along, where taps outside of
        data add nothing."""
        return tuple(tap.lines[0][n] for n in self.shared)

    def _exists(self, tap: Tap, at: Mapping[Var, Expr]) -> Expr | None:
        """Is the position `_shared_place` of a tap in data? None: it is."""
        read, exists = self.reads[0], None
        for n in self.shared:
            here = self._start(read.load.indices[n], at) + tap.lines[0][n]
            within = loops.both(here >= 0, here < read.walks[n].size)
            exists = within if exists is None else loops.both(exists, within)
        return exists

    def _add(
        self, taps: Sequence[Tap], totals: Sequence[Buffer], at: Mapping[Var, Expr], *, inside: bool
    ) -> None:
        """Add what these taps read to the totals of their rows."""
        found: dict[tuple[int, tuple[int, ...]], Mapping[int, Buffer]] = {}
        joined: dict[Hashable, Buffer] = {}
        for (lines, row), group in itertools.groupby(taps, lambda tap: (tap.lines, tap.row)):
            own = list(group)
            for n, line in enumerate(lines):
                if (n, line) not in found:
                    lasts = sorted({t.lasts[n] for t in taps if t.lines[n] == line})
                    found[n, line] = self._gathered(self.reads[n], line, lasts, at, inside=inside)
            vectors = [
                [found[n, line][tap.lasts[n]] for n, line in enumerate(lines)] for tap in own
            ]
            if self.is_of_data_alone:
                key = lines, tuple(tap.lasts for tap in own)
                if key not in joined:
                    joined[key] = self._joined(vectors)
                values = [loops.load(joined[key], 0, self.lanes)]
            else:
                values = [
                    self._tapped(tap, each, at, inside=inside)
                    for tap, each in zip(own, vectors, strict=True)
                ]
            for value in values:
                self._join(totals[row], value)

    def _joined(self, vectors: Sequence[Sequence[Buffer]]) -> Buffer:
        """What the taps of one row read in one line, combined."""
        first, *others = (self._with_vectors(own) for own in vectors)
        buffer = self.program.allocate("joined", self.lanes, self.dtype)
        self.program.store(buffer, 0, first, self.lanes)
        for value in others:
            self._join(buffer, value)
        return buffer

    def _join(self, total: Buffer, value: Expr) -> None:
        joined = self.joining(loops.load(total, 0, self.lanes), value)
        self.program.store(total, 0, joined, self.lanes)

    def _tapped(
        self, tap: Tap, vectors: Sequence[Buffer], at: Mapping[Var, Expr], *, inside: bool
    ) -> Expr:
        """The vector of the reduced value at one tap."""
        places = dict(at)
        if self.row is not None:
            row = at[self.row] + tap.row
            past_end = self.height_rest != 0 and not inside
            places[self.row] = loops.minimum(row, self.height - 1) if past_end else row
        for k, place in zip(self.tapped, tap.place, strict=True):
            places[k] = loops.int64(place)
        return s.substitute(self._with_vectors(vectors), places)

    def _with_vectors(self, vectors: Sequence[Buffer]) -> Expr:
        """The reduced value with these vectors in the place of the reads."""

        def read(load: Load) -> Expr:
            for placeholder, vector in zip(self.placeholders, vectors, strict=True):
                if load.source.same_as(placeholder):
                    return loops.load(vector, 0, self.lanes)
            return load

        return s.map_loads(self.value, read)

    def _value(self) -> Expr:
        """The vector of the reduced value, with placeholders for the reads that are vectors by themselves."""
        lane = tirx.Var("lane", "int64")

        def replaced(node: Expr) -> Expr:
            for read, buffer in zip(self.reads, self.placeholders, strict=True):
                if node.same_as(read.expr):
                    return tirx.BufferLoad(buffer, [lane])
            return node

        value = tvm_ffi.structural_map(
            self.window.value, tuple((kind, replaced) for kind in _READS)
        )

        def element(number: Expr) -> Expr:
            moved = s.substitute(value, {self.axis: self.axis + number, lane: number})
            return self._flat(moved, self.placeholders)

        vector = vector_value(element, self.lanes)
        if vector is None:
            raise _NotVectors
        return vector

    def _gathered(
        self,
        read: _Read,
        offsets: Sequence[int],
        lasts: Sequence[int],
        at: Mapping[Var, Expr],
        *,
        inside: bool,
    ) -> Mapping[int, Buffer]:
        """The vectors that a read gives at these positions of a line, which is so far from the block's first, in memory
        that LLVM keeps in registers."""
        p, lanes = self.program, self.lanes
        *index, last = (self._start(index, at) for index in read.load.indices)
        index = [p.let("at", i + offset) for i, offset in zip(index, offsets, strict=True)]
        last = p.let("at", last)
        start = s.flat_index([*index, last], [walk.size for walk in read.walks])
        dtype = str(read.expr.ty.dtype)
        exists: Expr | None = None
        for walk, here in zip(read.walks, index, strict=False):
            if not inside and (walk.is_guarded or self._has_rest(walk)):
                within = loops.both(here >= 0, here < walk.size)
                exists = within if exists is None else loops.both(exists, within)
        exists = None if exists is None else p.let("exists", exists)
        # Across channels all lanes of a line exist or none does: a branch, which is the same for the next vectors.
        branches = exists is not None and not self.is_along_lanes
        is_whole = inside or (not self.is_along_lanes and self.width_rest == 0)
        line = _Line(
            self.views[read.load.source],
            p.let("start", loops.simplify(start)),
            last,
            None if is_whole else read.walks[-1].size,
            None if branches else exists,
            dtype,
            converted(read.guarded.otherwise, dtype, 1),
        )
        vectors = {n: p.allocate("read", lanes, dtype) for n in lasts}
        with p.when(exists if exists is not None and branches else True):
            self._read_line(line, read.step, vectors)
        if exists is not None and branches:
            with p.otherwise(exists):
                for vector in vectors.values():
                    p.store(vector, 0, loops.broadcast(line.other, lanes), lanes)
        return vectors

    def _has_rest(self, walk: Walk) -> bool:
        """Do the last block's rows past the end read beyond this dimension?"""
        row = len(self.window.axes) - 2
        return self.height_rest != 0 and row >= 0 and walk.steps[row] is not None

    def _read_line(self, line: _Line, step: int, vectors: Mapping[int, Buffer]) -> None:
        """Read the vectors that begin at these positions of a line, with this step from lane to lane."""
        p, lanes = self.program, self.lanes
        parts: dict[int, Buffer] = {}

        def part(first: int) -> Expr:
            if first not in parts:
                parts[first] = p.allocate("part", lanes, line.dtype)
                p.store(parts[first], 0, line.neighbours(first, lanes), lanes)
            return loops.load(parts[first], 0, lanes)

        for first, vector in vectors.items():
            if step == 0:
                p.store(vector, 0, loops.broadcast(line.element(loops.int64(first)), lanes), lanes)
            elif step == 1:
                p.store(vector, 0, part(first), lanes)
            elif step == 2:
                even = first - first % 2
                pair = every_second(part(even), part(even + lanes), lanes, first % 2)
                p.store(vector, 0, pair, lanes)
            else:
                with p.loop("lane", lanes) as lane:
                    p.store(vector, lane, line.element(first + lane * step))

    def _finish(self, total: Buffer, at: Mapping[Var, Expr], left: Expr | None) -> None:
        """Store the results, or the value that the last stage computes from them: the first `left` lanes, or all."""
        p, last = self.program, self.last
        out, moved = self.views[last.buffer], dict(self.moved)
        index = [s.substitute(i, moved) for i in last.index]
        place = s.flat_index(index, last.buffer.shape)
        value = None if last is self.window else s.substitute(last.value, moved)

        def element(lane: Expr) -> tirx.BufferStore:
            values = {**at, self.axis: at[self.axis] + lane}
            target = loops.simplify(s.substitute(place, values))
            if value is None:
                return tirx.BufferStore(out, tirx.BufferLoad(total, [lane]), [target])

            def load(node: Load) -> Expr:
                own = node.source.same_as(self.window.buffer)
                return tirx.BufferLoad(total, [lane]) if own else node

            finished = s.substitute(s.map_loads(value, load), values)
            return tirx.BufferStore(out, self._flat(finished, [total]), [target])

        # A row that does not exist has no lanes: in a branch around its store LLVM would compute all of its products,
        # one after the other.
        stmt = vectorise(element, self.lanes)
        if stmt is not None and left is not None:
            stmt = masked_store(stmt, loops.first_lanes(left, self.lanes))
        if stmt is not None:
            p.add(stmt)
            return
        with p.loop("lane", loops.int64(self.lanes if left is None else left)) as lane:
            p.add(element(lane))

    def _flat(self, value: Expr, own: Sequence[Buffer]) -> Expr:
        """Return the expression with reads of parameters as flat accesses."""

        def load(node: Load) -> Expr:
            if any(node.source.same_as(buffer) for buffer in own):
                return node
            at = s.flat_index(node.indices, node.source.shape)
            return tirx.BufferLoad(self.views[node.source], [loops.simplify(at)])

        return s.map_loads(value, load)


def _lanes(most: int, width: Expr) -> int:
    """The lanes of a vector: fewer than there are if the output is narrower."""
    known = loops.constant(width) or most
    while most > LEAST_LANES and known <= most // 2:
        most //= 2
    return most
