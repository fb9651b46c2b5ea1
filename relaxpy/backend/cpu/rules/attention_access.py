"""The memory accesses shared by the attention programs, and what is computed from products and sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from relaxpy.backend.cpu import narrowing
from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.target import CACHE_LINE, CpuTarget
from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.numerics.math import exp_of_negative
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Program, Stmt, int64
from relaxpy.tir.programs.vectors import lanes_of, mapped, vectorise
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.attention import AttentionForm, heads_of_a_key
from relaxpy.tir.recognise.contraction import Operand, substitute
from relaxpy.tir.tvm import tirx, tvm

TOGETHER = 8
"""The most heads of a task where all heads share one key head (Shazeer, MQA, 2019). With 16, one thread takes a fifth
less time, but there are half as many tasks."""
LOWEST = -3.4028234663852886e38
"""The initial value of the largest score: finite, so that scores of minus infinity have powers of 0."""


@dataclass(frozen=True, eq=False)
class Task:
    """The lanes that a task computes: neighbours from `first` on, counted over all queries of a batch and the heads
    that share a key head."""

    batch: Expr
    head: Expr
    """The first of those heads."""
    first: Expr


@dataclass(frozen=True, eq=False)
class Rows:
    """A matrix in memory: number c of row j is at `start + j * step + c * stride`."""

    buffer: Buffer
    start: Expr
    step: Expr
    stride: Expr


class Access:
    """The memory of one attention, and the program that is being written."""

    def __init__(self, form: AttentionForm, target: CpuTarget) -> None:
        self.form, self.axes = form, form.axes
        self.program = p = Program()
        self.keys = form.axes.extents["key"]
        self.sharing = heads_of_a_key(form, TOGETHER)
        """The number of neighbouring heads that share a key head."""
        lanes = loops.simplify(form.axes.extents["row"] * self.sharing)
        self.lanes = p.let("lanes", lanes)
        """The number of lanes that share a key head."""
        self.is_narrow = form.dtype != "float32"
        own = Arithmetic.of(form.dtype, form.dtype, "float32", target)
        widened = replace(own, dot=None)
        has_words = form.depth % own.group == 0 and loops.is_constant(
            self.stride(form.key, "depth"), 1
        )
        self.scoring = own if has_words else widened
        """The arithmetic of products of queries and keys, which are words of neighbours along the depth."""
        self.has_narrowing = target.has("avx512bf16") and target.has_avx512
        """Does it have the instructions that round powers, and make them?"""
        self.narrows_results = self.has_narrowing and _is_narrowed(form)
        """Are results two vectors that are rounded at once?"""
        self.weighing = own if form.is_rounded and self.has_narrowing else widened
        """That of powers and values, which are words of neighbouring keys: of narrow factors, powers are rounded."""
        self.has_own_scores = any(
            isinstance(axis, s.Var) and s.uses(form.score, axis)
            for axis in (form.axes.row, form.axes.head)
        )
        """Does a score depend on more than its product and what all lanes of a task share?"""
        ends = () if form.seen is None else (form.seen.low, form.seen.high)
        head = form.axes.head
        self.heads_see_alike = not (
            isinstance(head, s.Var) and any(s.uses(end, head) for end in ends)
        )
        """Do the heads of one query see the same keys?"""
        others = [r.source for r in (*s.loads_of(form.score), *s.loads_of(form.result))]
        self._views: dict[Buffer, Buffer] = {}
        self._bits: dict[Buffer, Buffer] = {}
        for operand in (form.query, form.key, form.value, form.out):
            others.append(operand.buffer)
        for buffer in others:
            if buffer not in self._views:
                self._views[buffer] = p.flat_view(buffer)
        for operand in (form.query, form.key, form.value, form.out):
            # In bfloat16, the address of an element would become that of its float32.
            buffer = operand.buffer
            is_bits = str(buffer.dtype) != "float32"
            self._bits[buffer] = p.flat_view(buffer, "uint16") if is_bits else self.view(buffer)

    def around(self, body: Stmt) -> Stmt:
        """Return the body with the definitions that it needs."""
        if self.form.is_rounded and self.has_narrowing:
            body = with_definitions(narrowing.DEFINITION, body)
        return self.scoring.around(body) if self.scoring.group > 1 else self.weighing.around(body)

    # Positions

    def shared_place(self, task: Task) -> dict[Expr, Expr]:
        """The values of the axes that the lanes of a task share; those of a key head are those of its first head."""
        return self.form.place(batch=task.batch, head=task.head)

    def lane_place(self, task: Task, lane: Expr | int) -> dict[Expr, Expr]:
        """The values of the axes at a lane of a task; a lane past the end repeats the last one."""
        p = self.program
        number = p.let("lane_number", loops.minimum(task.first + lane, self.lanes - 1))
        head, row = task.head, number
        if self.sharing > 1:
            row = p.let("row", loops.floordiv(number, self.sharing))
            head = p.let("own_head", head + loops.floormod(number, self.sharing))
        return self.form.place(batch=task.batch, head=head, row=row)

    def seen_keys(
        self, task: Task, used: Expr, note: Callable[[Expr, Expr, Expr], None]
    ) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
        """The keys that some of a task's first `used` lanes see, and those that all of them see: the first, and the one
        after the last. `note` writes what is kept of each lane: its number, its first key, and the one after its
        last."""
        p, seen = self.program, self.form.seen
        assert seen is not None
        ends = p.allocate("ends", 4, "int64")
        for n, value in enumerate((self.keys, 0, 0, self.keys)):
            p.store(ends, n, int64(value))
        with p.loop("lane", used) as lane:
            place = self.lane_place(task, lane)
            low, high = (p.let("end", substitute(end, place)) for end in (seen.low, seen.high))
            note(lane, low, high)
            changes = ((low, tirx.min), (high, tirx.max), (low, tirx.max), (high, tirx.min))
            for n, (value, combine) in enumerate(changes):
                p.store(ends, n, combine(loops.load(ends, n), value))
        some_from, some_to, all_from, all_to = (p.let("end", loops.load(ends, n)) for n in range(4))
        return (some_from, some_to), (all_from, all_to)

    def at_key(self, place: Mapping[Expr, Expr], key: Expr) -> dict[Expr, Expr]:
        return {**place, **self.form.place(key=key)}

    def at_column(self, place: Mapping[Expr, Expr], column: Expr) -> dict[Expr, Expr]:
        return {**place, **self.form.place(column=column)}

    def offset(self, operand: Operand, place: Mapping[Expr, Expr]) -> Expr:
        """The offset in its buffer of an operand's numbers at a position."""
        return loops.truncating(self.form.offset(operand, place))

    def stride(self, operand: Operand, axis: str) -> Expr:
        """The stride along an axis."""
        return self.form.stride(operand, axis)

    def is_contiguous(self, operand: Operand, axis: str, lanes: int) -> bool:
        """Do the numbers along an axis fill whole vectors and have stride 1?"""
        extent = loops.constant(self.axes.extents[axis])
        return loops.constant(self.stride(operand, axis)) == 1 and (extent or 0) % lanes == 0

    def view(self, buffer: Buffer) -> Buffer:
        """The buffer as a flat view."""
        return self._views[buffer]

    def words(self, operand: Operand) -> Buffer:
        """The bits of a narrow factor's numbers as a flat view."""
        return self._bits[operand.buffer]

    def read(self, buffer: Buffer, at: Expr, lanes: int = 1) -> Expr:
        """Read numbers of a factor as float32."""
        value = loops.load(self.view(buffer), at, lanes)
        if not self.is_narrow:
            return value
        return value.astype("float32" if lanes == 1 else f"float32x{lanes}")

    def prefetch(
        self, operand: Operand, at: Expr, *, writing: bool = False, level: int = 1
    ) -> None:
        """Prefetch the cache line of a number of the keys, values or results, which need not exist, into the cache of
        this level."""
        self.program.prefetch(self._bits[operand.buffer], at, writing=writing, level=level)

    def line_numbers(self, operand: Operand) -> int:
        """The numbers of an operand in a cache line."""
        return CACHE_LINE * 8 // tvm.DataType(str(operand.buffer.dtype)).bits

    # Values

    def score(self, product: Expr, place: Mapping[Expr, Expr]) -> Expr:
        """The score of a product at a position."""
        return self._made(self.form.score, {**place, self.form.product: product})

    def result(self, quotient: Expr, place: Mapping[Expr, Expr]) -> Expr:
        """The stored value for a quotient."""
        return self._made(self.form.result, {**place, self.form.quotient: quotient})

    def _made(self, value: Expr, place: Mapping[Expr, Expr]) -> Expr:
        def load(node: s.Load) -> Expr:
            at = s.substitute(s.flat_index(node.indices, node.source.shape), place)
            return tirx.BufferLoad(self.view(node.source), [loops.simplify(at)])

        return s.substitute(s.map_loads(value, load), place)

    def store_neighbours(
        self, quotients: Sequence[Expr], place: Mapping[Expr, Expr], line: Expr, column: Expr
    ) -> None:
        """As `store_quotients`, two vectors of words, where powers are rounded."""
        p = self.program
        quotients = [p.let("quotients", each) for each in quotients]
        lanes = lanes_of(quotients[0])
        if self.narrows_results:
            at = loops.simplify(line + column)
            p.store(self.words(self.form.out), at, narrowing.narrowed(*quotients), 2 * lanes)
            return
        for half, each in enumerate(quotients):
            self.store_quotients(each, lanes, place, line, loops.simplify(column + half * lanes))

    def store_quotients(
        self, quotients: Expr, lanes: int, place: Mapping[Expr, Expr], line: Expr, column: Expr
    ) -> None:
        """Store a vector of contiguous columns of the lane at a position, whose results begin at `line`."""
        p, form = self.program, self.form
        out = self.view(form.out.buffer)
        if form.result.same_as(form.quotient):
            p.store(out, line + column, quotients, lanes)
            return
        with p.scope():
            kept = p.allocate("quotients", lanes, "float32")
            p.store(kept, 0, quotients, lanes)

            def element(lane: Expr) -> tirx.BufferStore:
                own = self.at_column(place, column + lane)
                value = self.result(tirx.BufferLoad(kept, [lane]), own)
                return tirx.BufferStore(out, value, [line + column + lane])

            stmt = vectorise(element, lanes)
            if stmt is not None:
                p.add(stmt)
                return
            with p.loop("lane", lanes) as lane:
                p.add(element(lane))


