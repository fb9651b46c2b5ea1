"""Write stages as loops for a processor: vectors inside, accumulators in registers, symbolic extents throughout.

A `StageWriter` writes one stage for given values of its row axes (`at`); the other axes become loops. Element-wise
stages use whole vectors along their last axis. Reductions use vectors along the last reduced or the last kept axis,
whichever is contiguous in memory: *rows* keep several vectors of partial results and fold them at the end, *columns*
keep one result per lane. The order of additions depends on the program and the target's vector width, never on threads.

A row of an element-wise stage that the next stage reduces is computed and accumulated in one pass. Searches skip blocks
(`search`), and bfloat16 is widened and rounded in pairs (`pairs`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial, reduce

from relaxpy.backend.cpu.rules.collapse import collapse
from relaxpy.backend.cpu.rules.joining import joining
from relaxpy.backend.cpu.rules.pairs import has_pairs, paired_store, paired_values
from relaxpy.backend.cpu.rules.search import first_block, property_of
from relaxpy.backend.cpu.rules.segments import Segment, segments
from relaxpy.backend.cpu.rules.streaming import Stream
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.ir.dtype import DType
from relaxpy.tir.numerics.floats import is_unordered
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    Program,
    broadcast,
    ceildiv,
    clamped_int32,
    constant,
    first_lanes,
    floordiv,
    int64,
    load,
    minimum,
    simplify,
)
from relaxpy.tir.programs.vectors import (
    fold,
    masked_store,
    masked_value,
    vector_loop,
    vector_value,
    vectorise,
)
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Combiner, Stage, Var
from relaxpy.tir.tvm import tirx, tvm

At = Mapping[Var, Expr]
"""The values of fixed axes."""

_CHEAP_UNROLL, _EXPENSIVE_UNROLL = 4, 2
"""Accumulators of a row that run side by side: enough to cover an addition's latency."""
_CHAINS, _LONG_CHAINS, _SHORT_CHAIN = 4, 2, 100
"""Vectors of an expensive element-wise stage side by side: of so many nodes at most, and of more."""
_CHOICES = 3
"""The most choices on top of each other that become branches around a run that may stream."""
_FEW_LINES = 8
"""A run of fewer cache lines is not worth the condition that it streams."""
TILE_VECTORS = 8
"""Vectors of neighbouring results that a reduction over outer axes keeps in registers."""


class Lanes(Enum):
    """The axis of a reduction that is vectorised."""

    KEPT = "the last axis of the result"
    REDUCED = "the last reduced axis"
    NONE = "no axis"


