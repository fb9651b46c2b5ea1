"""Attention on CPUs in one pass over the keys, for any lengths: the matrix of scores is never written.

Applies to what `relaxpy.tir.attention_form` recognises: float32 scores of float32, float16 or bfloat16 factors, head
sizes that are known, a mask that leaves each query neighbouring keys.

A task computes up to two vector registers of *lanes*: queries of one key head. Where several heads share a key head,
they are lanes too (Ainslie et al., GQA, 2023), so that a single query still fills a register. Everything lies with
lanes innermost (queries transposed once, scores, sums), which leaves no sum across a register anywhere, and lets keys
and values be read where they are, one number at a time for all lanes:

    for each block of 64 keys:
        scores[j, lanes] = sum over d of key[j, d] * query[d, lanes]       tiles of 8 keys, in registers
        top[lanes] grows to the largest score; totals and sums of the keys before shrink by exp(old top - new top)
        powers[j, lanes] = exp(scores - top); totals += powers
        sums[c, lanes] += over j of value[j, c] * powers[j, lanes]         tiles of 8 columns, in registers
    out[lanes, c] = sums / totals

Blocks that no lane sees are skipped; in those that only some lanes see, a key that is not seen takes no part in any
sum (0 times a value that is infinite or NaN would). Narrow floats are converted a block at a time.

Every result is computed by one task in one order, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from relaxpy.schedule.cpu.transpose import transposed
from relaxpy.tir import loops, math
from relaxpy.tir import stages as s
from relaxpy.tir._tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.attention_form import ORDER, AttentionForm, attention_of
from relaxpy.tir.contraction import Operand, substitute
from relaxpy.tir.loops import Buffer, Expr, PrimFunc, Program, int64
from relaxpy.tir.target import Target
from relaxpy.tir.vectors import vectorise

BLOCK_TILES = 8
"""Tiles of keys in a block: with 64 keys of 64 numbers, scores, queries and sums of a task fill half of a first-level
cache of 48 KiB."""

LARGEST_HEAD = 1024
"""Head sizes beyond would make the task's memory larger than a second-level cache's share."""

LOWEST = -3.4028234663852886e38
"""What the largest score begins with: finite, so that scores of minus infinity have powers of 0."""


def attention_program(func: PrimFunc, target: Target) -> PrimFunc | None:
    """The function with its loops rewritten if it is attention, or None."""
    form = attention_of(func) if target.kind == "llvm" else None
    if form is None or max(_size(form, "depth"), _size(form, "column")) > LARGEST_HEAD:
        return None
    return loops.finished(func, _Writer(form, target).write())


def _size(form: AttentionForm, axis: str) -> int:
    size = loops.constant(form.axes.extents[axis])
    assert size is not None
    return size


class _Writer:
    """Writes the program of one attention."""

    def __init__(self, form: AttentionForm, target: Target) -> None:
        self.form = form
        self.lanes = target.lanes(32)
        self.height = 8 if target.vector_registers >= 32 else 6
        self.block = BLOCK_TILES * self.height
        self.depth, self.columns = _size(form, "depth"), _size(form, "column")
        self.keys = form.axes.extents["key"]
        self.sharing = _sharing(form)
        self.total_lanes = loops.simplify(form.axes.extents["row"] * self.sharing)
        self.program = p = Program()
        operands = (form.query, form.key, form.value, form.out)
        others = [r.source for r in (*s.loads_of(form.score), *s.loads_of(form.result))]
        self.views: dict[Buffer, Buffer] = {}
        for buffer in (*(o.buffer for o in operands), *others):
            if buffer not in self.views:
                self.views[buffer] = p.flat_view(buffer)
        self.is_narrow = form.dtype != "float32"
        self.is_masked = form.seen is not None
        per_lane = any(
            isinstance(v, s.Var) and s.uses(form.score, v) for v in (form.axes.row, form.axes.head)
        )
        self.scores_by_lane = per_lane
        """Whether a score is made of more than its product and what all lanes of a task share."""

    def write(self) -> loops.Stmt:
        """The whole body."""
        p = self.program
        width = 2 * self.lanes
        lanes = p.let("lanes", self.total_lanes)
        pieces = p.let("pieces", loops.ceildiv(lanes, width))
        groups = loops.floordiv(self.form.axes.extents["head"], self.sharing)
        groups = p.let("groups", groups)
        batch = self.form.axes.extents["batch"]
        total = p.let("tasks", loops.simplify(batch * groups * pieces))
        with p.loop("task", total, parallel=True) as task:
            piece = p.let("piece", loops.floormod(task, pieces))
            if self.is_masked:
                # Later queries see more keys: from both ends in turn, so that threads share the work evenly.
                half = p.let("half", loops.floordiv(piece, 2))
                is_even = loops.equals(loops.floormod(piece, 2), 0)
                piece = p.let("folded", loops.select(is_even, half, pieces - 1 - half))
            left = p.let("left", loops.floordiv(task, pieces))
            head = p.let("head", loops.simplify(loops.floormod(left, groups) * self.sharing))
            place = p.let("batch", loops.floordiv(left, groups))
            first = p.let("first_lane", loops.simplify(piece * width))
            count = loops.simplify(lanes - first)
            for above, vectors in ((0, 1), (1, 2)):
                upper = self.lanes if vectors == 1 else 1 << 60
                with p.when(loops.between(count, above * self.lanes, upper)):
                    self._task(place, head, first, vectors)
        return p.body()

    # One task

    def _task(self, batch: Expr, head: Expr, first: Expr, vectors: int) -> None:
        p, form = self.program, self.form
        width = vectors * self.lanes
        self.width, self.vectors = width, vectors
        narrow = self.block * (self.depth + self.columns) if self.is_narrow else 0
        size = (self.depth + self.columns + self.block) * width + narrow
        scratch = p.allocate("scratch", size, "float32")
        self.scratch = scratch
        self.queries_at, self.sums_at = 0, self.depth * width
        self.scores_at = self.sums_at + self.columns * width
        self.keys_at = self.scores_at + self.block * width
        self.values_at = self.keys_at + self.block * self.depth
        self.place = _place({form.axes.batch: batch, form.axes.head: head})
        self.head, self.first = head, first
        self._pack_queries()
        with p.loop("c", self.columns) as c:
            for v in range(vectors):
                self._put(self.sums_at + c * width, v, loops.zero("float32", self.lanes))
        self.top = p.allocate("top", width, "float32")
        self.totals = p.allocate("totals", width, "float32")
        for v in range(vectors):
            at = v * self.lanes
            p.store(self.top, at, self._splat(LOWEST), self.lanes)
            p.store(self.totals, at, self._splat(0.0), self.lanes)
        key_at = p.let("key_at", self._origin(form.key))
        value_at = p.let("value_at", self._origin(form.value))
        low, high = int64(0), self.keys
        if self.is_masked:
            low, high = self._ranges()
        blocks = loops.maximum(loops.ceildiv(loops.maximum(high - low, 0), self.block), 0)
        with p.loop("block", p.let("blocks", blocks)) as number:
            start = p.let("start", loops.simplify(low + number * self.block))
            count = p.let("count", loops.minimum(high - start, self.block))
            self._block(start, count, key_at, value_at)
        self._finish()

    def _splat(self, value: float) -> Expr:
        return loops.broadcast(tirx.FloatImm("float32", value), self.lanes)

    def _get(self, start: Expr | int, vector: int) -> Expr:
        at = loops.simplify(int64(start) + vector * self.lanes)
        return loops.load(self.scratch, at, self.lanes)

    def _put(self, start: Expr | int, vector: int, value: Expr) -> None:
        at = loops.simplify(int64(start) + vector * self.lanes)
        self.program.store(self.scratch, at, value, self.lanes)

    def _lane(self, lane: Expr | int) -> dict[Expr, Expr]:
        """The axes' values of a lane of the task; one past the end repeats the last."""
        p, axes = self.program, self.form.axes
        number = p.let("lane_number", loops.minimum(self.first + lane, self.total_lanes - 1))
        head, row = self.head, number
        if self.sharing > 1:
            row = p.let("row", loops.floordiv(number, self.sharing))
            head = p.let("own_head", head + loops.floormod(number, self.sharing))
        return self.place | _place({axes.head: head, axes.row: row})

    def _offset(self, operand: Operand, place: Mapping[Expr, Expr]) -> Expr:
        """Where in its buffer the numbers of a place begin."""
        offset = substitute(operand.base, place)
        for name, stride in zip(ORDER, operand.strides, strict=True):
            axis = getattr(self.form.axes, name)
            if isinstance(axis, s.Var) and axis in place and stride is not None:
                offset = offset + place[axis] * stride
        return loops.simplify(offset)

    def _origin(self, operand: Operand) -> Expr:
        return self._offset(operand, self.place)

    def _stride(self, operand: Operand, axis: str) -> Expr:
        stride = operand.strides[ORDER.index(axis)]
        return int64(0) if stride is None else stride

    def _read(self, buffer: Buffer, at: Expr, lanes: int = 1) -> Expr:
        """Numbers of a factor as float32."""
        value = loops.load(self.views[buffer], at, lanes)
        if not self.is_narrow:
            return value
        return value.astype("float32" if lanes == 1 else f"float32x{lanes}")

    def _pack_queries(self) -> None:
        """The queries of all lanes, transposed."""
        p, query = self.program, self.form.query
        stride = self._stride(query, "depth")
        if self.depth % self.lanes == 0 and loops.constant(stride) == 1:
            for v in range(self.vectors):
                lines = [
                    p.let("line", self._offset(query, self._lane(v * self.lanes + n)))
                    for n in range(self.lanes)
                ]
                with p.loop("part", self.depth // self.lanes) as part:
                    at = p.let("at", loops.simplify(part * self.lanes))
                    rows = [self._read(query.buffer, line + at, self.lanes) for line in lines]
                    for n, column in enumerate(transposed(p, rows)):
                        self._put((at + n) * self.width, v, column)
            return
        with p.loop("lane", self.width) as lane:
            line = p.let("line", self._offset(query, self._lane(lane)))
            with p.loop("d", self.depth) as d:
                value = self._read(query.buffer, line + d * stride)
                p.store(self.scratch, self.queries_at + d * self.width + lane, value)

    def _ranges(self) -> tuple[Expr, Expr]:
        """The keys that some lane sees; which each lane does, and which all do, is kept."""
        p, seen = self.program, self.form.seen
        assert seen is not None
        self.seen_from = p.allocate("seen_from", self.width, "uint32")
        self.seen_number = p.allocate("seen_number", self.width, "uint32")
        ends = p.allocate("ends", 4, "int64")
        for n, value in enumerate((self.keys, 0, 0, self.keys)):
            p.store(ends, n, int64(value))
        with p.loop("lane", self.width) as lane:
            place = self._lane(lane)
            low, high = (p.let("end", substitute(end, place)) for end in (seen.low, seen.high))
            p.store(self.seen_from, lane, low.astype("uint32"))
            p.store(self.seen_number, lane, loops.maximum(high - low, 0).astype("uint32"))
            for n, (value, combine) in enumerate(
                ((low, tirx.min), (high, tirx.max), (low, tirx.max), (high, tirx.min))
            ):
                p.store(ends, n, combine(loops.load(ends, n), value))
        some = p.let("first", loops.load(ends, 0)), p.let("end", loops.load(ends, 1))
        self.all_from = p.let("all_from", loops.load(ends, 2))
        self.all_to = p.let("all_to", loops.load(ends, 3))
        return some

    # One block of keys

    def _block(self, start: Expr, count: Expr, key_at: Expr, value_at: Expr) -> None:
        p, form = self.program, self.form
        key_step, value_step = self._stride(form.key, "key"), self._stride(form.value, "key")
        key_line = p.let("key_line", loops.simplify(key_at + start * key_step))
        value_line = p.let("value_line", loops.simplify(value_at + start * value_step))
        if self.is_narrow:
            self._widen(form.key, "depth", self.depth, key_line, key_step, count, self.keys_at)
            self._widen(
                form.value, "column", self.columns, value_line, value_step, count, self.values_at
            )
            keys = _Rows(self.scratch, int64(self.keys_at), int64(self.depth), int64(1))
            values = _Rows(self.scratch, int64(self.values_at), int64(self.columns), int64(1))
        else:
            keys = _Rows(
                self.views[form.key.buffer], key_line, key_step, self._stride(form.key, "depth")
            )
            values = _Rows(
                self.views[form.value.buffer], value_line, value_step,
                self._stride(form.value, "column"),
            )  # fmt: skip
        self._products(keys, values, count)
        if self.scores_by_lane:
            self._scores_by_lane(start, count)
        if not self.is_masked:
            self._softmax(start, count, is_masked=False)
            self._weigh(values, start, count, is_masked=False)
            return
        is_seen = p.let("is_seen", loops.both(start >= self.all_from, start + count <= self.all_to))
        for is_masked, branch in ((False, p.when), (True, p.otherwise)):
            with branch(is_seen):
                self._softmax(start, count, is_masked=is_masked)
                self._weigh(values, start, count, is_masked=is_masked)

    def _widen(
        self, operand: Operand, axis: str, size: int, line: Expr, step: Expr, count: Expr, to: int
    ) -> None:
        """Copy the block's numbers as float32."""
        p, stride = self.program, self._stride(operand, axis)
        lanes = self.lanes if size % self.lanes == 0 and loops.constant(stride) == 1 else 1
        with p.loop("j", count) as j:
            source = p.let("source", line + j * step)
            with p.loop("part", size // lanes) as part:
                at = part * lanes
                value = self._read(operand.buffer, loops.simplify(source + at * stride), lanes)
                p.store(self.scratch, loops.simplify(to + j * size + at), value, lanes)

    def _prefetch(self, rows: _Rows, first: Expr, number: int, count: Expr, size: int) -> None:
        """Ask for rows that are needed next: they are far apart, and processors do not guess."""
        p = self.program
        if loops.constant(rows.stride) != 1:
            return
        for r in range(number):
            line = rows.start + (first + r) * rows.step
            for at in range(0, size, 16):
                place = tirx.address_of(tirx.BufferLoad(rows.buffer, [loops.simplify(line + at)]))
                zero, three, one = (tirx.IntImm("int32", n) for n in (0, 3, 1))
                p.add(
                    tirx.Evaluate(
                        tirx.call_llvm_intrin("void", "llvm.prefetch.p0", place, zero, three, one)
                    )
                )

    def _products(self, keys: _Rows, values: _Rows, count: Expr) -> None:
        """The products of all lanes with the block's keys, into the scores."""
        p, width, height = self.program, self.width, self.height
        with p.loop("tile", loops.ceildiv(count, height)) as tile:
            first = p.let("first", tile * height)
            lines = [
                p.let(
                    "line",
                    loops.simplify(keys.start + loops.minimum(first + r, count - 1) * keys.step),
                )
                for r in range(height)
            ]
            if not self.is_narrow:
                self._prefetch(keys, first + height, height, count, self.depth)
                self._prefetch(values, first, height, count, self.columns)
            with self._tile(height) as sums, p.loop("d", self.depth) as d:
                queries = [
                    p.let("query", self._get(self.queries_at + d * width, v))
                    for v in range(self.vectors)
                ]
                for r in range(height):
                    at = loops.simplify(lines[r] + d * keys.stride)
                    sums.add(r, loops.load(keys.buffer, at), queries)
            for r in range(height):
                for v in range(self.vectors):
                    self._put(self.scores_at + (first + r) * width, v, sums.value(r, v))

    def _score(self, product: Expr, place: Mapping[Expr, Expr]) -> Expr:
        """The score of a product."""

        def load(node: s.Load) -> Expr:
            at = s.substitute(s.flat_index(node.indices, node.source.shape), place)
            return tirx.BufferLoad(self.views[node.source], [loops.simplify(at)])

        value = s.map_loads(self.form.score, load)
        return s.substitute(value, {**place, self.form.product: product})

    def _scores_by_lane(self, start: Expr, count: Expr) -> None:
        """Make scores of products where each lane has a formula of its own, a bias by query, say."""
        p = self.program
        with p.loop("lane", self.width) as lane:
            place = self._lane(lane)
            with p.loop("j", count) as j:
                at = p.let("at", loops.simplify(self.scores_at + j * self.width + lane))
                own = place | _place({self.form.axes.key: start + j})
                p.store(self.scratch, at, self._score(loops.load(self.scratch, at), own))

    def _shared_score(self, j: Expr, start: Expr, vector: int) -> Expr:
        """The scores of a vector of lanes where all have the same formula."""
        at = loops.simplify(self.scores_at + j * self.width + vector * self.lanes)
        if self.scores_by_lane:
            return loops.load(self.scratch, at, self.lanes)
        place = self.place | _place({self.form.axes.key: start + j})
        stmt = vectorise(
            lambda lane: tirx.BufferStore(
                self.scratch,
                self._score(tirx.BufferLoad(self.scratch, [at + lane]), place),
                [at + lane],
            ),
            self.lanes,
        )
        assert stmt is not None, "lanes are neighbours in the scores"
        return stmt.value

    def _mask(self, key: Expr, vector: int) -> Expr:
        """Which lanes of a vector see a key."""
        at = vector * self.lanes
        first, number = (loops.load(b, at, self.lanes) for b in (self.seen_from, self.seen_number))
        # One comparison for both ends: before the first, the difference of unsigned numbers is large.
        return loops.broadcast(key.astype("uint32"), self.lanes) - first < number

    def _softmax(self, start: Expr, count: Expr, *, is_masked: bool) -> None:
        """Scores of the block to powers; the largest score, the totals and the sums so far follow."""
        p, width = self.program, self.width
        top = p.allocate("block_top", width, "float32")
        for v in range(self.vectors):
            at = v * self.lanes
            p.store(top, at, loops.load(self.top, at, self.lanes), self.lanes)
        with p.loop("j", count) as j:
            for v in range(self.vectors):
                at = v * self.lanes
                score = self._shared_score(j, start, v)
                if is_masked:
                    score = tirx.Select(self._mask(start + j, v), score, self._splat(-float("inf")))
                score = p.let("score", score)
                self._put(self.scores_at + j * width, v, score)
                largest = tirx.Max(loops.load(top, at, self.lanes), score)
                p.store(top, at, largest, self.lanes)
        self.decay = p.allocate("decay", width, "float32")
        total = p.allocate("block_total", width, "float32")
        for v in range(self.vectors):
            at = v * self.lanes
            new = p.let("new", loops.load(top, at, self.lanes))
            decay = p.let("shrink", self._exp(loops.load(self.top, at, self.lanes) - new))
            p.store(self.decay, at, decay, self.lanes)
            p.store(self.top, at, new, self.lanes)
            p.store(total, at, loops.load(self.totals, at, self.lanes) * decay, self.lanes)
        with p.loop("j", count) as j:
            for v in range(self.vectors):
                at = v * self.lanes
                score = self._get(self.scores_at + j * width, v)
                power = p.let("power", self._exp(score - loops.load(top, at, self.lanes)))
                self._put(self.scores_at + j * width, v, power)
                p.store(total, at, loops.load(total, at, self.lanes) + power, self.lanes)
        for v in range(self.vectors):
            at = v * self.lanes
            p.store(self.totals, at, loops.load(total, at, self.lanes), self.lanes)

    def _exp(self, vector: Expr) -> Expr:
        """The power of a vector of numbers that are at most 0."""
        scalar = tirx.decl_buffer([int64(self.lanes)], "float32", "x", layout=None)
        stmt = vectorise(
            lambda lane: tirx.BufferStore(
                scalar, math.exp_of_negative(tirx.BufferLoad(scalar, [lane])), [lane]
            ),
            self.lanes,
        )
        assert stmt is not None, "powers have vectors"
        return s.map_loads(stmt.value, lambda _: vector)

    def _weigh(self, values: _Rows, start: Expr, count: Expr, *, is_masked: bool) -> None:
        """Add the block's values by their powers to the sums."""
        p, height = self.program, self.height
        whole, rest = divmod(self.columns, height)

        def tile(first: Expr, rows: int) -> None:
            at_sums = p.let("at_sums", loops.simplify(self.sums_at + first * self.width))

            def before(r: int, v: int) -> Expr:
                decay = loops.load(self.decay, v * self.lanes, self.lanes)
                return self._get(at_sums + r * self.width, v) * decay

            origin = p.let("origin", loops.simplify(values.start + first * values.stride))
            with self._tile(rows, before) as sums, p.loop("j", count) as j:
                line = p.let("line", loops.simplify(origin + j * values.step))
                powers = [
                    p.let("power", self._get(self.scores_at + j * self.width, v))
                    for v in range(self.vectors)
                ]
                masks = None
                if is_masked:
                    masks = [self._mask(start + j, v) for v in range(self.vectors)]
                for r in range(rows):
                    at = loops.simplify(line + r * values.stride)
                    sums.add(r, loops.load(values.buffer, at), powers, masks)
            for r in range(rows):
                for v in range(self.vectors):
                    self._put(at_sums + r * self.width, v, sums.value(r, v))

        with p.loop("columns", whole) as n:
            tile(p.let("first_column", n * height), height)
        if rest:
            tile(int64(whole * height), rest)

    @contextmanager
    def _tile(self, rows: int, before: Callable[[int, int], Expr] | None = None) -> Iterator[_Sums]:
        """Sums in registers: `rows` of all lanes, beginning at 0 or at what `before` gives."""
        p = self.program
        # One buffer a row: together they would be too large for the stack, and so for registers.
        sums = _Sums(
            p, [p.allocate(f"sums{r}", self.width, "float32") for r in range(rows)], self.lanes
        )
        for r in range(rows):
            for v in range(self.vectors):
                value = self._splat(0.0) if before is None else before(r, v)
                p.store(sums.rows[r], v * self.lanes, value, self.lanes)
        yield sums

    # Results

    def _finish(self) -> None:
        """Divide the sums by the totals, and store them."""
        p, form = self.program, self.form
        one, zero = self._splat(1.0), self._splat(0.0)
        for v in range(self.vectors):
            at = v * self.lanes
            total = p.let("total", loops.load(self.totals, at, self.lanes))
            # Of nothing seen the sums are 0, and stay 0.
            share = tirx.Select(tirx.EQ(total, zero), zero, one / total)
            p.store(self.totals, at, share, self.lanes)
        stride = self._stride(form.out, "column")
        if self.columns % self.lanes == 0 and loops.constant(stride) == 1:
            self._store_vectors()
            return
        with p.loop("lane", self.width) as lane:
            place = self._lane(lane)
            line = p.let("line", self._offset(form.out, place))
            share = p.let("share", loops.load(self.totals, lane))
            with p.loop("c", self.columns) as c:
                sums = loops.load(self.scratch, self.sums_at + c * self.width + lane)
                value = self._result(
                    p.let("quotient", sums * share), place | _place({form.axes.column: c})
                )
                p.store(self.views[form.out.buffer], line + c * stride, value)

    def _store_vectors(self) -> None:
        """The results, transposed back, a vector of columns at a time. Lanes past the end repeat the last one, and
        what is stored for them."""
        p, form = self.program, self.form
        for v in range(self.vectors):
            places = [self._lane(v * self.lanes + n) for n in range(self.lanes)]
            lines = [p.let("line", self._offset(form.out, place)) for place in places]
            with p.loop("part", self.columns // self.lanes) as part:
                first = p.let("c", loops.simplify(part * self.lanes))
                share = loops.load(self.totals, v * self.lanes, self.lanes)
                sums = [
                    self._get(self.sums_at + (first + n) * self.width, v) * share
                    for n in range(self.lanes)
                ]
                for place, line, row in zip(places, lines, transposed(p, sums), strict=True):
                    self._store_row(place, line, first, row)

    def _store_row(self, place: Mapping[Expr, Expr], line: Expr, first: Expr, row: Expr) -> None:
        """Store the quotients of some neighbouring columns, from the first on, of one lane."""
        p, form = self.program, self.form
        out = self.views[form.out.buffer]
        if form.result.same_as(form.quotient):
            p.store(out, line + first, row, self.lanes)
            return
        with p.scope():
            kept = p.allocate("quotients", self.lanes, "float32")
            p.store(kept, 0, row, self.lanes)

            def element(lane: Expr) -> tirx.BufferStore:
                own = place | _place({form.axes.column: first + lane})
                value = self._result(tirx.BufferLoad(kept, [lane]), own)
                return tirx.BufferStore(out, value, [line + first + lane])

            stmt = vectorise(element, self.lanes)
            if stmt is not None:
                p.add(stmt)
                return
            with p.loop("lane", self.lanes) as lane:
                p.add(element(lane))

    def _result(self, quotient: Expr, place: Mapping[Expr, Expr]) -> Expr:
        """What is stored for a quotient."""

        def load(node: s.Load) -> Expr:
            at = s.substitute(s.flat_index(node.indices, node.source.shape), place)
            return tirx.BufferLoad(self.views[node.source], [loops.simplify(at)])

        value = s.map_loads(self.form.result, load)
        return s.substitute(value, {**place, self.form.quotient: quotient})


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of numbers: number c of row j is at `start + j * step + c * stride`."""

    buffer: Buffer
    start: Expr
    step: Expr
    stride: Expr


@dataclass(frozen=True, eq=False)
class _Sums:
    """A tile of sums in registers."""

    program: Program
    rows: list[Buffer]
    lanes: int

    def value(self, row: int, vector: int) -> Expr:
        return loops.load(self.rows[row], vector * self.lanes, self.lanes)

    def add(
        self, row: int, factor: Expr, vectors: list[Expr], masks: list[Expr] | None = None
    ) -> None:
        """Add a number times each of the vectors, in the lanes of the masks."""
        number = loops.broadcast(self.program.let("number", factor), self.lanes)
        for v, vector in enumerate(vectors):
            old = self.value(row, v)
            new = old + number * vector
            if masks is not None:
                new = tirx.Select(masks[v], new, old)
            self.program.store(self.rows[row], v * self.lanes, new, self.lanes)


def _place(values: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """The values of those axes that are loops."""
    return {axis: value for axis, value in values.items() if isinstance(axis, s.Var)}


def _sharing(form: AttentionForm) -> int:
    """How many neighbouring heads share a key head, where that is known; else 1."""
    head, heads = form.axes.head, loops.constant(form.axes.extents["head"])
    if heads is None or not isinstance(head, s.Var):
        return 1
    found: list[int] = []

    def division(node: tirx.FloorDiv) -> None:
        divisor = loops.constant(node.b)
        if node.a.same_as(head) and divisor is not None:
            found.append(divisor)

    tvm_ffi.structural_walk(form.key.base, (tirx.FloorDiv, division))
    for size in found:
        if (
            size > 1
            and heads % size == 0
            and all(_is_shared(operand, head, size) for operand in (form.key, form.value))
        ):
            return size
    return 1


def _is_shared(operand: Operand, head: Expr, size: int) -> bool:
    """Whether heads that come together in groups of this size read the same numbers."""
    stride = operand.strides[ORDER.index("head")]
    if stride is not None and loops.constant(stride) != 0:
        return False
    group, member = tirx.Var("group", "int64"), tirx.Var("member", "int64")
    analyzer = tvm.sym.Analyzer()
    analyzer.bind(member, tvm.ir.Range.from_min_extent(int64(0), int64(size)))
    analyzer.bind(group, tvm.ir.Range.from_min_extent(int64(0), int64(1 << 40)))
    base = analyzer.simplify(s.substitute(operand.base, {head: group * size + member}))
    return not s.uses(base, member)
