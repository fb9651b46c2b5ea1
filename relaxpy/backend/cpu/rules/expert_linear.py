"""Linear maps that are chosen by index on CPUs: `relaxpy.tir.recognise.expert_linear`.

The pairs of a row and an expert are sorted by expert (`relaxpy.backend.cpu.rules.expert_pairs`). A task makes some
columns of all pairs: whatever the choices are, the tasks are alike.

Weights are read as they lie, along the depth. A tile of some rows and columns has a vector of partial sums for each
pair of these, and lane l sums the places l, l + lanes, …; in the end the lanes are added in a fixed order. So a row's
result does not depend on other rows, nor on the number of threads.

Codes of 4 and 8 bits become floats in registers if an expert has one row, else the columns of a tile are unpacked once
for all rows. Nibbles are unpacked in the order `_PLACES` of every 32 places, into which the rows are brought before.
Other formulas (3 bits, groups that no vector divides) are unpacked one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.rules.expert_pairs import ExpertWriter, fits
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, Stmt, int64
from relaxpy.tir.programs.vectors import fold, vector_value
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.expert_linear import ExpertLinearForm, expert_linear_of
from relaxpy.tir.recognise.quantized_matmul import Nibbles, Scaled, nibbles_of, scaled
from relaxpy.tir.recognise.stages import Combiner
from relaxpy.tir.tvm import tirx

CHUNK = 32
"""Places of the depth whose codes share a scale, and are unpacked together."""
PANELS = 8
"""Tiles of columns of a task."""
_PLACES = [8 * (place % 4) + place // 4 for place in range(CHUNK)]
"""The order of places in a chunk of nibbles: four words are shifted alike."""
_ADD = Combiner("add", tirx.FloatImm("float32", 0.0))


def expert_linear_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is such a map, or None."""
    form = expert_linear_of(func) if target.kind == "llvm" else None
    if form is None or not fits(form):
        return None
    return Arrangement(lambda: loops.finished(func, _Writer(form, target).body()))