@dataclass(frozen=True)
class Exponents:
    """How powers are made from products, if they are powers of 2 that are rounded."""

    scale: float | None
    """The factor of products that makes them scores, if it is applied where powers are computed: until then, "scores"
    are products."""
    rate: float
    """The factor that makes "scores" exponents of 2."""

    @classmethod
    def of(cls, form: AttentionForm) -> Exponents:
        scale = _scale_of(form)
        return cls(scale, (1.0 if scale is None else scale) * math.log2(math.e))

    def top(self, largest: Expr) -> Expr:
        """The number subtracted from exponents, of the largest of some "scores". Products are multiplied by the rate
        before that, which is one operation for both. Scores are not: those of masked keys may be as low as numbers
        are, and where all are, their differences count."""
        return largest if self.scale is None else largest * self._rates(largest)

    def exponent(self, score: Expr, top: Expr) -> Expr:
        """The exponent of 2 of a "score", beside a top."""
        rates = self._rates(score)
        return (score - top) * rates if self.scale is None else score * rates - top

    def shrinking(self, old: Expr, new: Expr) -> Expr:
        """The exponent of 2 of what the sums beside an old top are multiplied by for a new one."""
        return (old - new) * self._rates(old) if self.scale is None else old - new

    def _rates(self, vector: Expr) -> Expr:
        return splat(self.rate, lanes_of(vector))