@dataclass(frozen=True)
class StageWriter:
    """Writes stages into a program for a target."""

    program: Program
    target: CpuTarget
    shared: frozenset[Buffer] = frozenset()
    """Buffers that one stage writes and another accesses: all stages must access them in the same way (`collapse`)."""
    params: Sequence[Var] = ()
    """The parameters of the program: among them what it reads and writes in memory."""
    stream: Stream | None = None
    """The result of an element-wise stage, if it may be large (`streaming`)."""

    def write(
        self,
        stage: Stage,
        at: At,
        span: tuple[Expr, Expr] | None = None,
        goes_on: Expr | None = None,
    ) -> None:
        """Write the stage with the axes in `at` fixed; `span` is (start, length) of its last free axis, by default all
        of it. Where the condition `goes_on` holds, a reduction of columns begins with the results that its buffer
        holds."""
        if span is None:
            stage = collapse(self.program, stage, tuple(at), self.shared)
        if stage.combiner is None:
            self._elements(stage, at, span)
        elif self.vector_axis(stage, at) is Lanes.REDUCED:
            self._rows(stage, at)
        elif self.vector_axis(stage, at) is Lanes.KEPT:
            self._columns(stage, at, span, goes_on)
        else:
            self._scalars(stage, at)

    def lanes(self, stage: Stage) -> int:
        """Elements per vector, as many as the widest type in the stage allows."""
        dtypes = [stage.buffer.dtype, *(read.source.dtype for read in stage.loads)]
        types = [tvm.DataType(str(dtype)) for dtype in dtypes]
        # Narrow floats are computed as float32.
        narrow = any(DType(str(dtype)).is_narrow for dtype in dtypes)
        return self.target.lanes(max(32 if narrow else 8, *(dtype.bits for dtype in types)))

    def vector_axis(self, stage: Stage, at: At) -> Lanes:
        """The axis of a reduction to vectorise."""
        free = free_axes(stage, at)
        if str(stage.buffer.dtype) == "bool":
            return Lanes.NONE  # vectors of bools gain nothing, and have no accumulator in memory
        if free and is_side_by_side(stage, free[-1]) and s.uses(stage.index[-1], free[-1]):
            return (
                Lanes.KEPT
            )  # results are contiguous along the last dimension, so a mask can exclude some
        if is_side_by_side(stage, stage.reduce_axes[-1]) or s.is_expensive(stage.value):
            return Lanes.REDUCED
        return Lanes.NONE

    def _elements(self, stage: Stage, at: At, span: tuple[Expr, Expr] | None) -> None:
        p = self.program
        free = free_axes(stage, at)
        if not free:
            p.add(_store(stage, at, stage.value))
            return
        axis = free[-1]
        start, extent = span if span is not None else (int64(0), extent_of(stage, axis))
        with ExitStack() as loops:
            fixed = {**at, **self._loops(loops, stage, free[:-1])}
            value = s.substitute(stage.value, fixed)
            for part in segments(p, value, axis, start, extent):
                self._streamed_run(fixed, axis, part, stage)

    def _streamed_run(
        self, at: At, axis: Var, part: Segment, stage: Stage, choices: int = _CHOICES
    ) -> None:
        """As `_run`, written twice if it may stream: with streaming stores, and with ordinary ones. Values that take
        longer to compute than to write do not. A choice that holds for the whole run becomes a branch around it."""
        p, stream, ordinary = self.program, self.stream, replace(self, stream=None)
        if stream is None or not is_side_by_side(stage, axis):
            ordinary._run(at, axis, part, stage)
            return
        if choices and s.is_choice(part.value) and not s.uses(part.value.args[0], axis):
            condition = p.let("choice", part.value.args[0])
            for branch, value in zip((p.when, p.otherwise), part.value.args[1:], strict=True):
                with branch(condition):
                    self._streamed_run(at, axis, replace(part, value=value), stage, choices - 1)
            return
        known = constant(part.length)
        if s.is_expensive(part.value, axis) or (
            known is not None and known < _FEW_LINES * stream.line
        ):
            ordinary._run(at, axis, part, stage)
            return
        streams = stream.begins(_store(stage, {**at, axis: part.start}, stage.value))
        with p.when(streams):
            self._run(at, axis, part, stage)
        with p.otherwise(streams):
            ordinary._run(at, axis, part, stage)

    def _run(self, at: At, axis: Var, part: Segment, stage: Stage) -> None:
        """The positions of one axis that have a value in common."""
        stage = replace(stage, value=part.value)
        if self._run_of_pairs(at, axis, part, stage):
            return
        wide = is_side_by_side(stage, axis) or s.is_expensive(stage.value)
        lanes = self.lanes(stage) if wide else 1
        vector_loop(
            self.program,
            axis.name,
            part.length,
            lanes,
            lambda i: _store(stage, {**at, axis: part.start + i}, stage.value),
            max(self._chains(stage, part.length), self._line(lanes) // lanes),
            None if self.stream is None else self.stream.add,
        )

    def _line(self, lanes: int) -> int:
        """The elements of a cache line of a result that is streamed, if these are more than a vector has."""
        return lanes if self.stream is None else max(lanes, self.stream.line)

    def _chains(self, stage: Stage, length: Expr) -> int:
        """The vectors of an element-wise stage that are computed side by side: several of a long chain of operations,
        if registers hold them beside its constants."""
        if not stage.is_expensive or self.target.vector_registers < 32:
            return 1
        chains = _CHAINS if stage.size <= _SHORT_CHAIN else _LONG_CHAINS
        known = constant(length)
        while known is not None and chains > 1 and known < chains * self.lanes(stage):
            chains //= 2
        return chains

    def _run_of_pairs(self, at: At, axis: Var, part: Segment, stage: Stage) -> bool:
        """As `_run`, with bfloat16 in pairs. Returns False, and writes nothing, where that does not apply."""
        p, lanes = self.program, self.lanes(stage)
        if lanes == 1 or str(stage.buffer.dtype) != "bfloat16" or not has_pairs(stage, axis):
            return False
        stage = replace(
            stage,
            value=s.substitute(stage.value, dict(at)),
            index=tuple(s.substitute(i, dict(at)) for i in stage.index),
        )

        def rest_at(start: Expr) -> tirx.BufferStore | None:
            return vectorise(
                lambda lane: _store(stage, {axis: part.start + start + lane}, stage.value), lanes
            )

        one = rest_at(int64(0))
        if one is None or masked_store(one, first_lanes(int64(1), lanes)) is None:
            return False
        if paired_store(stage, axis, part.start, lanes) is None:
            return False
        # The two halves of words are chains, too.
        words = lanes * max(1, self._chains(stage, part.length) // 2)
        width = self._line(2 * words)
        words = width // 2
        whole = floordiv(part.length, width)
        with p.loop(axis.name, whole) as i:
            store = paired_store(stage, axis, part.start + i * int64(width), words)
            assert store is not None, "what vectorises at 0 does so everywhere"
            (p.add if self.stream is None else self.stream.add)(store)
        done = p.let("done", simplify(whole * int64(width)))
        rest = simplify(part.length - done)
        with p.when(rest > 0), p.loop(axis.name, ceildiv(rest, lanes)) as i:
            store, left = rest_at(done + i * int64(lanes)), rest - i * int64(lanes)
            assert store is not None, "what vectorises at 0 does so everywhere"
            p.add(_masked(store, first_lanes(clamped_int32(left, lanes), lanes)))
        return True

    def write_reduced(self, producer: Stage, stage: Stage, at: At) -> bool:
        """Write an element-wise stage and a reduction of what it gives, in one pass over their common axis. Returns
        False, and writes nothing, if they have no such axis or do not vectorise along it."""
        producer, stage = (
            collapse(self.program, each, tuple(at), self.shared) for each in (producer, stage)
        )
        if not self._are_one_pass(producer, stage, at):
            return False
        self._rows(stage, at, producer)
        return True

    def _are_one_pass(self, producer: Stage, stage: Stage, at: At) -> bool:
        free = free_axes(producer, at)
        if producer.combiner is not None or stage.combiner is None or len(free) != 1:
            return False
        if free_axes(stage, at) or len(stage.reduce_axes) != 1 or property_of(stage) is not None:
            return False
        lanes, (axis,) = self.lanes(stage), stage.reduce_axes
        written = [s.substitute(i, {**at, free[0]: axis}) for i in producer.index]
        reads = [
            [s.substitute(i, dict(at)) for i in read.indices]
            for read in stage.reads(producer.buffer)
        ]
        return (
            len(reads) > 0
            and all(s.equal_indices(read, written) for read in reads)
            and s.same_extents([extent_of(producer, free[0])], stage.reduce_extents)
            and lanes == self.lanes(producer)
            and self.vector_axis(stage, at) is Lanes.REDUCED
            and is_side_by_side(producer, free[0])
            and not s.has_choice(producer.value)
            and _is_maskable(producer, at, free[0], lanes)
            and _is_maskable(stage, at, axis, lanes)
        )

    def _rows(self, stage: Stage, at: At, producer: Stage | None = None) -> None:
        """A reduction with vectors along the last reduced axis, for each position of the free axes; of what an
        element-wise stage computes in the same pass, if one is given."""
        p, lanes, combiner = self.program, self.lanes(stage), _combiner(stage)
        dtype = str(stage.buffer.dtype)
        *outer, axis = stage.reduce_axes
        with ExitStack() as kept:
            fixed = {**at, **self._loops(kept, stage, free_axes(stage, at))}
            whole, unroll = _is_maskable(stage, fixed, axis, lanes), _unroll(stage, producer, lanes)
            if whole:
                stage = self._from_first_hit(stage, fixed)
            sums = [p.allocate(f"sum{u}", lanes, dtype) for u in range(unroll)]
            unknown = p.allocate("unknown", lanes, dtype) if combiner.of_numbers() else None
            totals = sums if unknown is None else [*sums, unknown]
            for total in totals:
                p.store(total, 0, broadcast(combiner.neutral(), lanes), lanes)
            scalar = None if whole else self._allocate_scalar("rest", combiner.neutral())
            probe = vector_value(
                lambda lane: s.substitute(stage.value, {**fixed, axis: lane}), lanes
            )
            with ExitStack() as loops:
                places = {**fixed, **self._loops(loops, stage, outer)}
                if probe is None and scalar is not None:
                    with p.loop(axis.name, stage.reduce_extents[-1]) as i:
                        self._gather(scalar, combiner, _at(stage, {**places, axis: i}))
                else:
                    self._row(_Sums(sums, unknown, scalar), stage, lanes, places, producer)
            for other in reversed(totals[1:]):
                joined = combiner.join(load(sums[0], 0, lanes), load(other, 0, lanes))
                p.store(sums[0], 0, joined, lanes)
            total = fold(p, load(sums[0], 0, lanes), lanes, combiner)
            if scalar is not None:
                total = combiner.join(total, load(scalar, 0))
            p.add(_store(stage, fixed, _with_init(combiner, total)))

    def _from_first_hit(self, stage: Stage, at: At) -> Stage:
        """Skip the blocks in which a search finds nothing: the stage for the next block. Others stay as they are."""
        condition = property_of(stage)
        if condition is None:
            return stage
        (axis,), (extent,) = stage.reduce_axes, stage.reduce_extents
        lanes = self.lanes(replace(stage, buffer=stage.loads[0].source, value=condition))

        def test(start: Expr) -> Expr:
            found = vector_value(
                lambda lane: s.substitute(condition, {**at, axis: start + lane}), lanes
            )
            assert found is not None, "a value vectorises with its condition"
            return found

        start, size = first_block(self.program, test, extent, lanes)
        return replace(
            stage,
            value=s.substitute(stage.value, {axis: start + axis}),
            reduce_extents=(self.program.let("length", minimum(size, extent - start)),),
        )

    def _row(
        self, sums: _Sums, stage: Stage, lanes: int, places: At, producer: Stage | None
    ) -> None:
        """One run along the last reduced axis: unrolled vectors, single vectors, then the rest. The rest is masked, or
        accumulated one by one if its reads are not contiguous.
        """
        p, combiner, axis = self.program, _combiner(stage), stage.reduce_axes[-1]
        extent = stage.reduce_extents[-1]
        first = sums.vectors[0]

        def value_at(start: Expr, mask: Expr | None = None) -> Expr:
            if producer is None:
                return _vector(stage.value, {**places, axis: start}, axis, lanes, mask)
            buffer, made = producer.buffer, self._made(producer, places, start, lanes, mask)

            def read(node: s.Load) -> Expr:
                own = node.source.same_as(buffer)
                return tirx.BufferLoad(made, [axis - start]) if own else node

            value = s.map_loads(stage.value, read)
            return _vector(value, {**places, axis: start}, axis, lanes, mask)

        def pairs_at(starts: Sequence[Expr]) -> list[Expr] | None:
            if producer is not None or len(starts) % 2 or not has_pairs(stage, axis):
                return None
            fixed = replace(stage, value=_at(stage, places))
            pairs = [paired_values(fixed, axis, start, lanes) for start in starts[::2]]
            return None if None in pairs else [value for pair in pairs if pair for value in pair]

        def gather(total: Buffer, value: Expr, combiner: Combiner) -> None:
            p.store(total, 0, combiner.join(load(total, 0, lanes), value), lanes)

        def kept(value: Expr) -> Expr:
            buffer = p.allocate("value", lanes, str(stage.buffer.dtype))
            p.store(buffer, 0, value, lanes)
            return load(buffer, 0, lanes)

        block = lanes * len(sums.vectors)
        blocks = floordiv(extent, block)
        with p.loop(axis.name, blocks) as i:
            starts = [i * int64(block) + int64(u * lanes) for u in range(len(sums.vectors))]
            if sums.unknown is None:
                values = pairs_at(starts) or map(value_at, starts)
                for total, value in zip(sums.vectors, values, strict=True):
                    gather(total, value, combiner)
            else:
                values = [kept(value_at(start)) for start in starts]
                for total, value in zip(sums.vectors, values, strict=True):
                    gather(total, value, combiner.of_numbers() or combiner)
                found = reduce(tirx.Or, map(is_unordered, values))
                nan = broadcast(tirx.const(math.nan, str(sums.unknown.dtype)), lanes)
                before = load(sums.unknown, 0, lanes)
                p.store(sums.unknown, 0, tirx.Select(found, nan, before), lanes)
        if constant(simplify(extent - blocks * int64(block))) == 0:
            return  # `done` would hide it
        done = p.let("done", simplify(blocks * int64(block)))
        singles = floordiv(extent - done, lanes)
        if len(sums.vectors) > 1:
            with p.loop(axis.name, singles) as i:
                gather(first, value_at(done + i * int64(lanes)), combiner)
            done = p.let("done", simplify(done + singles * int64(lanes)))
        rest = simplify(extent - done)
        with p.when(rest > 0):
            if sums.scalar is not None:
                with p.loop(axis.name, rest) as i:
                    self._gather(sums.scalar, combiner, _at(stage, {**places, axis: done + i}))
                return
            mask = first_lanes(rest, lanes)
            masked, before = value_at(done, mask), load(first, 0, lanes)
            p.store(first, 0, tirx.Select(mask, combiner.join(before, masked), before), lanes)

    def _made(
        self, producer: Stage, places: At, start: Expr, lanes: int, mask: Expr | None
    ) -> Buffer:
        """Compute and store a vector of an element-wise stage; it is returned in a buffer of its own, in registers."""
        p, (axis,) = self.program, free_axes(producer, places)
        made = p.allocate("made", lanes, str(producer.buffer.dtype))
        p.store(made, 0, _vector(producer.value, {**places, axis: start}, axis, lanes, mask), lanes)
        store = vectorise(
            lambda lane: _store(
                producer, {**places, axis: start + lane}, tirx.BufferLoad(made, [lane])
            ),
            lanes,
        )
        assert store is not None, "a store along the last axis vectorises"
        p.add(store if mask is None else _masked(store, mask))
        return made

    def _columns(
        self, stage: Stage, at: At, span: tuple[Expr, Expr] | None, goes_on: Expr | None
    ) -> None:
        """A reduction with vectors along the last free axis: one partial result per lane."""
        p, lanes = self.program, self.lanes(stage)
        *outer, axis = free_axes(stage, at)
        start, extent = span if span is not None else (int64(0), extent_of(stage, axis))
        unroll = TILE_VECTORS
        with ExitStack() as loops:
            fixed = {**at, **self._loops(loops, stage, outer)}
            probe = vector_value(lambda i: s.substitute(stage.value, {**fixed, axis: i}), lanes)
            if probe is None or masked_value(probe, first_lanes(int64(1), lanes)) is None:
                self._scalars(stage, fixed, (axis, start, extent), goes_on)
                return
            tile = partial(self._tile, stage, fixed, axis, goes_on)
            block = lanes * unroll
            blocks = floordiv(extent, block)
            with p.loop(axis.name, blocks) as i:
                tile(start + i * int64(block), lanes, unroll)
            done = p.let("done", simplify(blocks * int64(block)))
            singles = floordiv(extent - done, lanes)
            with p.loop(axis.name, singles) as i:
                tile(start + done + i * int64(lanes), lanes, 1)
            done = p.let("done", simplify(done + singles * int64(lanes)))
            rest = simplify(extent - done)
            with p.when(rest > 0):
                tile(start + done, lanes, 1, first_lanes(rest, lanes))

    def _tile(
        self,
        stage: Stage,
        at: At,
        axis: Var,
        goes_on: Expr | None,
        start: Expr,
        lanes: int,
        unroll: int,
        mask: Expr | None = None,
    ) -> None:
        """Neighbouring results of a reduction, kept in registers over the reduced axes."""
        p, combiner, join = self.program, _combiner(stage), joining(stage, self.target)
        with p.scope():
            sums = [p.allocate(f"sum{u}", lanes, str(stage.buffer.dtype)) for u in range(unroll)]

            def vector(value: Expr, at: At, u: int) -> Expr:
                return _vector(value, {**at, axis: start + int64(u * lanes)}, axis, lanes, mask)

            for total in sums:
                p.store(total, 0, broadcast(combiner.init, lanes), lanes)
            if goes_on is not None:
                with p.when(goes_on):
                    for u, total in enumerate(sums):
                        p.store(total, 0, vector(_result(stage), at, u), lanes)
            with ExitStack() as loops:
                places = {**at, **self._loops(loops, stage, stage.reduce_axes)}
                for u, total in enumerate(sums):
                    value = vector(stage.value, places, u)
                    p.store(total, 0, join(load(total, 0, lanes), value), lanes)
            for u, total in enumerate(sums):
                first = start + int64(u * lanes)
                store = vectorise(
                    lambda lane, first=first, total=total: _store(
                        stage, {**at, axis: first + lane}, tirx.BufferLoad(total, [lane])
                    ),
                    lanes,
                )
                assert store is not None, "a store along the last axis vectorises"
                p.add(store if mask is None else _masked(store, mask))

    def _scalars(
        self,
        stage: Stage,
        at: At,
        span: tuple[Var, Expr, Expr] | None = None,
        goes_on: Expr | None = None,
    ) -> None:
        """A reduction one element at a time; `span` is an axis that runs over part of its extent only, with its start
        and length."""
        p, combiner = self.program, _combiner(stage)
        with ExitStack() as kept:
            free = [a for a in free_axes(stage, at) if span is None or not a.same_as(span[0])]
            fixed = {**at, **self._loops(kept, stage, free)}
            if span is not None:
                axis, start, extent = span
                fixed[axis] = start + kept.enter_context(p.loop(axis.name, extent))
            total = self._allocate_scalar("total", combiner.init)
            if goes_on is not None:
                with p.when(goes_on):
                    p.store(total, 0, s.substitute(_result(stage), fixed))
            with ExitStack() as loops:
                places = {**fixed, **self._loops(loops, stage, stage.reduce_axes)}
                self._gather(total, combiner, _at(stage, places))
            p.add(_store(stage, fixed, load(total, 0)))

    def _gather(self, total: Buffer, combiner: Combiner, value: Expr) -> None:
        self.program.store(total, 0, combiner.join(load(total, 0), value))

    def _allocate_scalar(self, name: str, init: Expr) -> Buffer:
        total = self.program.allocate(name, 1, str(init.ty.dtype))
        self.program.store(total, 0, init)
        return total

    def _loops(self, stack: ExitStack, stage: Stage, axes: Sequence[Var]) -> dict[Var, Expr]:
        """A loop around the following code for each axis."""
        return {
            axis: stack.enter_context(self.program.loop(axis.name, extent_of(stage, axis)))
            for axis in axes
        }


@dataclass(frozen=True)
class _Sums:
    """The accumulators of a row."""

    vectors: Sequence[Buffer]
    unknown: Buffer | None
    """A vector that becomes NaN where values are, if the others accumulate as if there were none."""
    scalar: Buffer | None
    """What is accumulated one by one."""


def free_axes(stage: Stage, at: At) -> list[Var]:
    """The axes of the stage's buffer that are not fixed."""
    return [axis for axis in stage.axes if axis not in at]


def extent_of(stage: Stage, axis: Var) -> Expr:
    """The extent of one of the stage's axes."""
    axes = (*stage.axes, *stage.reduce_axes)
    extents = (*stage.extents, *stage.reduce_extents)
    return next(e for a, e in zip(axes, extents, strict=True) if a.same_as(axis))


def is_side_by_side(stage: Stage, axis: Var) -> bool:
    """Does every read stay in place, or move to the next element, as the axis advances?"""
    return all(s.step(read.indices, read.source.shape, axis) in (0, 1) for read in stage.loads)


def _vector(value: Expr, at: At, axis: Var, lanes: int, mask: Expr | None) -> Expr:
    """The vector of a value from a position of the axis on, which is in `at`; its reads are masked if there is a
    mask."""
    vector = vector_value(lambda lane: s.substitute(value, {**at, axis: at[axis] + lane}), lanes)
    assert vector is not None, "what vectorises at 0 does so everywhere"
    if mask is None:
        return vector
    masked = masked_value(vector, mask)
    assert masked is not None, "what can be masked at 0 can be so everywhere"
    return masked


def _is_maskable(stage: Stage, at: At, axis: Var, lanes: int) -> bool:
    """Can the value be computed for a vector along the axis, and for a part of one?"""
    vector = vector_value(lambda lane: s.substitute(stage.value, {**at, axis: lane}), lanes)
    return vector is not None and masked_value(vector, first_lanes(int64(1), lanes)) is not None


def _unroll(stage: Stage, producer: Stage | None, lanes: int) -> int:
    """The number of vectors that accumulate a row side by side."""
    if property_of(stage) is not None or (producer is not None and producer.is_expensive):
        return 1  # there is little to accumulate, or each step takes longer than an addition
    unroll = _EXPENSIVE_UNROLL if stage.is_expensive else _CHEAP_UNROLL
    known = constant(stage.reduce_extents[-1])
    return unroll if known is None else max(1, min(unroll, known // lanes))


def _result(stage: Stage) -> Expr:
    """The result of an element so far, in the stage's buffer."""
    return tirx.BufferLoad(stage.buffer, list(stage.index))


def _combiner(stage: Stage) -> Combiner:
    assert stage.combiner is not None, "only reductions come here"
    return stage.combiner


def _with_init(combiner: Combiner, total: Expr) -> Expr:
    """The total combined with the initial value, if partial results did not start from it."""
    neutral = combiner.neutral()
    if neutral is combiner.init or constant_value(neutral) == constant_value(combiner.init):
        return total
    return combiner.join(combiner.init, total)


def constant_value(value: Expr) -> float | None:
    """The value of a literal; None for other expressions."""
    return value.value if isinstance(value, tirx.IntImm | tirx.FloatImm) else None


def _at(stage: Stage, places: At) -> Expr:
    return s.substitute(stage.value, dict(places))


def _store(stage: Stage, at: At, value: Expr) -> tirx.BufferStore:
    index = [s.substitute(i, dict(at)) for i in stage.index]
    return tirx.BufferStore(stage.buffer, s.substitute(value, dict(at)), index)


def _masked(store: tirx.BufferStore, mask: Expr) -> tirx.Stmt:
    stmt = masked_store(store, mask)
    assert stmt is not None, "a store along the last axis can be masked"
    return stmt
