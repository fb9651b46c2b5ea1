"""Long rows in blocks: so that few of them occupy all threads, and many stay in a cache from stage to stage.

Stages that share rows (softmax, norms, the place of a maximum) fall into *phases*: a stage that reads the result of a
reduction runs after it. In a phase, a row goes block by block through all stages. A reduction leaves one result a
block, in memory; a later phase combines these, in order.

Weights (`exp(x - largest)`, as in softmax) do not wait for the maximum of the row. They, and their sum, are computed
relative to that of their block, and multiplied by the block's own weight in the next phase.

Where there are enough rows, a task takes one row through all phases. Few rows are cut into pieces, which are runs of
blocks, and all pieces finish a phase before the next begins. Which of these is decided when the kernel runs. Blocks
depend on the length of a row only, and so do the bits of its result: neither on threads nor on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import gcd

from relaxpy.backend.cpu.rules.attention_access import LOWEST
from relaxpy.backend.cpu.rules.blocks import has_blocks
from relaxpy.backend.cpu.rules.nests import StageWriter, is_side_by_side
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.rules.search import property_of
from relaxpy.backend.cpu.rules.streaming import Stream
from relaxpy.tir.numerics import scalar
from relaxpy.tir.numerics.math import exp_of_negative
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    PrimFunc,
    Program,
    both,
    ceildiv,
    constant,
    equals,
    floordiv,
    int64,
    load,
    minimum,
    select,
    simplify,
)
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Stage, Var
from relaxpy.tir.tvm import tirx, tvm_ffi

BLOCK = 1 << 12
"""Elements of a block: 16 KiB of float32, which a first-level cache holds beside the result."""
LONG = 4 * BLOCK
"""The shortest row that is taken in blocks."""
_FEW = 4
"""So few rows leave threads without work."""
_WORTH = 1 << 16
"""The elements from which on pieces of rows are worth another launch, which takes 2 to 3 µs."""
_PIECES = 64
"""The most pieces of a row."""


class _Kind(Enum):
    WIDE = "an element of the result for each of the row"
    REDUCTION = "one result, of the whole row"
    SEARCH = "the first place of a reduction's result"
    NUMBER = "one number, from others"


@dataclass(frozen=True, eq=False)
class _Part:
    """A stage in its phase."""

    stage: Stage
    kind: _Kind
    phase: int
    """That of its blocks; of a number, the first in which it is known."""
    top: Stage | None
    """The maximum to which its weights, or their sum, are relative block by block."""

    @property
    def known(self) -> int:
        """The first phase in which other stages read its whole result."""
        return self.phase + (self.kind is _Kind.REDUCTION or self.top is not None)

    @property
    def is_of_blocks(self) -> bool:
        """Is it computed block by block?"""
        return self.kind in (_Kind.WIDE, _Kind.REDUCTION)


@dataclass(frozen=True)
class LongRows:
    """Stages whose rows are taken in blocks."""

    parts: Sequence[_Part]
    rows: Sequence[Expr]
    """The extents of the dimensions that are rows."""
    length: Expr
    """The elements of a row."""
    partial: Mapping[Buffer, Buffer]
    """The memory for the results of blocks, of each reduction."""

    @property
    def stages(self) -> list[Stage]:
        """The stages of all parts."""
        return [part.stage for part in self.parts]

    @property
    def blocks(self) -> Expr:
        """The number of blocks of a row."""
        return ceildiv(self.length, BLOCK)

    def top_of(self, buffer: Buffer) -> Stage | None:
        """The maximum to which blocks in a buffer are relative."""
        tops = (part.top for part in self.parts if part.top and part.stage.buffer.same_as(buffer))
        return next(tops, None)


def may_be_cut(stages: Sequence[Stage]) -> bool:
    """Could `long_rows` find rows in these stages? Decided from the lengths of reductions alone."""
    return any(stage.combiner is not None and _is_long(stage) for stage in stages)


def _is_long(stage: Stage) -> bool:
    known = constant(product(stage.reduce_extents))
    return known is not None and known >= LONG


def long_rows(stages: Sequence[Stage], rows: int, func: PrimFunc) -> LongRows | None:
    """The long rows of these stages, which share so many leading dimensions; None for other stages."""
    if not may_be_cut(stages) or (len(stages) == 1 and has_blocks(stages[0], columns=False)):
        return None
    parts: list[_Part] = []
    for number, stage in enumerate(stages):
        kind = _kind(stage, stages, rows, func)
        if kind is None:
            return None
        top = _top(stage, kind, parts, stages[number + 1 :])
        before = [part.known for part in parts if stage.reads(part.stage.buffer)]
        if top is not None:
            before = [part.phase for part in parts if part.stage is top]
        parts.append(_Part(stage, kind, max(before, default=0), top))
    wide = [part.stage.extents[-1] for part in parts if part.kind is _Kind.WIDE]
    reductions = [part.stage for part in parts if part.kind is _Kind.REDUCTION]
    lengths = [part.stage.reduce_extents[0] for part in parts if part.stage.reduce_axes]
    if not all(s.same_extents(lengths[:1], [other]) for other in (*lengths, *wide)):
        return None
    extents = list(stages[-1].buffer.shape[:rows])
    count = product([*extents, ceildiv(lengths[0], BLOCK)])
    partial = {
        stage.buffer: tirx.decl_buffer(
            [count], stage.buffer.dtype, f"{stage.name}_blocks", scope="global", layout=None
        )
        for stage in reductions
    }
    return LongRows(parts, extents, lengths[0], partial)


def _kind(stage: Stage, stages: Sequence[Stage], rows: int, func: PrimFunc) -> _Kind | None:
    is_number = not any(isinstance(place, Var) for place in stage.index[rows:])
    if stage.combiner is None:
        is_row = len(stage.index) == rows + 1 and s.is_output(stage, func)
        return _Kind.NUMBER if is_number else _Kind.WIDE if is_row else None
    if not is_number or len(stage.reduce_axes) != 1:
        return None
    if not is_side_by_side(stage, stage.reduce_axes[0]):
        return None
    if property_of(stage) is None:
        return _Kind.REDUCTION
    return _Kind.SEARCH if _searched(stage, stages) else None


def _searched(stage: Stage, stages: Sequence[Stage]) -> Stage | None:
    """The extremum whose first place a search finds: it asks for equality, or for any two NaNs."""
    condition = property_of(stage)
    for other, best, element in _extrema(stage, stage.reduce_axes[0], stages):
        if any(tvm_ffi.structural_equal(condition, form) for form in _equalities(element, best)):
            return other
    return None


def _equalities(a: Expr, b: Expr) -> list[Expr]:
    """That two numbers are equal, and NaN is equal to NaN, in every form that programs have."""
    same = scalar.equal(a, b)
    if not scalar.dtype_of(a).is_float:
        return [same]
    return [scalar.logical_or(same, scalar.logical_and(scalar.isnan(a), scalar.isnan(b))), same]


def _top(
    stage: Stage, kind: _Kind, before: Sequence[_Part], after: Sequence[Stage]
) -> Stage | None:
    """The maximum to which a stage's blocks can be relative: those of weights that a later stage replaces, or of the
    sum of weights."""
    if kind is _Kind.WIDE and any(other.buffer.same_as(stage.buffer) for other in after):
        axis = stage.axes[-1]
    elif kind is _Kind.REDUCTION and stage.combiner is not None and stage.combiner.kind == "add":
        axis = stage.reduce_axes[0]
    else:
        return None
    if isinstance(stage.value, s.Load):
        return next((part.top for part in before if stage.reads(part.stage.buffer)), None)
    for other, best, element in _extrema(stage, axis, [part.stage for part in before]):
        if tvm_ffi.structural_equal(stage.value, exp_of_negative(element - best)):
            return other
    return None


def _extrema(
    stage: Stage, axis: Var, stages: Sequence[Stage]
) -> Iterator[tuple[Stage, Expr, Expr]]:
    """The maxima and minima over a row that a stage reads: each with its read, and with the value of which it is the
    extremum, at a place on the axis."""
    for other in stages:
        if other.combiner is None or len(other.reduce_axes) != 1 or not stage.reads(other.buffer):
            continue
        if (other.combiner.of_numbers() or other.combiner).kind in ("max", "min"):
            best = stage.reads(other.buffer)[0]
            indices = zip(other.index, best.indices, strict=True)
            places = {row: place for row, place in indices if isinstance(row, Var)}
            yield other, best, s.substitute(other.value, {**places, other.reduce_axes[0]: axis})


def write_long_rows(writer: StageWriter, long: LongRows, func: PrimFunc) -> None:
    """Write the stages; the memory for the results of blocks is allocated here."""
    p = writer.program
    for buffer in long.partial.values():
        p.add(tirx.AllocBuffer(buffer))
    outputs = [part for part in long.parts if s.is_output(part.stage, func)]
    streams = {
        part.stage.buffer: Stream.of(p, writer.target, part.stage, writer.params)
        for part in outputs
        if part.stage.buffer not in writer.shared
    }
    phases = 1 + max(part.known for part in outputs)
    count, blocks = product(long.rows), long.blocks
    few = both(count < int64(_FEW), simplify(count * long.length) >= int64(_WORTH))
    pieces = _stored(p, "pieces", simplify(select(few, minimum(blocks, _PIECES), 1)))
    turns = _stored(p, "turns", simplify(select(few, phases, 1)))
    with (
        p.loop("turn", turns, about=phases) as turn,
        p.loop("row", simplify(count * pieces), parallel=True) as index,
    ):
        *places, piece = split_index(p, index, [*long.rows, pieces])
        row = simplify(s.flat_index(places, long.rows) * blocks)
        first = _stored(p, "first", floordiv(piece * blocks, pieces))
        end = _stored(p, "end", floordiv((piece + int64(1)) * blocks, pieces))
        for phase in range(phases):
            with p.when(tirx.Or(equals(turns, 1), equals(turn, phase))):
                part = _Phase(writer, long, outputs, streams, phase, places, row)
                is_first = equals(piece, 0)
                if not part.parts:
                    with p.when(is_first):
                        part.write_numbers(True)
                    continue
                part.write_numbers(is_first)
                with p.loop("block", simplify(end - first)) as block:
                    part.write_block(_stored(p, "block", simplify(first + block)))


def _stored(p: Program, name: str, value: Expr) -> Expr:
    """The value of an index, in memory: TVM's passes ask many questions of a name that they can look through."""
    if constant(value) is not None:
        return value
    buffer = p.allocate(name, 1, "int64")
    p.store(buffer, 0, value)
    return p.let(name, load(buffer, 0))


