"""Stable sorting as a tensor program: a merge sort of every row.

A NaN is greater than every number, as in numpy: last in ascending order, first in descending. Equal elements (all
NaNs are equal, and -0.0 and 0.0) keep their order either way. A row of n elements takes n * log2(n) steps and twice
its size in working memory. The first few elements of a row are found without sorting it: each element is compared with
the last of those found so far, and inserted among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import Buffer, Expr
from relaxpy.tir.writer.rows import cell, known, rows, scratch
from relaxpy.tir.writer.serial import Serial, serial

_LONGEST = 62
"""A row has fewer than 2**62 elements."""
_FEW = 64
"""So many first elements are found by insertion."""
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
) -> list[te.Tensor]:
    """Sort the elements of `x`, of shape `shape`, along `axis`. Returns the sorted elements (with `values`) and their
    original indices in the row (with `order`, the dtype of the indices); of each row the `first` elements, or all."""
    size = te.dim(shape[axis])
    others = [*shape[:axis], *shape[axis + 1 :]]
    dtype, wide = DType(str(x.dtype)), _key_dtype(DType(str(x.dtype)))
    few = first is not None and first.value is not None and first.value <= _FEW

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

    kept = [shape[axis] if first is None else first]
    found = [*shape[:axis], *kept, *shape[axis + 1 :]]
    out = [(found, str(dtype))] * values + ([(found, order)] if order else [])
    return serial(out, [x], fill, "sorted")


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
        _merge_runs(p, keys, places, size, descending, source.get(), width, pairs)
        source.set(source.get() + (size - source.get() * 2) * unsorted)
    return p.let("start", source.get())


def _merge_runs(
    p: Serial,
    keys: Buffer,
    places: Buffer | None,
    size: Expr,
    descending: bool,
    start: Expr,
    width: Expr,
    pairs: Expr,
) -> None:
    """Merge pairs of neighbouring runs of `width` elements, from the row at `start` into the other one."""
    source, target = p.let("source_row", start), p.let("target_row", size - start)
    left, right = cell(p, "left", te.dim(0)), cell(p, "right", te.dim(0))
    last = p.let("last", source + (size - 1))
    with p.loop("pair", pairs, about=1) as pair:
        first = p.let("first", pair * width * 2)
        middle = p.let("middle", tirx.min(first + width, size))
        end = p.let("end", tirx.min(middle + width, size))
        left.set(first)
        right.set(middle)
        with p.loop("i", end - first, about=size) as i:
            a, b = p.let("a", left.get()), p.let("b", right.get())
            # Both are read in any case: indices beyond the row are clamped to it.
            x = p.let("x", p.read(keys, tirx.min(source + a, last)))
            y = p.let("y", p.read(keys, tirx.min(source + b, last)))
            from_right = tirx.any(a >= middle, tirx.all(b < end, comes_before(y, x, descending)))
            step = p.let("from_right", from_right.astype("int64"))
            p.write(keys, target + first + i, value=tirx.Select(step > te.dim(0), y, x))
            if places is not None:
                taken = source + a + (b - a) * step
                p.write(places, target + first + i, value=p.read(places, taken))
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
