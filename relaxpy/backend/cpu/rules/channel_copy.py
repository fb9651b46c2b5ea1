"""Copies of the data that a task of a convolution reads: in words, with zeros around them, and with contiguous channels
(`channel_convolution`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.rules.places import product
from relaxpy.backend.cpu.rules.transpose import transposed
from relaxpy.tir.analyzer import equal
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Program
from relaxpy.tir.recognise.convolution import ChannelForm
from relaxpy.tir.tvm import tirx


@dataclass(frozen=True, eq=False)
class _Row:
    """A row of pixels to be copied."""

    copy: Buffer
    to: Expr
    """Its first element in the copy."""
    at: Expr
    """Its first element in data."""
    start: Expr
    """The position of that along its dimension of data."""
    length: Expr
    step: Expr
    """The words of a pixel in the copy."""
    dimension: int
    inside: Expr | bool
    """Whether the row is in data at all."""


def within(mask: Expr, value: Expr) -> Expr:
    """The lanes of a vector inside of the mask, and zeros. As bits: TVM would convert bfloat16 before it selects."""
    kind = str(value.ty.dtype)
    bits = kind.replace("bfloat", "uint")
    found = value if bits == kind else tirx.reinterpret(bits, value)
    name, _, lanes = bits.partition("x")
    found = tirx.Select(mask, found, loops.zero(name, int(lanes or 1)))
    return found if bits == kind else tirx.reinterpret(kind, found)


class CopyWriter:
    """Writes the copy of a part of data that is a box, which may reach beyond data."""

    def __init__(
        self, program: Program, form: ChannelForm, data: Buffer, arithmetic: Arithmetic
    ) -> None:
        self.program, self.form, self.data, self.arithmetic = program, form, data, arithmetic
        self.lanes, self.group, self.dtype = arithmetic.lanes, arithmetic.group, arithmetic.word
        self.inner = form.channels
        """The dimension of data that is the last one of the copy; None if the copy has data's order."""
        self.nothing = loops.zero(self.dtype, self.lanes)
        """Words of zeros."""
        if arithmetic.flips:
            self.nothing = arithmetic.flipped()
        grouped = form.channel_walk if self.group > 1 else None
        self.channels = loops.int64(1) if grouped is None else form.walks[grouped].size
        self.grouped = grouped
        """The dimension of data along which words are groups."""

    def write(
        self, shape: Sequence[Expr], starts: Sequence[Expr], most: Expr
    ) -> tuple[Buffer, list[Expr]]:
        """Write the copy of a box of this shape that begins at these positions of data, in memory for `most` elements.
        Returns it, and the strides that data's dimensions have in it."""
        p, form, lanes = self.program, self.form, self.lanes
        order = [n for n in range(len(shape)) if n != self.inner]
        if self.inner is None:
            # Dimensions that are copied whole at the end are part of the runs of the dimension before them.
            while len(order) > 1 and self._is_whole(order[-1], starts[order[-1]], shape[order[-1]]):
                order.pop()
        *outer, run = order
        inner = [n for n in range(len(shape)) if n not in order]
        steps = {
            n: product([shape[m] for m in [*order, *inner][i + 1 :]])
            for i, n in enumerate([*order, *inner])
        }
        spare = lanes if self.inner is None else steps[run] * lanes
        copy = p.flat_view(
            p.allocate("copy", loops.ceildiv(most + spare, lanes) * lanes, self.dtype)
        )
        inside: Expr | bool = True
        with ExitStack() as stack:
            to, at = loops.int64(0), loops.int64(0)
            if self.inner is not None:
                at = starts[self.inner] * form.walks[self.inner].stride
            for n in outer:
                walk = form.walks[n]
                place = stack.enter_context(p.loop("place", shape[n]))
                there = p.let("there", starts[n] + place)
                if walk.is_guarded:
                    here = loops.both(there >= 0, there < walk.size)
                    inside = here if inside is True else loops.both(inside, here)
                to = to + place * steps[n]
                at = at + there * walk.stride
            to = p.let("to", loops.simplify(to))
            at = p.let("at", loops.simplify(at + starts[run] * form.walks[run].stride))
            row = _Row(copy, to, at, starts[run], shape[run], steps[run], run, inside)
            self._copy_row(row)
        return copy, [steps[n] for n in range(len(shape))]

    def _copy_row(self, row: _Row) -> None:
        """Copy one row of pixels."""
        p, walk, number = self.program, self.form.walks[row.dimension], row.step
        words = loops.constant(number)
        if (
            self.inner is not None
            and words is not None
            and (self.group > 1 or 2 * words > self.lanes)
        ):
            self._turn(row, words)
            return
        low = p.let("low", loops.minimum(loops.maximum(0, -row.start), row.length))
        high = p.let("high", loops.minimum(row.length, walk.size - row.start))
        high = p.let("high", loops.maximum(low, high))
        end = p.let("row", loops.simplify(row.length * number))
        with p.when(row.inside):
            self._fill(row.copy, row.to, loops.int64(0), low * number, None)
            if self.inner is None:
                self._fill(row.copy, row.to, low * number, high * number, row.at)
            else:
                with p.loop("x", high - low) as x, p.loop("channel", number) as channel:
                    place = row.at + (low + x) * walk.stride
                    place = place + channel * self.form.walks[self.inner].stride
                    value = loops.load(self.data, loops.simplify(place)).astype(self.dtype)
                    p.store(row.copy, row.to + (low + x) * number + channel, value)
            self._fill(row.copy, row.to, high * number, end, None)
        with p.otherwise(row.inside):
            self._fill(row.copy, row.to, loops.int64(0), end, None)

    def _turn(self, row: _Row, words: int) -> None:
        """Copy one row of pixels, transposed in squares of vectors of words. The last square of a row may exceed it,
        into the next one, which is written later."""
        assert self.inner is not None
        p, lanes, walk = self.program, self.lanes, self.form.walks[row.dimension]
        stride = self.form.walks[self.inner].stride
        size = walk.size
        if row.inside is not True:
            size = p.let("size", loops.select(row.inside, size, 0))
        last = self.group
        if self.grouped is not None:
            last = (loops.constant(self.channels) or 0) - (words - 1) * self.group

        def square(pixel: Expr, word: Expr, count: int, is_last: bool) -> None:
            mask = loops.lanes_within(row.start + pixel, size, lanes)
            rows: list[Expr] = [self.nothing] * lanes
            for n in range(count):
                members = last if is_last and n == count - 1 else self.group
                first = row.at + pixel * walk.stride + (word + n) * (self.group * stride)
                factors = [loops.zero(str(self.data.dtype), lanes)] * self.group
                for member in range(members):
                    place = loops.simplify(first + member * stride)
                    value = loops.load(self.data, place, lanes, mask)
                    factors[member] = p.let("factor", within(mask, value))
                rows[n] = self.arithmetic.left_joined(factors, [True] * self.group)
            only = None if count == lanes else loops.first_lanes(tirx.const(count, "int32"), lanes)
            if words == 1:
                p.store(row.copy, loops.simplify(row.to + pixel), rows[0], lanes)
                return
            for n, column in enumerate(transposed(p, rows)):
                place = loops.simplify(row.to + (pixel + n) * words + word)
                p.store(row.copy, place, column, lanes, only)

        whole, rest = divmod(words, lanes)
        if last < self.group and not rest:  # the last square is another one
            whole, rest = whole - 1, lanes
        with p.loop("square", loops.ceildiv(row.length, lanes)) as number:
            pixel = p.let("pixel", number * lanes)
            if whole:
                with p.loop("words", whole) as block:
                    square(pixel, block * lanes, lanes, False)
            if rest:
                square(pixel, loops.int64(whole * lanes), rest, True)

    def _is_whole(self, n: int, start: Expr, extent: Expr) -> bool:
        """Is a dimension of data copied from its beginning to its end, in whole words?"""
        walk = self.form.walks[n]
        elements = extent * self.group if n == self.grouped else extent
        return not walk.is_guarded and loops.constant(start) == 0 and equal(elements, walk.size)

    def _fill(self, copy: Buffer, to: Expr, first: Expr, end: Expr, at: Expr | None) -> None:
        """Write words `first` to `end` of the row of the copy that begins at `to`: those of the row of data that begins
        at element `at`, or zeros."""
        p, lanes = self.program, self.lanes
        first = p.let("first", loops.simplify(first))
        count = p.let("count", loops.simplify(end - first))
        if loops.constant(count) == 0:
            return

        def store(place: Expr, mask: Expr | None, factors: Expr | None = None) -> None:
            value = self.nothing
            if at is not None:
                place = p.let("place", place)
                source = loops.simplify(at + place * self.group)
                value = self.arithmetic.left_words(self.data, source, factors)
            p.store(copy, to + place, value, lanes, mask)

        # The last word of a pixel that is a row is perhaps not whole: then it is in a masked vector.
        is_pixel = self.grouped is not None and loops.constant(count) == loops.constant(
            loops.ceildiv(self.channels, self.group)
        )
        rest = loops.floormod(self.channels, self.group) if is_pixel else loops.int64(0)
        missing = 0 if loops.constant(rest) == 0 else 1
        whole = p.let("whole", loops.floordiv(count - missing, lanes))
        with p.loop("vector", whole) as n:
            store(first + n * lanes, None)
        left = p.let("left", loops.simplify(count - whole * lanes))
        with p.when(left > 0):
            mask = loops.first_lanes(left.astype("int32"), lanes)
            factors = left * self.group
            if missing:
                factors = self.channels - whole * (lanes * self.group)
            factors = p.let("factors", loops.simplify(factors).astype("int32"))
            store(p.let("last", first + whole * lanes), mask, factors)