@dataclass
class _Phase:
    """One phase of one row."""

    writer: StageWriter
    long: LongRows
    outputs: Sequence[_Part]
    """The results of the program."""
    streams: Mapping[Buffer, Stream | None]
    number: int
    places: Sequence[Expr]
    """The row."""
    first: Expr
    """The place of its first block in the memory for the results of blocks."""
    known: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])
    """The numbers that are known before its blocks begin."""

    @property
    def parts(self) -> list[_Part]:
        """The stages of its blocks."""
        return [part for part in self.long.parts if part.phase == self.number and part.is_of_blocks]

    def write_numbers(self, is_first: Expr | bool) -> None:
        """Compute the numbers that the blocks need, and those that become known in this phase and are results; the
        first piece of a row stores the latter."""
        p = self.writer.program
        for part in self._numbers():
            stage = part.stage
            number = p.allocate(stage.name, 1, str(stage.buffer.dtype))
            match part.kind:
                case _Kind.REDUCTION:
                    self._combine(part, number)
                case _Kind.SEARCH:
                    self._search(stage, number)
                case _:
                    self.writer.write(_into(number, self._with_known(stage)), self._at(stage))
            self.known[stage.buffer] = number
            if part.known == self.number and part in self.outputs:
                with p.when(is_first):
                    place = [s.substitute(i, self._at(stage)) for i in stage.index]
                    p.add(tirx.BufferStore(stage.buffer, load(number, 0), place))

    def _numbers(self) -> list[_Part]:
        """The parts that are known before the blocks, and needed."""
        needed: list[_Part] = []
        for part in reversed(self.long.parts):
            if part.kind is _Kind.WIDE or part.known > self.number:
                continue
            is_result = part.known == self.number and part in self.outputs
            readers = [*self.parts, *needed]
            if is_result or any(self._reads(reader, part.stage) for reader in readers):
                needed.insert(0, part)
        return needed

    def _reads(self, reader: _Part, stage: Stage) -> bool:
        """Does a part read the number of a stage, be it to know of what its blocks, or those that it reads, are
        relative to?"""
        tops = (reader.top, *(self.long.top_of(read.source) for read in reader.stage.loads))
        return any(top is stage for top in tops) or bool(reader.stage.reads(stage.buffer))

    def _combine(self, part: _Part, total: Buffer) -> None:
        """Combine the results of a row's blocks in order."""
        p, combiner = self.writer.program, part.stage.combiner
        assert combiner is not None, "a reduction"
        p.store(total, 0, combiner.init)
        with p.loop("block", self.long.blocks) as block:
            value = self._result(part.stage, block)
            if part.top is not None:
                value = value * self._weight(part.top, block)
            p.store(total, 0, combiner.join(load(total, 0), value))

    def _result(self, stage: Stage, block: Expr) -> Expr:
        """The result of a block."""
        return load(self.long.partial[stage.buffer], simplify(self.first + block))

    def _own(self, top: Stage, block: Expr) -> Expr:
        """The maximum to which a block is relative: its own, or the least number where that is minus infinity."""
        return tirx.Max(tirx.const(LOWEST, "float32"), self._result(top, block))

    def _weight(self, top: Stage, block: Expr) -> Expr:
        """The weight of a block's maximum."""
        return exp_of_negative(self._own(top, block) - load(self.known[top.buffer], 0))

    def _search(self, stage: Stage, place: Buffer) -> None:
        """Search the first block whose result is the extremum, then that block."""
        p, best = self.writer.program, _searched(stage, self.long.stages)
        assert best is not None, "recognised as a search"
        number = p.allocate("number", 1, "int64")
        p.store(number, 0, int64(0))
        found = self._result(best, load(number, 0))
        hit = _equalities(found, load(self.known[best.buffer], 0))[0]
        has_next = load(number, 0) < simplify(self.long.blocks - int64(1))
        with p.repeat(both(has_next, tirx.Not(hit))):
            p.store(number, 0, load(number, 0) + int64(1))
        start, length = self._span(p.let("number", load(number, 0)))
        (axis,), value = stage.reduce_axes, self._with_known(stage).value
        condition = s.substitute(value.condition, {axis: start + axis})
        value = tirx.Select(condition, axis, value.false_value)
        of_block = replace(stage, value=value, reduce_extents=(length,))
        self.writer.write(_into(place, of_block), self._at(stage))
        p.store(place, 0, load(place, 0) + start.astype(str(place.dtype)))

    def write_block(self, block: Expr) -> None:
        """Write the stages of one block of the row."""
        p, span = self.writer.program, self._span(block)
        owns, factors = dict[Buffer, Buffer](), dict[Buffer, Buffer]()
        for part in self.parts:
            if part.top is not None:
                owns[part.top.buffer] = p.allocate("own", 1, "float32")
                continue
            for read in part.stage.loads:
                top = self.long.top_of(read.source)
                if top is not None and read.source not in factors:
                    factors[read.source] = p.allocate("factor", 1, "float32")
                    p.store(factors[read.source], 0, self._weight(top, block))

        def changed(part: _Part) -> Stage:
            def read(node: s.Load) -> Expr:
                if part.top is not None:
                    is_top = node.source.same_as(part.top.buffer)
                    return load(owns[node.source], 0) if is_top else node
                factor = factors.get(node.source)
                return node if factor is None else node * load(factor, 0)

            stage = self._with_known(part.stage)
            return self._of_block(replace(stage, value=s.map_loads(stage.value, read)), block, span)

        parts = [(part.stage, changed(part), self._at(part.stage)) for part in self.parts]
        while parts:
            done, stage, at = parts.pop(0)
            if parts and self.writer.write_reduced(stage, parts[0][1], {**at, **parts[0][2]}):
                done, *_ = parts.pop(0)
            else:
                replace(self.writer, stream=self.streams.get(stage.buffer)).write(stage, at)
            if done.buffer in owns:
                p.store(owns[done.buffer], 0, self._own(done, block))

    def _of_block(self, stage: Stage, block: Expr, span: tuple[Expr, Expr]) -> Stage:
        start, length = span
        axis = stage.axes[-1] if stage.combiner is None else stage.reduce_axes[0]
        value = s.substitute(stage.value, {axis: start + axis})
        if stage.combiner is None:
            index, extents = (*stage.index[:-1], start + axis), (*stage.extents[:-1], length)
            return replace(stage, value=value, index=index, extents=extents)
        return replace(
            stage,
            buffer=self.long.partial[stage.buffer],
            index=(simplify(self.first + block),),
            value=value,
            reduce_extents=(length,),
            combiner=replace(stage.combiner, init=stage.combiner.neutral()),
        )

    def _span(self, block: Expr) -> tuple[Expr, Expr]:
        """The start and the length of a block."""
        start, length = simplify(block * int64(BLOCK)), self.long.length
        # Vectors need no rest where this shows that the length is a multiple of theirs.
        unit = gcd(BLOCK, constant(length) or 1)
        units = minimum(BLOCK // unit, floordiv(length - start, unit))
        units = _stored(self.writer.program, "units", units)
        return start, simplify(units * int64(unit))

    def _with_known(self, stage: Stage) -> Stage:
        """The stage, reading the numbers that are known."""
        change = {buffer: (number, len(buffer.shape)) for buffer, number in self.known.items()}
        return replace(stage, value=s.rebuffer(stage.value, change))

    def _at(self, stage: Stage) -> dict[Var, Expr]:
        """The values of the axes of a stage that are rows."""
        leading = zip(stage.index, self.places, strict=False)
        return {axis: place for axis, place in leading if isinstance(axis, Var)}


def _into(number: Buffer, stage: Stage) -> Stage:
    """The stage with its one result in a number."""
    return replace(stage, buffer=number, index=(int64(0),))
