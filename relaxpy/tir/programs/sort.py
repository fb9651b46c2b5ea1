"""Stable sorting as a tensor program: a merge sort of every row.

A NaN is greater than every number, as in numpy: last in ascending order, first in descending. Equal elements (all
NaNs are equal, and -0.0 and 0.0) keep their order either way. A row of n elements takes n * log2(n) steps and twice
its size in working memory. The first few elements of a row are found without sorting it: each element is compared with
the last of those found so far, and inserted among them.

A device of many threads sorts *parts* of a row, each by a thread, then finds the place of each element in the row: how
many of each other part come before it, by a binary search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.ir.dim import Dim, minimum
from relaxpy.ir.dtype import DType
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.programs.loops import Buffer, Expr, floordiv
from relaxpy.tir.programs.rows import cell, known, rows, scratch
from relaxpy.tir.programs.serial import Serial, serial
from relaxpy.tir.tvm import tirx

_LONGEST = 62
"""A row has fewer than 2**62 elements."""
_FEW = 64
"""So many first elements are found by insertion."""
_PART_STEPS = 10
_PART = 1 << _PART_STEPS
"""The most elements that a thread sorts. The number of steps is even, so that they end where they began."""
_ALONE = 1 << 15
"""So many steps are few for one of many threads."""
_USUAL_STEPS = 10
"""The number of steps for rows of a thousand."""


def sort_rows(
    x: te.Tensor,
    shape: Sequence[Dim],
    axis: int,
    *,
    descending: bool = False,
    order: str | None = None,
    values: bool = True,
    first: Dim | None = None,
    in_parts: bool = False,
) -> list[te.Tensor]:
    """Sort the elements of `x`, of shape `shape`, along `axis`. Returns the sorted elements (with `values`) and their
    original indices in the row (with `order`, the dtype of the indices); of each row the `first` elements, or all. Many
    threads sort a row if it is sorted `in_parts`."""
    size = te.dim(shape[axis])
    others = [*shape[:axis], *shape[axis + 1 :]]
    dtype, wide = DType(str(x.dtype)), _key_dtype(DType(str(x.dtype)))
    few = first is not None and first.value is not None and first.value <= _FEW
    if few and in_parts and first is not None:  # else one thread would do all
        steps = (shape[axis] * (first + 1)).value
        few = steps is not None and steps <= _ALONE
    kept = [shape[axis] if first is None else first]
    found = [*shape[:axis], *kept, *shape[axis + 1 :]]
    out = [(found, str(dtype))] * values + ([(found, order)] if order else [])
    if in_parts and not few:
        parts = _sorted_parts(x, shape, axis, wide, order, descending)
        return _joined_parts(parts, shape, axis, out, values, descending)

    def fill(p: Serial, *buffers: Buffer) -> None:
        *results, source = buffers
        with rows(p, others) as outer:

            def at(i: Expr) -> list[Expr]:
                return [*outer[:axis], i, *outer[axis:]]

            def read(i: Expr) -> Expr:
                return scalar.cast(p.read(source, *at(i)), wide)

            # A whole row is two rows one after the other: each pass merges from one into the other.
            count = first if few else shape[axis] * 2
            keys = scratch(p, "keys", count, wide)
            places = scratch(p, "places", count, order) if order else None
            if few:
                _insert_all(p, keys, places, te.dim(first), size, read, descending)
                start = te.dim(0)
            else:
                with p.loop("i", size) as i:
                    p.write(keys, i, value=read(i))
                    if places is not None:
                        p.write(places, i, value=i.astype(order))
                start = _merge_passes(p, keys, places, size, descending)
            with p.loop("i", size if first is None else te.dim(first)) as i:
                for result, row in zip(
                    results, [keys] * values + [places] * bool(order), strict=True
                ):
                    kept = scalar.cast(p.read(row, start + i), DType(str(result.dtype)))
                    p.write(result, *at(i), value=kept)

    return serial(out, [x], fill, "sorted")


def _sorted_parts(
    x: te.Tensor, shape: Sequence[Dim], axis: int, wide: DType, order: str | None, descending: bool
) -> list[te.Tensor]:
    """The keys of each part of each row in order, and their indices in the row (with `order`); behind those of a part
    is as much working memory."""
    size = te.dim(shape[axis])
    count = (shape[axis] + (_PART - 1)) // _PART
    room = minimum(shape[axis], _PART)
    others = [*shape[:axis], *shape[axis + 1 :]]

    def fill(p: Serial, *buffers: Buffer) -> None:
        *made, source = buffers
        with rows(p, [*others, count]) as (*outer, part):
            first = p.let("begin", part * _PART)
            own = p.let("own", tirx.min(size - first, te.dim(_PART)))
            keys, *places = (_Row(p, buffer, (*outer, part)) for buffer in made)
            with p.loop("i", own) as i:
                value = p.read(source, *outer[:axis], first + i, *outer[axis:])
                keys.write(i, scalar.cast(value, wide))
                for each in places:
                    each.write(i, (first + i).astype(str(order)))
            # Steps with nothing left to merge copy the part.
            with p.loop("step", te.dim(_PART_STEPS)) as step:
                width = p.let("width", tirx.shift_left(te.dim(1), step))
                pairs = tirx.shift_right(own + (width * 2 - 1), step + 1)
                start = p.let("start", tirx.bitwise_and(step, te.dim(1)) * te.dim(room))
                target, pairs = p.let("target", te.dim(room) - start), p.let("pairs", pairs)
                order_too = places[0] if places else None
                _merge_runs(
                    p, keys, order_too, own, descending, start, target, width, pairs, te.dim(room)
                )

    shapes = [*others, count, room * 2]
    made = [(shapes, str(wide)), *([(shapes, order)] if order else [])]
    return serial(made, [x], fill, "parts")


def _joined_parts(
    parts: Sequence[te.Tensor], shape: Sequence[Dim], axis: int, out: Sequence[tuple[Sequence[Dim], str]], values: bool,
    descending: bool,
) -> list[te.Tensor]:  # fmt: skip
    """The sorted rows: each element goes to the place that is the number of those that come before it."""
    size = te.dim(shape[axis])

    def fill(p: Serial, *buffers: Buffer) -> None:
        results, given = buffers[: len(out)], buffers[len(out) :]
        with p.block("element", list(map(te.dim, shape)), apart=True) as at:
            outer, i = [*at[:axis], *at[axis + 1 :]], at[axis]
            own, inside = p.let("own", floordiv(i, _PART)), p.let("inside", i % _PART)
            x = known(p, "x", p.read(given[0], *outer, own, inside))
            place = cell(p, "place", inside)
            with p.loop("part", te.dim((shape[axis] + (_PART - 1)) // _PART)) as part:
                length = p.let("length", tirx.min(size - part * _PART, te.dim(_PART)))
                found = cell(p, "found", te.dim(0))
                with p.loop("step", te.dim(_PART_STEPS + 1)) as step:
                    tried = p.let("tried", found.get() + tirx.shift_right(te.dim(_PART), step))
                    last = tirx.max(tirx.min(tried, length) - 1, te.dim(0))
                    y = known(p, "y", p.read(given[0], *outer, part, last))
                    is_before = tirx.Select(
                        part < own,
                        tirx.Not(comes_before(x, y, descending)),
                        comes_before(y, x, descending),
                    )
                    with p.when(tirx.all(tried <= length, is_before)):
                        found.set(tried)
                with p.when(tirx.NE(part, own)):
                    place.set(place.get() + found.get())
            number = tirx.min(p.let("number", place.get()), size - 1)
            with p.when(number < te.dim(out[0][0][axis])):
                rest = [x] * values + [p.read(each, *outer, own, inside) for each in given[1:]]
                for result, value in zip(results, rest, strict=True):
                    kept = scalar.cast(value, DType(str(result.dtype)))
                    p.write(result, *at[:axis], number, *at[axis + 1 :], value=kept)

    return serial(out, list(parts), fill, "sorted")


@dataclass(frozen=True)
class _Row:
    """A row of a buffer."""

    program: Serial
    buffer: Buffer
    at: tuple[Expr, ...] = ()

    def read(self, i: Expr) -> Expr:
        return self.program.read(self.buffer, *self.at, i)

    def write(self, i: Expr, value: Expr) -> None:
        self.program.write(self.buffer, *self.at, i, value=value)


def _merge_passes(
    p: Serial, keys: Buffer, places: Buffer | None, size: Expr, descending: bool
) -> Expr:
    """Merge sorted runs of 1, 2, 4, … elements until one is left. Returns its offset in `keys`."""
    source = cell(p, "source", te.dim(0))
    # For the estimate of work: this many steps have pairs, and all pairs of a step together have the row's elements.
    with p.loop("step", te.dim(_LONGEST), about=_USUAL_STEPS) as step:
        # A surplus step merges no pairs: an `if` around all this would make TVM slow.
        width = p.let("width", tirx.shift_left(te.dim(1), step))
        unsorted = p.let("unsorted", (width < size).astype("int64"))
        count = tirx.shift_right(width * 2 + (size - 1), step + 1) * unsorted
        # A variable: the parser simplifies expressions in extents, and the text would not parse back to this program.
        pairs = p.let("pairs", count)
        own = None if places is None else _Row(p, places)
        start = p.let("source_row", source.get())
        target = p.let("target_row", size - start)
        _merge_runs(p, _Row(p, keys), own, size, descending, start, target, width, pairs, size)
        source.set(source.get() + (size - source.get() * 2) * unsorted)
    return p.let("start", source.get())


def _merge_runs(
    p: Serial,
    keys: _Row,
    places: _Row | None,
    size: Expr,
    descending: bool,
    source: Expr,
    target: Expr,
    width: Expr,
    pairs: Expr,
    most: Expr,
) -> None:
    """Merge pairs of neighbouring runs of `width` elements, from the row at `source` into the one at `target`. `most`
    is the most elements of a row, in terms of the program's symbols."""
    left, right = cell(p, "left", te.dim(0)), cell(p, "right", te.dim(0))
    last = p.let("last", source + (size - 1))
    with p.loop("pair", pairs, about=1) as pair:
        first = p.let("first", pair * width * 2)
        middle = p.let("middle", tirx.min(first + width, size))
        end = p.let("end", tirx.min(middle + width, size))
        left.set(first)
        right.set(middle)
        with p.loop("i", end - first, about=most) as i:
            a, b = p.let("a", left.get()), p.let("b", right.get())
            # Both are read in any case: indices beyond the row are clamped to it.
            x = p.let("x", keys.read(tirx.min(source + a, last)))
            y = p.let("y", keys.read(tirx.min(source + b, last)))
            from_right = tirx.any(a >= middle, tirx.all(b < end, comes_before(y, x, descending)))
            step = p.let("from_right", from_right.astype("int64"))
            keys.write(target + first + i, tirx.Select(step > te.dim(0), y, x))
            if places is not None:
                taken = source + a + (b - a) * step
                places.write(target + first + i, places.read(taken))
            left.set(a + te.dim(1) - step)
            right.set(b + step)


