"""Sliding windows on CPUs: poolings, and convolutions without reuse (depthwise ones).

Vectors run along the output's last axis, whatever it is (pixels or channels). A task goes down a column of rows with
its vectors, so that the lanes at an edge of the data are determined once for the column. Windows of step 1 read
contiguous elements, those of step 2 read two vectors and keep every second element, larger steps are read one by one.
Positions outside of data are masked lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.knobs import knob
from relaxpy.tir.forms import stages as s
from relaxpy.tir.forms.contraction import places_behind
from relaxpy.tir.forms.stages import Load, Stage, Var
from relaxpy.tir.forms.windows import Guarded, read_guarded, read_walks, with_padding_inlined
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.loops import Buffer, Expr, PrimFunc, Program
from relaxpy.tir.writer.vectors import (
    converted,
    every_second,
    masked_store,
    vector_value,
    vectorise,
)

ROWS = 16
"""Rows of the output that a task computes with its vectors."""


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
    guards: tuple[bool, ...]
    """The padded dimensions."""
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
    guards = tuple(walk.is_guarded for walk in walks)
    together = (len([step for step in walk.steps if step is not None]) > 1 for walk in walks)
    return _Read(node, guarded, guards, known, any(guards) or known > 1 or any(together))


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
        self.window, self.last, self.moved, self.reads = window, last, moved, reads
        assert window.combiner is not None
        self.combiner = window.combiner
        self.dtype = str(window.buffer.dtype)
        self.lanes = target.lanes(max(32, tvm.DataType(self.dtype).bits))
        self.program = p = Program()
        sources = [load.source for load in (*window.loads, *last.loads)]
        sources = [x for x in sources if last is window or not x.same_as(window.buffer)]
        self.views: dict[Buffer, Buffer] = {}
        for buffer in (*sources, last.buffer):
            if buffer not in self.views:
                self.views[buffer] = p.flat_view(buffer)

    def write(self) -> tirx.Stmt:
        """Write the whole body: tasks are rows of vectors, a few one below the other."""
        p, window, lanes = self.program, self.window, self.lanes
        *outer, axis = window.axes
        *sizes, width = map(loops.int64, window.extents)
        row, height = (outer.pop(), sizes.pop()) if outer else (None, loops.int64(1))
        rows = knob("rows", ROWS, (4, 8, 32, 64))
        pieces = loops.ceildiv(height, rows)
        with p.loop("task", product([*sizes, pieces]), parallel=True) as task:
            *places, piece = split_index(p, task, [*sizes, pieces])
            at: dict[Var, Expr] = dict(zip(outer, places, strict=True))
            first = p.let("first", loops.simplify(piece * rows))
            count = p.let("count", loops.minimum(rows, height - first))
            with p.loop("vector", loops.ceildiv(width, lanes)) as vector:
                x = p.let("x", loops.simplify(vector * lanes))
                known = loops.constant(loops.floormod(width, lanes))
                whole = True if known == 0 else x + lanes <= width
                for is_whole in (True, False):
                    branch = p.when(whole) if is_whole else p.otherwise(whole)
                    with branch:
                        left = loops.clamped_int32(width - x, lanes)
                        mask = None if is_whole else loops.first_lanes(p.let("left", left), lanes)
                        with p.loop("row", count) as down:
                            here = at if row is None else {**at, row: first + down}
                            self._vector(here, axis, x, mask)
        return p.body()

    def _vector(self, at: Mapping[Var, Expr], axis: Var, x: Expr, mask: Expr | None) -> None:
        """Compute the `lanes` results from position `x` of the last axis on."""
        p, window, lanes = self.program, self.window, self.lanes
        with p.scope():
            total = p.allocate("total", lanes, self.dtype)
            p.store(total, 0, loops.broadcast(self.combiner.init, lanes), lanes)
            with ExitStack() as stack:
                places = {**at, axis: x}
                for k, extent in zip(window.reduce_axes, window.reduce_extents, strict=True):
                    places[k] = stack.enter_context(p.loop(k.name, extent))
                value = self._value(places, axis)
                joined = self.combiner.join(loops.load(total, 0, lanes), value)
                p.store(total, 0, joined, lanes)
            self._finish(total, at, axis, x, mask)

    def _value(self, places: Mapping[Var, Expr], axis: Var) -> Expr:
        """The vector of the reduced value at one position of the window."""
        own: list[tuple[Expr, Buffer]] = []
        for read in self.reads:
            if read.is_window or read.step > 1:
                own.append((read.expr, self._gathered(read, places)))
        lane = tirx.Var("lane", "int64")

        def replaced(node: Expr) -> Expr:
            for expr, buffer in own:
                if node.same_as(expr):
                    return tirx.BufferLoad(buffer, [lane])
            return node

        kinds = (tirx.Cast, tvm.ir.Call, tirx.Select, Load)
        value = tvm_ffi.structural_map(self.window.value, tuple((kind, replaced) for kind in kinds))
        gathered = [buffer for _, buffer in own]

        def element(number: Expr) -> Expr:
            values = {**places, axis: places[axis] + number}
            return self._flat(s.substitute(value, {**values, lane: number}), gathered)

        vector = vector_value(element, self.lanes)
        if vector is None:
            raise _NotVectors
        return vector

    def _gathered(self, read: _Read, places: Mapping[Var, Expr]) -> Buffer:
        """A vector of strided reads, gathered in memory that LLVM keeps in a register."""
        p, lanes, step = self.program, self.lanes, read.step
        dtype = str(read.expr.ty.dtype)
        other = read.guarded.otherwise
        other = other if str(other.ty.dtype) == dtype else tirx.Cast(dtype, other)
        index = [p.let("at", s.substitute(i, dict(places))) for i in read.load.indices]
        shape = [loops.int64(size) for size in read.load.source.shape]
        view = self.views[read.load.source]
        start = p.let("start", loops.simplify(s.flat_index(index, shape)))
        exists: Expr | bool = True
        for n, is_guarded in enumerate(read.guards):
            if is_guarded and (n < len(index) - 1 or step == 0):
                here = loops.both(index[n] >= 0, index[n] < shape[n])
                exists = here if exists is True else loops.both(exists, here)
        result = p.allocate("read", lanes, dtype)
        with p.when(exists):
            if step == 0:
                value = loops.load(view, start).astype(dtype)
                p.store(result, 0, loops.broadcast(value, lanes), lanes)
            elif step <= 2:
                value = self._neighbours(view, start, index[-1], shape[-1], step, dtype, other)
                p.store(result, 0, value, lanes)
            else:
                with p.loop("lane", lanes) as lane:
                    at = index[-1] + lane * step
                    inside = loops.both(at >= 0, at < shape[-1])
                    value = loops.load(view, start + lane * step).astype(dtype)
                    p.store(result, lane, tirx.if_then_else(inside, value, other))
        with p.otherwise(exists):
            p.store(result, 0, loops.broadcast(other, lanes), lanes)
        return result

    def _neighbours(
        self, view: Buffer, start: Expr, at: Expr, size: Expr, step: int, dtype: str, other: Expr
    ) -> Expr:
        """The elements from `start` on with stride `step`; `other` for those outside of the dimension, in which the
        first one has position `at`."""
        p, lanes = self.program, self.lanes
        low = p.let("low", loops.clamped_int32(-at, lanes * step))
        high = p.let("high", loops.clamped_int32(size - at, lanes * step))
        parts: list[Expr] = []
        for n in range(step):
            mask = loops.lanes_between(low - n * lanes, high - n * lanes, lanes)
            value = converted(loops.load(view, start + n * lanes, lanes, mask), dtype, lanes)
            parts.append(tirx.Select(mask, value, loops.broadcast(other, lanes)))
        return parts[0] if step == 1 else every_second(*parts, lanes)

    def _finish(
        self, total: Buffer, at: Mapping[Var, Expr], axis: Var, x: Expr, mask: Expr | None
    ) -> None:
        """Store the results, or the value that the last stage computes from them."""
        p, last = self.program, self.last
        out, moved = self.views[last.buffer], dict(self.moved)
        index = [s.substitute(i, moved) for i in last.index]
        place = s.flat_index(index, last.buffer.shape)
        value = None if last is self.window else s.substitute(last.value, moved)

        def element(lane: Expr) -> tirx.BufferStore:
            values = {**at, axis: x + lane}
            target = loops.simplify(s.substitute(place, values))
            if value is None:
                return tirx.BufferStore(out, tirx.BufferLoad(total, [lane]), [target])

            def load(node: Load) -> Expr:
                own = node.source.same_as(self.window.buffer)
                return tirx.BufferLoad(total, [lane]) if own else node

            finished = s.substitute(s.map_loads(value, load), values)
            return tirx.BufferStore(out, self._flat(finished, [total]), [target])

        stmt = vectorise(element, self.lanes)
        if stmt is not None and mask is not None:
            stmt = masked_store(stmt, mask)
        if stmt is not None:
            p.add(stmt)
            return
        width = loops.int64(self.window.extents[-1])
        with p.loop("lane", loops.minimum(self.lanes, width - x)) as lane:
            p.add(element(lane))

    def _flat(self, value: Expr, own: list[Buffer]) -> Expr:
        """Return the expression with reads of parameters as flat accesses."""

        def load(node: Load) -> Expr:
            if any(node.source.same_as(buffer) for buffer in own):
                return node
            at = s.flat_index(node.indices, node.source.shape)
            return tirx.BufferLoad(self.views[node.source], [loops.simplify(at)])

        return s.map_loads(value, load)