def _is_narrowed(form: AttentionForm) -> bool:
    """Are results quotients that are rounded to bfloat16?"""
    match form.result:
        case tirx.Cast(value=value):
            return value.same_as(form.quotient) and str(form.out.buffer.dtype) == "bfloat16"
        case _:
            return False


def power(vector: Expr, lanes: int) -> Expr:
    """The exponentials of numbers that are at most 0."""
    return mapped(exp_of_negative, vector, lanes)


def splat(value: float, lanes: int) -> Expr:
    """Broadcast a number to all lanes."""
    return loops.broadcast(tirx.FloatImm("float32", value), lanes)


def as_numbers(words: Expr) -> Expr:
    """The bits of words as float32, in which programs keep them."""
    lanes = lanes_of(words)
    kind = "float32" if lanes == 1 else f"float32x{lanes}"
    return words if str(words.ty.dtype) == kind else tirx.reinterpret(kind, words)


def as_words(numbers: Expr, arithmetic: Arithmetic) -> Expr:
    """Words of an arithmetic that are kept as float32."""
    lanes = lanes_of(numbers)
    kind = arithmetic.word if lanes == 1 else f"{arithmetic.word}x{lanes}"
    return numbers if str(numbers.ty.dtype) == kind else tirx.reinterpret(kind, numbers)


def ones(arithmetic: Arithmetic) -> Expr:
    """A vector of words of two bfloat16 that are 1: products with it add up words."""
    return loops.broadcast(tirx.const(0x3F803F80, "int32"), arithmetic.lanes)


def share_of(total: Expr, lanes: int) -> Expr:
    """The reciprocal of the total, by which sums are multiplied. If no key is seen the sums are 0, and stay 0."""
    zero = splat(0.0, lanes)
    return tirx.Select(tirx.EQ(total, zero), zero, splat(1.0, lanes) / total)


def _scale_of(form: AttentionForm) -> float | None:
    """The positive number that a product is multiplied by to make the score; None if there is more to it. Of products
    and of scores, the same is the largest then."""
    match form.score:
        case tirx.Mul(a=product, b=factor) if product.same_as(form.product):
            scale = _number(factor)
            return scale if scale is not None and scale > 0 else None
        case score if score.same_as(form.product):
            return 1.0
        case _:
            return None


def _number(value: Expr) -> float | None:
    """A literal, or a quotient or root of such."""
    match value:
        case tirx.FloatImm(value=number):
            return float(number)
        case tirx.Div(a=a, b=b):
            dividend, divisor = _number(a), _number(b)
            return dividend / divisor if dividend is not None and divisor else None
        case tvm.ir.Call(op=op, args=[arg]) if getattr(op, "name", "") == "tirx.sqrt":
            number = _number(arg)
            return math.sqrt(number) if number is not None and number >= 0 else None
        case _:
            return None
