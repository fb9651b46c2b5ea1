"""Reduction of windows along any axes, as XLA has it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import inside, per_axis
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import widened
from relaxpy.op.reduce import rounded
from relaxpy.op.rule import Cotangent, NoRule, Rule
from relaxpy.op.slice import sizes_of
from relaxpy.shape.prove import prove

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


MOST_ELEMENTS = 128
"""The rule reads an element of each window at a time, at most so many."""


class WindowAxis(NamedTuple):
    """The windows along one axis: window o reads the places o * stride + k * dilation - before, for k below `window`,
    of the axis with `base` - 1 gaps between its elements."""

    size: Any
    window: Any
    before: Any
    after: Any
    stride: int
    base: int
    dilation: int

    @property
    def span(self) -> Any:
        """From the first place of a window to its last, inclusive."""
        return (self.window - 1) * self.dilation + 1

    @property
    def count(self) -> Dim:
        """The number of windows. An axis without elements has no gaps."""
        size = self.size if self.base == 1 else _least_0((self.size - 1) * self.base + 1)
        places = size + self.before + self.after - self.span
        return _least_0(places // self.stride + 1)


def _least_0(count: Any) -> Dim:
    """A number, or 0 if it is negative."""
    return Dim.of(count) if prove(dim_op("le", 0, count)) else maximum(count, 0)


@define_op
class ReduceWindow(Op):
    """Each window of x reduced to one element: its sum, product, maximum or minimum (of bools, whether any or all are
    true). `window` is the size of windows along each axis. `padding` is how far they extend beyond x, before and after
    each axis: (before_0, after_0, before_1, …), where a negative number leaves elements out. Padding and gaps take no
    part; a window of nothing gives 0, 1, or a limit of the dtype, infinite for floats."""

    name = "reduce_window"
    reduction: str = "sum"
    strides: tuple[int, ...] | int = 1
    """Distance of windows: one number, or one for each axis."""
    dilation: tuple[int, ...] | int = 1
    """Distance of the elements of a window: one number, or one for each axis."""
    base_dilation: tuple[int, ...] | int = 1
    """Distance that the elements of x are set apart to: one number, or one for each axis."""

    def deduce(
        self, d: Deduction, x: KnownTensor, window: KnownShape, padding: KnownShape | None = None
    ) -> TensorType:
        d.require(
            self.reduction in _UFUNCS,
            f"reduction {self.reduction!r} is none of {', '.join(_UFUNCS)}", arg="reduction",
        )  # fmt: skip
        d.require(
            x.dtype != "bool" or self.reduction in ("max", "min"),
            f"x must be numbers for reduction {self.reduction!r}, got bool", arg="x",
            code="op-dtype", help='take reduction="max" for any, "min" for all',
        )  # fmt: skip
        for name in ("strides", "dilation", "base_dilation"):
            numbers = per_axis(getattr(self, name), x.ndim)
            d.require(
                len(numbers) == x.ndim and min(numbers, default=1) > 0,
                f"{name} must be positive, one number or one for each of {x.ndim} axes, got "
                f"{getattr(self, name)}", arg=name,
            )  # fmt: skip
        for name, given, count in (("window", window, 1), ("padding", padding, 2)):
            d.require(
                given is None or len(given.dims) == count * x.ndim,
                f"{name} must have {count * x.ndim} numbers for {x.ndim} axes", arg=name,
                code="op-rank",
            )  # fmt: skip
        sizes: list[Dim] = []
        for a in self._axes(x.dims, window.dims, None if padding is None else padding.dims):
            d.ensure(dim_op("le", 1, a.window), f"a window has size {a.window}", arg="window")
            sizes.append(a.count)
        return TensorType(sizes, x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x = args[0]
        return TensorType(None, x.dtype, x.ndim) if isinstance(x, TensorType) else TensorType()

    def _axes(
        self, sizes: Sequence[Any], window: Sequence[Any], padding: Sequence[Any] | None
    ) -> list[WindowAxis]:
        ndim = len(sizes)
        around = [0] * (2 * ndim) if padding is None else padding
        numbers = (self.strides, self.base_dilation, self.dilation)
        each = zip(*(per_axis(n, ndim) for n in numbers), strict=True)
        columns = zip(sizes, window, around[::2], around[1::2], each, strict=True)
        return [WindowAxis(*given, *steps) for *given, steps in columns]

    def legalize(
        self, out: KnownTensor, x: te.Tensor, window: Any, padding: Any = None
    ) -> te.Tensor:
        around = None if padding is None else te.dims(padding)
        axes = self._axes(te.dims(x), te.dims(window), around)
        loops = {n: te.reduce_axis(a.window, f"k{n}") for n, a in enumerate(axes) if a.window != 1}
        dtype = DType("int8") if out.dtype.is_bool else out.dtype
        start = self._start(dtype)
        reduce = {"sum": te.sum, "prod": te.prod, "max": te.reduce_max, "min": te.reduce_min}

        def element(*o: Any) -> Any:
            places, within, between = [], [], []
            for n, (at, a) in enumerate(zip(o, axes, strict=True)):
                place = at * a.stride - te.dim(Dim.of(a.before))
                if n in loops:
                    place = place + loops[n] * a.dilation
                if n in loops or a.before != 0 or a.after != 0 or a.base > 1:
                    within.append((place, a.size * a.base))
                if a.base > 1:
                    between.append(te.equal(place % a.base, te.dim(0)))
                    place = place // a.base
                places.append(place)
            value = te.widen(te.element(x(*places)))
            if out.dtype.is_bool:
                value = te.cast(value, dtype)
            if within and not self._stays(axes):
                there = inside(within)
                for each in between:
                    there = te.logical_and(there, each)
                value = te.if_then_else(there, value, te.literal(start, value))
            return reduce[self.reduction](value, [*loops.values()]) if loops else value

        return rounded(out, te.compute(out.dims, element, "reduce_window"))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        x, window, padding = args
        rank = b.rank(x)
        given = sizes_of(window)
        sizes = [n.value for n in given if n.value is not None]
        around = [Dim.of(0)] * (2 * rank) if padding is None else sizes_of(padding)
        widths = [n.value for n in around]
        elements = math.prod(sizes) if len(sizes) == len(given) and 0 not in sizes else math.inf
        gaps = any(n != 1 for n in per_axis(self.base_dilation, rank))
        if gaps or None in widths or elements > MOST_ELEMENTS:
            return [
                NoRule(
                    f"reduce_window has a rule for known windows of at most {MOST_ELEMENTS} elements, known padding, "
                    "and no base_dilation"
                )
            ]
        axes = self._axes(b.dims(x), [Dim.of(n) for n in sizes], around)
        start = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}[self.reduction]

        def compute(x: Any) -> Any:
            wide = b.nn.pad(x, tuple(widths), pad_value=start) if any(widths) else x
            taps = []
            for k in np.ndindex(*sizes):
                first = [at * a.dilation for at, a in zip(k, axes, strict=True)]
                last = [
                    f + (n - 1) * a.stride + 1
                    for f, n, a in zip(first, b.dims(out), axes, strict=True)
                ]
                steps = tuple(a.stride for a in axes)
                taps.append(
                    b.strided_slice(wide, tuple(range(rank)), tuple(first), tuple(last), steps)
                )
            return getattr(b, self.reduction)(b.stack(taps), axis=0)

        return b.through(compute, [x], ct) if rank else [ct]

    def _start(self, dtype: DType) -> float:
        """The result for a window of nothing."""
        low, high = dtype.limits
        return {"sum": 0, "prod": 1, "max": low, "min": high}[self.reduction]

    def _stays(self, axes: Sequence[WindowAxis]) -> bool:
        """Whether no window leaves x."""
        return all(a.before == 0 and a.after == 0 and a.base == 1 for a in axes)

    def reference(
        self, x: np.ndarray, window: Sequence[int], padding: Sequence[int] | None = None
    ) -> np.ndarray:
        wide = x.astype(np.int8) if x.dtype == bool else widened(x)
        start = self._start(DType("int8" if x.dtype == bool else x.dtype))
        axes = self._axes(x.shape, window, padding)
        counts = [a.count.value or 0 for a in axes]
        found = np.full(counts, start, wide.dtype)
        for k in np.ndindex(*window) if x.size else ():
            places = [
                np.arange(n) * a.stride + at * a.dilation - a.before
                for at, a, n in zip(k, axes, counts, strict=True)
            ]
            within = [
                (p % a.base == 0) & (p >= 0) & (p // a.base < a.size)
                for p, a in zip(places, axes, strict=True)
            ]
            nearest = [
                np.clip(p // a.base, 0, a.size - 1) for p, a in zip(places, axes, strict=True)
            ]
            there = functools.reduce(np.logical_and, np.meshgrid(*within, indexing="ij"), np.True_)
            value = np.where(there, wide[np.ix_(*nearest)], wide.dtype.type(start))
            found = _UFUNCS[self.reduction](found, value, dtype=wide.dtype)
        return found.astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = rand(2, 6, 5)
        for reduction in _UFUNCS:
            yield sample(cls(reduction), x, (1, 3, 2), dims="n m 5, 1 3 2", atol=1e-5)
            padded = cls(reduction, strides=(1, 2, 1), dilation=(1, 1, 2))
            yield sample(
                padded,
                x,
                (1, 3, 2),
                (0, 0, 1, 1, 2, 0),
                dims="n m k, 1 3 2, 0 0 1 1 2 0",
                atol=1e-5,
            )
        apart = cls("max", strides=2, base_dilation=(1, 3))
        yield sample(apart, rand(3, 4), (2, 2), (0, 1, 2, 2), dims="n m, 2 2, 0 1 2 2")
        yield sample(cls(base_dilation=2), rand(4), (3,), (1, 1), dims="n, 3, 1 1")
        yield sample(cls(), rand(7, 2), (3, 1), (-2, 1, 0, 0), dims="n 2, 3 1, -2 1 0 0")
        yield sample(cls(), rand(4, 3), (4, 1), (3, 0, 0, 0), dims="n m, n 1, k 0 0 0")
        yield sample(cls("max"), rand(2, 3), (1, 5), dims="n m, 1 5")
        yield sample(cls("min"), rand(3), (2,), (3, 0), dims="n, 2, 3 0")
        yield sample(cls("max"), rand(4, 3, dtype="bool"), (2, 2), dims="n m, 2 2")
        yield sample(cls("min"), rand(4, dtype="bool"), (2,), (1, 1), dims="n, 2, 1 1")
        ints = rand(5, 4, dtype="int8", low=-99, high=99)
        yield sample(cls("sum", strides=2), ints, (3, 2), (1, 1, 0, 0), dims="n m, 3 2, 1 1 0 0")
        half = rand(5, 4, dtype="float16")
        yield sample(cls(), half, (3, 2), dims="n m, 3 2", rtol=2e-3, atol=2e-3)
        special = np.array([np.nan, -np.inf, np.inf, -0.0, -1, 2], np.float32)
        yield sample(cls("max"), special, (2,), dims="n, 2")
        yield sample(cls(), rand(), (), dims=",")
        yield wrong(cls("mean"), x, (1, 1, 1), code="op-arguments", match="mean")
        yield wrong(cls(), rand(3, dtype="bool"), (1,), code="op-dtype", match="bool")
        yield wrong(cls(), x, (1, 1), code="op-rank", match="window must have 3")
        yield wrong(cls(), x, (1, 1, 1), (0, 0), code="op-rank", match="padding must have 6")
        yield wrong(cls(), x, (1, 0, 1), code="shape-mismatch", match="size 0")
        yield wrong(cls(strides=(1, 2)), x, (1, 1, 1), code="op-arguments", match="strides")
        yield wrong(cls(dilation=0), x, (1, 1, 1), code="op-arguments", match="dilation")