def _insert_all(
    p: Serial,
    keys: Buffer,
    places: Buffer | None,
    count: Expr,
    size: Expr,
    read: Callable[[Expr], Expr],
    descending: bool,
) -> None:
    """Keep the first `count` elements of the row, sorted: insert each one that comes before the last of them."""
    found = cell(p, "found", te.dim(0))
    with p.loop("i", size) as i:
        x = known(p, "x", read(i))
        number = known(p, "number", found.get())
        last = p.read(keys, tirx.max(number - 1, te.dim(0)))
        with p.when(tirx.any(number < count, comes_before(x, last, descending))):
            place = cell(p, "place", tirx.min(number, count - 1))
            with p.loop("step", known(p, "steps", place.get()), about=1):
                # Behind those that do not come after it, nothing moves.
                at = p.let("at", place.get())
                before = known(p, "before", p.read(keys, at - 1))
                with p.when(comes_before(x, before, descending)):
                    p.write(keys, at, value=before)
                    if places is not None:
                        p.write(places, at, value=p.read(places, at - 1))
                    place.set(at - 1)
            p.write(keys, place.get(), value=x)
            if places is not None:
                p.write(places, place.get(), value=i.astype(str(places.dtype)))
            found.set(tirx.min(number + 1, count))


def comes_before(a: Any, b: Any, descending: bool) -> Expr:
    """Must `a` come before `b`? False for equal elements; NaN is greater than everything else."""
    small, large = (b, a) if descending else (a, b)
    less = scalar.less(small, large)
    if not scalar.dtype_of(a).is_float:
        return less
    return tirx.any(less, tirx.all(scalar.isnan(large), tirx.Not(scalar.isnan(small))))


def _key_dtype(dtype: DType) -> DType:
    """The dtype in which elements are compared: one with the same order that the processor supports."""
    if dtype.is_narrow:
        return DType("float32")
    return DType("int8") if dtype.is_bool else dtype
