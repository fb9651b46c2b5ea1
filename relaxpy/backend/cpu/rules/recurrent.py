"""Recurrent layers on CPUs: the steps of a whole sequence in one kernel.

Applies to what `relaxpy.tir.recognise.recurrent` recognises, if the sizes of the layer are known. A *panel* is 16 units
of all gates, whose weights are contiguous, in the order in which they are read. A step multiplies the state of some
rows by each panel, in a tile of registers, and then computes the gates of these units. There are two ways to divide
this:

* Of a layer that fits into a core's cache, a task is a direction and some rows of the batch, over all steps.
* Of a larger one, every step is a parallel loop over panels: each core reads its own part of the weight, which stays
  in its cache, or comes over its own connection.

The state is kept in float32, and rounded to its type after each step. There are two copies: one is read, the other is
written. What must be complete before a step can go on (the reset state of a GRU that resets before its product, the
outputs of an LSTM with a projection) is a *phase* of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.registers import vacate, with_vacant
from relaxpy.backend.cpu.rules.attention_access import splat
from relaxpy.backend.cpu.target import CACHE_LINE, CpuTarget
from relaxpy.ir.cell import PANEL
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.elementary import value_written_out
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, Stmt, int64
from relaxpy.tir.programs.recurrent import functions_of
from relaxpy.tir.programs.vectors import mapped, vector_loop
from relaxpy.tir.recognise.recurrent import RecurrentForm, recurrent_of
from relaxpy.tir.tvm import tirx

MOST_ROWS = 6
"""Rows of a tile, at most."""
FEW_TASKS = 4
"""Tasks of a direction that a small batch is divided into, but of two rows at least, if there are as many: two take
little longer than one, which waits for the weights."""
CACHED = 384 << 10
"""Bytes of a layer's weights that stay in the cache of a core."""
AHEAD = 2
"""Steps between the prefetch of products of the input and their use."""
CHAINS = 4
"""Vectors of sums that a row has in a tile: of several gates, or parts of a sum. The sums of a row have one order,
whatever the rows beside it."""


def recurrent_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is the steps of a recurrent layer, or None."""
    form = recurrent_of(func) if target.kind == "llvm" else None
    if form is None or not _fits(form):
        return None
    return Arrangement(lambda: loops.finished(func, _Program(form, target).body()))


def _fits(form: RecurrentForm) -> bool:
    """Are the sizes known, the sums float32, and both directions alike?"""
    known = [*form.x.weight.shape, *form.outs[-1].shape[2:]]
    if not all(loops.constant(size) for size in known):
        return False
    if str(form.x.weight.dtype) not in ("float32", "float16", "bfloat16"):
        return False
    functions = [form.step.functions(d) for d in range(len(form.step.backward))]
    return functions[0] == functions[-1]


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of a direction whose state is in memory."""

    direction: Expr
    first: Expr
    """The first one's number in the batch."""
    count: Expr
    base: Expr
    """The place of the first one among all rows in memory."""