class _Writer(ExpertWriter):
    """Writes the program of one map."""

    def __init__(self, form: ExpertLinearForm, target: CpuTarget) -> None:
        super().__init__(form)
        self.lanes = lanes = target.lanes(32)
        self.height = 4 if target.vector_registers >= 32 else 2
        self.width = next(n for n in (4, 2, 1) if self.columns % n == 0)
        self.whole = self.depth // lanes * lanes
        """Places of the depth that are multiplied as vectors."""
        self.scaled: Scaled | None = None
        self.nibbles: Nibbles | None = None
        if self.depth % CHUNK == 0 and CHUNK % lanes == 0:
            found = scaled(form.weight, form.depth, CHUNK)
            if found is not None:
                self.nibbles = self._nibbles(found)
                if self.nibbles is not None or self._is_contiguous(found.code):
                    self.scaled = found
        self.is_plain = self.scaled is None and self._is_contiguous(form.weight)
        """Are vectors of the weight read as they lie?"""

    def _nibbles(self, found: Scaled) -> Nibbles | None:
        """The words of codes of 4 bits, if those of a chunk are neighbours."""
        nibbles = nibbles_of(found.code, self.form.depth)
        if nibbles is None or not s.uses(nibbles.word.indices[-1], self.form.depth):
            return None
        return nibbles

    def _is_contiguous(self, value: Expr) -> bool:
        """Is the value along the depth that of neighbours in memory?"""
        depth = self.form.depth
        steps = [s.step(load.indices, load.source.shape, depth) for load in s.loads_of(value)]
        bare = s.map_loads(value, lambda node: tirx.const(0, node.ty.dtype))
        return all(step in (0, 1) for step in steps) and not s.uses(bare, depth)

    def body(self) -> Stmt:
        """The pairs by expert, the rows in order, then the parallel loop over all tasks."""
        p, panels = self.program, self.columns // self.width
        self.sort()
        self._bring_rows()
        tasks = -(-panels // PANELS)
        with p.loop("task", tasks, parallel=True) as task:
            scratch = None
            if not self.is_plain:
                scratch = p.allocate("unpacked", self.width * self.depth, "float32")
            first_panel = p.let("first_panel", task * PANELS)
            own = p.let("panels", loops.minimum(panels - first_panel, PANELS))
            with (
                self.each_expert() as (expert, first, count),
                p.loop("panel", own, about=min(panels, PANELS)) as panel,
            ):
                column = p.let("column", (first_panel + panel) * self.width)
                self._panel(scratch, expert, column, first, count)
        return p.body()

    # Before the products

    def _bring_rows(self) -> None:
        """The rows as float32, in the order in which codes are unpacked; as they lie if they are so."""
        p, form = self.program, self.form
        choice = form.place[1]
        self.by_pair = isinstance(choice, s.Var) and s.uses(form.data, choice)
        """Has each pair data of its own?"""
        data = form.data
        is_read = isinstance(data, s.Load) and str(data.ty.dtype) == "float32"
        if (
            is_read
            and self.nibbles is None
            and s.step(data.indices, data.source.shape, form.depth) == 1
        ):
            self.data = self.views[data.source]
            self.line = lambda pair: self.offset(data, {**self.places(pair), form.depth: int64(0)})
            return
        count = self.pairs if self.by_pair else self.rows
        self.data = made = self.program.allocate("rows", count * self.depth, "float32")
        self.line = lambda pair: self._number(pair) * self.depth
        with p.loop("line", count, parallel=True) as line:
            pair = line if self.by_pair else line * self.choices
            places = self.places(p.let("pair", pair))
            start = p.let("start", line * self.depth)
            if self.nibbles is None:
                with p.loop("k", self.depth) as k:
                    p.store(made, start + k, self.at(data, {**places, form.depth: k}))
                return
            with p.loop("chunk", self.depth // CHUNK) as chunk:
                base = p.let("base", chunk * CHUNK)
                for place, k in enumerate(_PLACES):
                    value = self.at(data, {**places, form.depth: base + k})
                    p.store(made, start + base + place, value)

    def _number(self, pair: Expr) -> Expr:
        return pair if self.by_pair else loops.floordiv(pair, self.choices)

    # Tiles

    def _panel(
        self, scratch: Buffer | None, expert: Expr, column: Expr, first: Expr, count: Expr
    ) -> None:
        """Some columns of all rows of an expert."""
        p = self.program
        if scratch is None:
            self._tiles(_AsTheyLie(self, expert, column), column, first, count)
            return
        unpacked = _Unpacked(self, scratch)
        if self.scaled is None:
            self._unpack(unpacked, expert, column)
            self._tiles(unpacked, column, first, count)
            return
        codes, is_one = _Codes(self, self.scaled, expert, column), tirx.EQ(count, int64(1))
        with p.when(is_one):
            self._tile(codes, column, first, 1)
        with p.otherwise(is_one):
            self._unpack(unpacked, expert, column)
            self._tiles(unpacked, column, first, count)

    def _tiles(self, weights: _Weights, column: Expr, first: Expr, count: Expr) -> None:
        p, height = self.program, self.height
        whole = p.let("whole", loops.floordiv(count, height))
        with p.loop("tile", whole, about=1) as tile:
            self._tile(weights, column, p.let("top", first + tile * height), height)
        rest = p.let("rest", first + whole * height)
        with p.loop("row", p.let("left", count - whole * height), about=1) as row:
            self._tile(weights, column, p.let("top", rest + row), 1)

    def _tile(self, weights: _Weights, column: Expr, first: Expr, height: int) -> None:
        """So many of the sorted pairs, from the first on, and the columns of a panel."""
        p, lanes, width = self.program, self.lanes, self.width
        pairs = [p.let("pair", loops.load(self.order, first + r)) for r in range(height)]
        lines = [p.let("line", self.line(pair)) for pair in pairs]
        sums = [[p.allocate("sum", lanes, "float32") for _ in range(width)] for _ in pairs]
        rests = [[p.allocate("rest", 1, "float32") for _ in range(width)] for _ in pairs]
        for buffer in (each for own in sums for each in own):
            p.store(buffer, 0, loops.zero("float32", lanes), lanes)
        size = weights.vectors * lanes
        with p.loop("k", self.whole // size) as k:
            place = p.let("place", k * size)
            found = [weights.read(place, c) for c in range(width)]
            for v in range(weights.vectors):
                for line, own in zip(lines, sums, strict=True):
                    x = p.let("x", loops.load(self.data, line + place + v * lanes, lanes))
                    for each, column_vectors in zip(own, found, strict=True):
                        total = loops.load(each, 0, lanes) + x * column_vectors[v]
                        p.store(each, 0, total, lanes)
        for buffer in (each for own in rests for each in own):
            p.store(buffer, 0, loops.zero("float32"))
        if self.depth > self.whole:
            self._rest(weights, lines, rests)
        for pair, own, rest in zip(pairs, sums, rests, strict=True):
            for c, (each, last) in enumerate(zip(own, rest, strict=True)):
                total = fold(p, loops.load(each, 0, lanes), lanes, _ADD)
                p.store(last, 0, total + loops.load(last, 0))
                self.store(pair, column + c, last, int64(0))

    def _rest(
        self, weights: _Weights, lines: Sequence[Expr], rests: Sequence[Sequence[Buffer]]
    ) -> None:
        """Add the places of the depth that make no whole vector."""
        p = self.program
        with p.loop("k", self.depth - self.whole) as k:
            place = p.let("place", k + self.whole)
            for line, own in zip(lines, rests, strict=True):
                x = p.let("x", loops.load(self.data, line + place))
                for c, each in enumerate(own):
                    p.store(each, 0, loops.load(each, 0) + x * weights.one(place, c))

    def _unpack(self, unpacked: _Unpacked, expert: Expr, column: Expr) -> None:
        """The columns of a panel as floats."""
        p, lanes = self.program, self.lanes
        if self.scaled is None:
            for c in range(self.width):
                with p.loop("k", self.depth) as k:
                    value = self.weight(expert, column + c, k)
                    p.store(unpacked.buffer, k + c * self.depth, value)
            return
        codes = _Codes(self, self.scaled, expert, column)
        with p.loop("chunk", self.depth // CHUNK) as chunk:
            place = p.let("place", chunk * CHUNK)
            for c in range(self.width):
                for v, vector in enumerate(codes.read(place, c)):
                    at = place + (c * self.depth + v * lanes)
                    p.store(unpacked.buffer, at, vector, lanes)

    # Elements

    def weight(self, expert: Expr, column: Expr, place: Expr) -> Expr:
        """An element of the weight."""
        return self.at(self.form.weight, self.weight_places(expert, column, place))

    def weight_places(self, expert: Expr, column: Expr, place: Expr) -> dict[Expr, Expr]:
        """The values of the variables of an element of the weight."""
        return {self.form.expert: expert, self.form.place[2]: column, self.form.depth: place}


class _Weights(Protocol):
    """The weights of a panel's columns."""

    vectors: int
    """How many `read` gives."""

    def read(self, place: Expr, column: int) -> list[Expr]:
        """Vectors of a column from this place of the depth on."""
        ...

    def one(self, place: Expr, column: int) -> Expr:
        """A number of a column."""
        ...


class _AsTheyLie:
    """Weights that are floats in memory."""

    vectors = 1

    def __init__(self, writer: _Writer, expert: Expr, column: Expr) -> None:
        self.writer, self.expert, self.column = writer, expert, column

    def read(self, place: Expr, column: int) -> list[Expr]:
        writer = self.writer
        own = self.column + column
        vector = vector_value(
            lambda lane: writer.weight(self.expert, own, place + lane), writer.lanes
        )
        assert vector is not None, "as was checked"
        return [writer.program.let("weights", vector)]

    def one(self, place: Expr, column: int) -> Expr:
        return self.writer.weight(self.expert, self.column + column, place)


class _Unpacked:
    """Weights that were unpacked, a column after the other."""

    vectors = 1

    def __init__(self, writer: _Writer, buffer: Buffer) -> None:
        self.writer, self.buffer = writer, buffer

    def read(self, place: Expr, column: int) -> list[Expr]:
        at, lanes = place + column * self.writer.depth, self.writer.lanes
        return [self.writer.program.let("weights", loops.load(self.buffer, at, lanes))]

    def one(self, place: Expr, column: int) -> Expr:
        return loops.load(self.buffer, place + column * self.writer.depth)


class _Codes:
    """Weights of 4 or 8 bits, chunks of which share their numbers."""

    def __init__(self, writer: _Writer, scaled: Scaled, expert: Expr, column: Expr) -> None:
        self.writer, self.scaled, self.expert, self.column = writer, scaled, expert, column
        self.vectors = CHUNK // writer.lanes

    def read(self, place: Expr, column: int) -> list[Expr]:
        writer, p, lanes = self.writer, self.writer.program, self.writer.lanes
        values = writer.weight_places(self.expert, self.column + column, place)
        ahead = {**values, writer.form.place[2]: self.column + column + writer.width}
        for load in s.loads_of(writer.form.weight):
            # The next panel: rows of codes are too short for the processor to foresee them.
            p.prefetch(writer.views[load.source], writer.offset(load, ahead))

        def number(value: Expr | None) -> Expr | None:
            if value is None:
                return None
            return p.let("number", loops.broadcast(writer.at(value, values), lanes))

        shift, slope, offset = map(
            number, (self.scaled.shift, self.scaled.slope, self.scaled.offset)
        )
        found = []
        for codes in self._codes(values, place):
            vector = codes if shift is None else codes + shift
            vector = vector if slope is None else vector * slope
            vector = vector if offset is None else vector + offset
            found.append(p.let("weights", vector))
        return found

    def one(self, place: Expr, column: int) -> Expr:
        raise AssertionError("chunks divide the depth")

    def _codes(self, values: Mapping[Expr, Expr], place: Expr) -> Iterator[Expr]:
        """The vectors of a chunk's codes, as floats."""
        writer, lanes = self.writer, self.writer.lanes
        if writer.nibbles is None:
            for v in range(self.vectors):
                yield self._converted(values, place + v * lanes)
            return
        p, word = writer.program, writer.nibbles.word
        four = loops.load(writer.views[word.source], writer.offset(word, values), 4)
        four = p.let("words", four)
        places = [tirx.IntImm("int32", n) for n in range(lanes)]
        every = four if lanes == 4 else tirx.Shuffle([four] * (lanes // 4), places)
        words = p.let("all", every)
        for v in range(self.vectors):
            by = [tirx.IntImm("uint32", 4 * ((v * lanes + n) // 4)) for n in range(lanes)]
            shifts = tirx.Shuffle(by, places)
            code = (words >> shifts) & loops.broadcast(tirx.IntImm("uint32", 15), lanes)
            yield code.astype(f"int32x{lanes}").astype(f"float32x{lanes}")

    def _converted(self, values: Mapping[Expr, Expr], start: Expr) -> Expr:
        """A vector of codes that are integers in memory, as floats."""
        writer, code = self.writer, self.scaled.code

        def element(lane: Expr) -> Expr:
            own = {**values, writer.form.depth: start + lane}
            return writer.at(code, own).astype("float32")

        vector = vector_value(element, writer.lanes)
        assert vector is not None, "as was checked"
        return vector