class _Program:
    """Writes the whole program."""

    def __init__(self, form: RecurrentForm, target: CpuTarget) -> None:
        self.form, self.x, self.step = form, form.x, form.step
        self.program = p = loops.Program()
        self.target = target
        self.lanes = min(target.lanes(32), PANEL)
        self.vectors = PANEL // self.lanes
        """Vectors of a gate in a panel."""
        self.directions, self.panels, self.state, self.gates, _ = map(_known, self.x.weight.shape)
        self.hidden = _known(form.outs[-1].shape[2]) if self.x.initial_c is not None else self.state
        time, batch = (1, 0) if form.batch_first else (0, 1)
        self.length, self.batch = (self.x.inputs.shape[axis] for axis in (time, batch))
        self.views = {each: p.flat_view(each) for each in (*self.x.given, *form.outs)}
        self.dtype = str(self.x.weight.dtype)
        self.has_c = self.x.initial_c is not None
        self.state_width = -(-self.state // PANEL) * PANEL
        self.width = self.panels * PANEL
        self.functions = functions_of(form.step, 0)
        self.has_phases = self.x.projection is not None or self._resets_before()
        size = 4 if self.dtype == "float32" else 2
        weights = self.panels * self.state * self.gates * PANEL * size
        self.is_divided = weights > CACHED
        """Is every step a parallel loop?"""

    def _panel_counts(self) -> list[int]:
        """The panels of each phase."""
        own = [] if self.x.projection is None else [_known(self.x.projection.shape[1])]
        return [self.panels, *own]

    def _resets_before(self) -> bool:
        return self.step.kind == "gru" and not self.step.reset_after

    def body(self) -> Stmt:
        """The whole program."""
        return with_vacant(self._body(), self.target)

    def _body(self) -> Stmt:
        """The parallel loop over tasks, or that over steps."""
        p = self.program
        if self.is_divided:
            rows = loops.simplify(self.batch * self.directions)
            self._allocate(rows, self.directions * max(self._panel_counts()))
            with p.loop("row", rows) as row:
                direction = p.let("direction", loops.floordiv(row, self.batch))
                self._begin(direction, row - direction * self.batch, row)
            with p.loop("t", self.length, about=64) as t:
                self._step(p, t, None)
            with p.loop("row", rows) as row:
                direction = p.let("direction", loops.floordiv(row, self.batch))
                self._end(direction, row - direction * self.batch, row)
            return p.body()
        pairs = tirx.Min(loops.ceildiv(self.batch, 2), int64(2))
        span = tirx.Max(loops.ceildiv(self.batch, FEW_TASKS), pairs)
        span = p.let("span", tirx.Max(tirx.Min(span, int64(self._most_rows())), int64(1)))
        groups = p.let("groups", loops.ceildiv(self.batch, span))
        tasks = p.let("tasks", groups * self.directions)
        with p.loop("task", tasks, parallel=True, about=FEW_TASKS) as task:
            direction = p.let("direction", loops.floordiv(task, groups))
            first = p.let("first", (task - direction * groups) * span)
            count = p.let("count", tirx.Min(span, self.batch - first))
            self._allocate(int64(self._most_rows()), 1)
            with p.loop("row", count) as row:
                self._begin(direction, first + row, row)
            with p.loop("t", self.length, about=64) as t:
                self._step(p, t, _Rows(direction, first, count, int64(0)))
            with p.loop("row", count) as row:
                self._end(direction, first + row, row)
        return p.body()

    # Memory

    def _allocate(self, rows: Expr, tasks: int) -> None:
        """Memory for the state of so many rows, and for what so many tasks have at once."""
        p = self.program
        self.line = self._most_rows() * self.gates * PANEL
        """The size of a tile's sums."""
        self.sums = p.allocate("sums", tasks * self.line, "float32")
        self.copy = loops.simplify(rows * self.state_width)
        """The size of a copy of h."""
        self.h = p.allocate("h", self.copy * 2, "float32")
        self.c = p.allocate("c", rows * self.width, "float32") if self.has_c else None
        if self.has_phases:
            self.between = p.allocate("between", rows * self.width, "float32")
        if self._resets_before():
            self.update = p.allocate("update", rows * self.width, "float32")

    def _begin(self, direction: Expr, row: Expr, place: Expr) -> None:
        """The state of a row before the first step."""
        p = self.program
        states = [(self.h, self.x.initial_h, self.state, self.state_width)]
        if self.c is not None:
            states.append((self.c, self.x.initial_c, self.hidden, self.width))
        for to, source, size, width in states:
            start = p.let("start", (direction * self.batch + row) * size)
            at = p.let("at", place * width)
            self._copy((self.views[source], start), (to, at), size)
            if width > size:
                with p.loop("j", width - size) as j:
                    p.store(to, at + (size + j), tirx.FloatImm("float32", 0.0))

    def _end(self, direction: Expr, row: Expr, place: Expr) -> None:
        """Write the state of a row after the last step."""
        p = self.program
        last = p.let("last", (self.length & int64(1)) * self.copy)
        states = [(self.h, self.form.outs[1], self.state, self.state_width, last)]
        if self.c is not None:
            states.append((self.c, self.form.outs[2], self.hidden, self.width, int64(0)))
        for source, to, size, width, begin in states:
            start = p.let("start", (direction * self.batch + row) * size)
            at = p.let("at", begin + place * width)
            self._copy((source, at), (self.views[to], start), size)

    def _copy(self, source: tuple[Buffer, Expr], to: tuple[Buffer, Expr], size: int) -> None:
        """Copy numbers from a place on to another place, and convert them."""

        def element(j: Expr) -> tirx.BufferStore:
            value = loops.load(source[0], source[1] + j).astype(str(to[0].dtype))
            return tirx.BufferStore(to[0], value, [to[1] + j])

        vector_loop(self.program, "j", int64(size), self.lanes, element)

    # Steps

    def _step(self, p: loops.Program, t: Expr, rows: _Rows | None) -> None:
        """A step of the rows of a task, or of all rows."""
        self.t = t
        self.now = p.let("now", (t & int64(1)) * self.copy)
        self.next = p.let("next", self.copy - self.now)
        rows_of_step = int64(1) if self.form.batch_first else self.batch
        ahead = rows_of_step * (AHEAD * self.directions * self.gates * self.hidden)
        self.ahead = p.let("ahead", -ahead if self.step.direction == "reverse" else ahead)
        every = range(2 if self._resets_before() else self.gates)
        phases = [(self.panels, self.x.weight, every, self._source_h, self._units)]
        if self._resets_before():
            own = (self.panels, self.x.weight, range(2, 3), self._source_between, self._new_units)
            phases.append(own)
        if self.x.projection is not None:
            panels = _known(self.x.projection.shape[1])
            own = (panels, self.x.projection, range(1), self._source_between, self._projected)
            phases.append(own)
        for panels, weight, gates, source, finish in phases:
            if rows is not None:
                with p.loop("panel", panels) as panel:
                    self._panel(rows, int64(0), panel, weight, gates, source, finish)
                continue
            with p.loop("task", self.directions * panels, parallel=True, again=True) as task:
                direction = p.let("direction", loops.floordiv(task, panels))
                panel = p.let("panel", task - direction * panels)
                base = p.let("base", direction * self.batch)
                own_rows = _Rows(direction, int64(0), self.batch, base)
                self._panel(own_rows, task, panel, weight, gates, source, finish)

    def _most_rows(self) -> int:
        """The rows of a tile: some registers are for what is multiplied."""
        registers = self.target.vector_registers
        spare = 3 if registers < 32 else CHAINS + 1
        return max(1, min(MOST_ROWS, (registers - spare) // CHAINS))

    def _panel(
        self, rows: _Rows, memory: Expr, panel: Expr, weight: Buffer, gates: range,
        source: Callable[[Expr], Expr], finish: Callable[[_Rows, Expr, Expr, Expr], None],
    ) -> None:  # fmt: skip
        """A panel of a phase, for all rows, with the memory of this number."""
        p, most = self.program, self._most_rows()
        size = len(gates) * PANEL
        sums = p.let("sums_of_task", memory * self.line)
        # Tiles of nearly the same height.
        tiles = p.let("tiles", loops.ceildiv(rows.count, most))
        height = p.let("height", loops.ceildiv(rows.count, loops.maximum(tiles, 1)))
        with p.loop("tile", tiles, about=1) as tile:
            first = p.let("top", tile * height)
            count = p.let("rows", tirx.Min(height, rows.count - first))
            start = p.let("start", rows.base + first)
            for own in range(1, most + 1):
                with p.when(tirx.EQ(count, int64(own))):
                    self._product(sums, rows.direction, start, panel, weight, gates, source, own)
            with p.loop("r", count, about=1) as r:
                finish(rows, panel, first + r, p.let("line", sums + r * size))

    def _source_h(self, row: Expr) -> Expr:
        """Where the state of a row is."""
        return self.now + row * self.state_width

    def _source_between(self, row: Expr) -> Expr:
        """Where what a row's first phase has left is."""
        return row * self.width

    def _product(
        self, sums: Expr, direction: Expr, row: Expr, panel: Expr, weight: Buffer, gates: range,
        source: Callable[[Expr], Expr], height: int,
    ) -> None:  # fmt: skip
        """The products of a panel and the vectors of so many rows."""
        p, lanes = self.program, self.lanes
        vacate(p, self.target)
        _, panels, depth, stored, _ = map(_known, weight.shape)
        factors = self.h if source == self._source_h else self.between
        line = p.let("source", source(row))
        width = self.state_width if factors is self.h else self.width
        begin = p.let("begin", (direction * panels + panel) * (depth * stored * PANEL))
        view = self.views[weight]
        passes = (
            [range(self.vectors)] if height == 1 else [range(v, v + 1) for v in range(self.vectors)]
        )
        for vectors in passes:
            parts = min(CHAINS // len(gates), depth)
            count = len(gates) * len(vectors)
            made: list[_Sums] = [
                [[p.allocate("sum", lanes, "float32") for _ in range(count)] for _ in range(height)]
                for _ in range(parts)
            ]
            for own in (each for part in made for rows in part for each in rows):
                p.store(own, 0, splat(0.0, lanes), lanes)

            across = [g * PANEL + v * lanes for g in gates for v in vectors]

            def add(k: Expr, sums: _Sums, across: Sequence[int] = across) -> None:
                place = p.given("place", begin + k * (stored * PANEL))
                here = p.given("here", line + k)
                found = [p.let("weight", self._wide(view, place + column)) for column in across]
                for r, own in enumerate(sums):
                    number = loops.load(factors, here + r * width)
                    factor = p.let("factor", loops.broadcast(number, lanes))
                    for each, vector in zip(own, found, strict=True):
                        p.store(each, 0, loops.load(each, 0, lanes) + vector * factor, lanes)

            with p.loop("k", depth // parts) as k:
                first = p.let("first", k * parts)
                for part in range(parts):
                    add(first + part, made[part])
            for k in range(depth // parts * parts, depth):
                add(int64(k), made[k % parts])
            for r in range(height):
                for number in range(count):
                    g, v = divmod(number, len(vectors))
                    total = loops.load(made[0][r][number], 0, lanes)
                    for part in range(1, parts):
                        total = total + loops.load(made[part][r][number], 0, lanes)
                    at = (r * len(gates) + g) * PANEL + (vectors.start + v) * lanes
                    p.store(self.sums, sums + at, total, lanes)

    def _wide(self, view: Buffer, at: Expr, mask: Expr | None = None) -> Expr:
        """A vector of numbers in memory as float32; zeros where a mask is off."""
        vector = loops.load(view, at, self.lanes, mask)
        wide = f"float32x{self.lanes}" if self.lanes > 1 else "float32"
        if str(vector.ty.dtype) != wide:
            vector = vector.astype(wide)
        return vector if mask is None else tirx.Select(mask, vector, splat(0.0, self.lanes))

    # What is computed of products

    def _units(self, rows: _Rows, panel: Expr, row: Expr, line: Expr) -> None:
        """The new state of the units of a panel; of a GRU that resets before, its gates."""
        self._when_it_has_a_step(rows, panel, row, self._unit_vectors, line)

    def _new_units(self, rows: _Rows, panel: Expr, row: Expr, line: Expr) -> None:
        """The new state of a GRU that resets before its product."""
        self._when_it_has_a_step(rows, panel, row, self._new_vectors, line)

    def _projected(self, rows: _Rows, panel: Expr, row: Expr, line: Expr) -> None:
        """The new state of an LSTM with a projection."""
        self._when_it_has_a_step(rows, panel, row, self._projected_vectors, line)

    def _when_it_has_a_step(
        self, rows: _Rows, panel: Expr, row: Expr,
        write: Callable[[_Place, Expr], None], line: Expr,
    ) -> None:  # fmt: skip
        """Write the vectors of a panel, if the row has this step; else the state stays, and the output is 0."""
        p, t = self.program, self.t
        is_last = write != self._unit_vectors or not self.has_phases
        batch = p.let("batch", rows.first + row)
        count: Expr = self.length
        if self.x.lengths is not None:
            own = loops.load(self.views[self.x.lengths], batch).astype("int64")
            count = p.let("count", tirx.Max(tirx.Min(own, self.length), int64(0)))
        place = p.let("memory", rows.base + row)
        back = count - 1 - t
        if self.step.direction == "bidirectional":
            at = tirx.Select(tirx.EQ(rows.direction, int64(0)), t, back)
        else:
            at = back if self.step.direction == "reverse" else t
        if self.x.lengths is None:
            write(self._place(rows, panel, batch, place, p.let("step", at)), line)
            return
        is_there = t < count
        with p.when(is_there):
            write(self._place(rows, panel, batch, place, p.let("step", at)), line)
        if not is_last:
            return
        with p.otherwise(is_there):
            after = self._place(rows, panel, batch, place, t)
            for v in range(self.vectors):
                here = after.state + v * self.lanes
                before = p.let("before", loops.load(self.h, self.now + here, self.lanes))
                p.store(self.h, self.next + here, before, self.lanes)
                self._write_output(after, v, splat(0.0, self.lanes))

    def _place(self, rows: _Rows, panel: Expr, batch: Expr, place: Expr, step: Expr) -> _Place:
        p = self.program
        outer, inner = (batch, step) if self.form.batch_first else (step, batch)
        size = self.length if self.form.batch_first else self.batch
        line = p.let("cell", (outer * size + inner) * self.directions + rows.direction)
        first = p.let("unit", panel * PANEL)
        return _Place(
            rows.direction, first, line,
            p.let("state", place * self.state_width + first), p.let("own", place * self.width + first),
        )  # fmt: skip

    def _mask(self, first: Expr, v: int, size: int) -> Expr | None:
        """The lanes of a panel's vector that are units; None for all."""
        if size % PANEL == 0:
            return None
        left = loops.clamped_int32(int64(size - v * self.lanes) - first, self.lanes)
        return loops.first_lanes(left, self.lanes)

    def _activation(self, number: int, x: Expr) -> Expr:
        """An activation of a vector."""
        p = self.program
        made = mapped(self.functions[number], p.let("x", x), self.lanes)
        return p.let("activated", value_written_out(made, by_avx512=self.target.has_avx512))

    def _unit_vectors(self, at: _Place, line: Expr) -> None:
        p, lanes = self.program, self.lanes
        every = range(2 if self._resets_before() else self.gates)
        for v in range(self.vectors):
            mask = self._mask(at.unit, v, self.hidden)
            product = [
                p.let("product", loops.load(self.sums, line + (g * PANEL + v * lanes), lanes))
                for g in every
            ]
            given = [p.let("given", self._inputs(at, g, v, mask)) for g in every]
            s = [p.let("s", a + b) for a, b in zip(given, product, strict=True)]
            if self.step.kind == "rnn":
                self._write_state(at, v, self._activation(0, s[0]))
            elif self.step.kind == "gru":
                self._gru(at, v, given, product, s, mask)
            else:
                self._lstm(at, v, s, mask)

    def _inputs(self, at: _Place, gate: int, v: int, mask: Expr | None) -> Expr:
        """A vector of products of the input; those of a later step are prefetched."""
        p = self.program
        place = (at.line * self.gates + gate) * self.hidden + (at.unit + v * self.lanes)
        place = p.let("place", place)
        if v * self.lanes * 4 % CACHE_LINE == 0:
            p.prefetch(self.views[self.x.inputs], place + self.ahead)
        return self._wide(self.views[self.x.inputs], place, mask)

    def _lstm(self, at: _Place, v: int, s: Sequence[Expr], mask: Expr | None) -> None:
        p, lanes = self.program, self.lanes
        assert self.c is not None
        here = at.own + v * lanes
        before = p.let("before", loops.load(self.c, here, lanes))

        def with_peephole(number: int, total: Expr, state: Expr) -> Expr:
            if self.x.peepholes is None:
                return total
            place = (at.direction * 3 + number) * self.hidden + (at.unit + v * lanes)
            return total + self._wide(self.views[self.x.peepholes], place, mask) * state

        i = self._activation(0, with_peephole(0, s[0], before))
        if self.step.input_forget:
            forget = p.let("forget", splat(1.0, lanes) - i)
        else:
            forget = self._activation(0, with_peephole(1, s[1], before))
        c = p.let("c", forget * before + i * self._activation(1, s[2]))
        o = self._activation(0, with_peephole(2, s[3], c))
        p.store(self.c, here, self._rounded(c), lanes)
        h = p.let("h", o * self._activation(2, c))
        if self.x.projection is None:
            self._write_state(at, v, h)
        else:
            p.store(self.between, here, h, lanes)

    def _gru(
        self, at: _Place, v: int, given: Sequence[Expr], product: Sequence[Expr], s: Sequence[Expr],
        mask: Expr | None,
    ) -> None:  # fmt: skip
        p, lanes = self.program, self.lanes
        r, z = self._activation(0, s[0]), self._activation(0, s[1])
        before = p.let("before", loops.load(self.h, self.now + at.state + v * lanes, lanes))
        if self._resets_before():
            p.store(self.between, at.own + v * lanes, r * before, lanes)
            p.store(self.update, at.own + v * lanes, z, lanes)
            return
        own = product[2]
        if self.x.bias is not None:
            place = at.direction * self.hidden + (at.unit + v * lanes)
            own = own + self._wide(self.views[self.x.bias], place, mask)
        n = self._activation(1, given[2] + r * own)
        self._write_state(at, v, self._mixed(z, n, before))

    def _new_vectors(self, at: _Place, line: Expr) -> None:
        p, lanes = self.program, self.lanes
        for v in range(self.vectors):
            mask = self._mask(at.unit, v, self.hidden)
            product = loops.load(self.sums, line + v * lanes, lanes)
            n = self._activation(1, self._inputs(at, 2, v, mask) + product)
            z = p.let("z", loops.load(self.update, at.own + v * lanes, lanes))
            before = p.let("before", loops.load(self.h, self.now + at.state + v * lanes, lanes))
            self._write_state(at, v, self._mixed(z, n, before))

    def _mixed(self, z: Expr, new: Expr, before: Expr) -> Expr:
        return (splat(1.0, self.lanes) - z) * new + z * before

    def _projected_vectors(self, at: _Place, line: Expr) -> None:
        for v in range(self.vectors):
            self._write_state(at, v, loops.load(self.sums, line + v * self.lanes, self.lanes))

    def _write_state(self, at: _Place, v: int, h: Expr) -> None:
        """Write h after a step, and the output."""
        p, lanes = self.program, self.lanes
        h = p.let("h", self._rounded(h))
        p.store(self.h, self.next + at.state + v * lanes, h, lanes)
        self._write_output(at, v, h)

    def _write_output(self, at: _Place, v: int, h: Expr) -> None:
        mask = self._mask(at.unit, v, self.state)
        place = at.line * self.state + (at.unit + v * self.lanes)
        value = h if self.dtype == "float32" else h.astype(f"{self.dtype}x{self.lanes}")
        self.program.store(self.views[self.form.outs[0]], place, value, self.lanes, mask)

    def _rounded(self, value: Expr) -> Expr:
        """A vector of float32 rounded to the type of the state."""
        if self.dtype == "float32":
            return value
        kind = f"x{self.lanes}" if self.lanes > 1 else ""
        return value.astype(f"{self.dtype}{kind}").astype(f"float32{kind}")


@dataclass(frozen=True, eq=False)
class _Place:
    """Where the units of a panel are, for a row and a step."""

    direction: Expr
    unit: Expr
    """The first one."""
    line: Expr
    """The number of the step, the row and the direction in inputs and outputs."""
    state: Expr
    """The place in a copy of h."""
    own: Expr
    """The place in what has a number for each unit."""


_Sums = list[list[Buffer]]
"""The sums of a tile: of each row, and each vector across."""


def _known(size: Expr) -> int:
    known = loops.constant(size)
    assert known is not None, "as was checked"
    return known
