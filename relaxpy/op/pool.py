"""Pooling over one, two and three spatial axes (`R.nn.max_pool2d`, …), in any layout."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import (
    Layout,
    arranged,
    check_packed_layout,
    check_padding,
    check_per_axis,
    inside,
    padding_pairs,
    per_axis,
    rearranged,
)
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import narrowed, quotient, sum_dtype, widened
from relaxpy.op.rule import Cotangent, NoRule, Rule


class PoolLike(Op):
    """The common part of all pooling operators: layouts."""

    mixed = "follow"

    spatial: ClassVar[str]
    """Letters of the spatial axes."""
    layout: str
    out_layout: str | None

    def layouts(self) -> tuple[Layout, Layout]:
        """The layouts of data and result."""
        texts = self.layout, self.layout if self.out_layout is None else self.out_layout
        layout, out_layout = map(Layout.of, texts)
        return layout, out_layout

    def check_layouts(self, d: Deduction, data: KnownTensor) -> None:
        letters = f"NC{self.spatial}"
        check_packed_layout(d, self.layout, letters, "layout", data)
        if self.out_layout is not None:
            check_packed_layout(d, self.out_layout, letters, "out_layout", None)

    def placed(self, index: Sequence[Any]) -> dict[str, Any]:
        """The index of an element of the result, by the letters of data's layout."""
        layout, out_layout = self.layouts()
        at = out_layout.named(index)
        return {**at, **out_layout.place("C", at, layout, "C")}

    def plain(self, x: np.ndarray) -> np.ndarray:
        """An array in data's layout as one of NC and the spatial axes."""
        return self.layouts()[0].merged(x, f"NC{self.spatial}")

    def result(self, value: np.ndarray) -> np.ndarray:
        """A result of NC and the spatial axes in the requested layout."""
        return self.layouts()[1].divided(value, f"NC{self.spatial}")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (data,) = args
        data = expect(TensorType, data)
        return TensorType(None, data.dtype, len(self.layouts()[1].letters))


class Window(NamedTuple):
    """The windows along one axis: window o covers the indices o * stride + k * dilation - before, for k below
    `size`."""

    letter: str
    size: int
    stride: int
    before: int
    after: int
    dilation: int

    @property
    def span(self) -> int:
        """Length of a window from its first to its last index, inclusive."""
        return (self.size - 1) * self.dilation + 1

    def place(self, o: Any, k: Any) -> Any:
        return o * self.stride + k * self.dilation - self.before


@dataclass(frozen=True)
class Pooling(PoolLike):
    """Base of pooling operators: one number from each window of data. Padding takes no part."""

    pool_size: tuple[int, ...] | int = 1
    """Window size: one number, or one for each spatial axis."""
    strides: tuple[int, ...] | int = 1
    """Stride: one number, or one for each spatial axis."""
    padding: tuple[int, ...] | int = 0
    """How far windows may extend beyond data: one number, one for each spatial axis, or all before and then
    all after."""
    dilation: tuple[int, ...] | int = 1
    """Distance of the elements of a window: one number, or one for each spatial axis."""
    ceil_mode: bool = False
    """Whether the number of windows is rounded up: a last window may extend beyond the padding if it starts before
    it."""
    count_include_pad: bool = False
    """Whether an average counts padding, as zeros. No effect on a maximum."""
    layout: str = ""
    out_layout: str | None = None
    """Layout of the result; None: the layout of data."""

    def windows(self) -> list[Window]:
        """The windows of each spatial axis."""
        count = len(self.spatial)
        numbers = (self.pool_size, self.strides, self.dilation)
        sizes, strides, dilation = (per_axis(value, count) for value in numbers)
        pairs = padding_pairs(self.padding, count)
        return [
            Window(letter, size, stride, *pair, step)
            for letter, size, stride, pair, step in zip(
                self.spatial, sizes, strides, pairs, dilation, strict=True
            )
        ]

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        self.check_dtype(d, data)
        self.check_layouts(d, data)
        count = len(self.spatial)
        for name in ("pool_size", "strides", "dilation"):
            check_per_axis(d, getattr(self, name), count, name)
        check_padding(d, self.padding, count)
        layout, out_layout = self.layouts()
        sizes = layout.sizes(data.dims)
        for w in self.windows():
            places = self.reach(sizes[w.letter], w)
            d.ensure(
                dim_op("le", w.stride, places),
                f"a window of size {w.span} does not fit into axis {w.letter} of size {sizes[w.letter]}",
                arg="data",
            )
            sizes[w.letter] = places // w.stride
        return TensorType(arranged(d, sizes, out_layout, "channels", "data"), data.dtype)

    def reach(self, size: Any, w: Window) -> Any:
        """The number of windows times the stride, rounded up, for an axis of `size` elements."""
        if not self.ceil_mode:
            return size + (w.before + w.after - w.span + w.stride)
        # A window that extends beyond the padding must start before it, in data or on its left.
        beyond = min(w.after - w.span + w.stride, 0)
        return size + (w.before + beyond + w.stride - 1)

    def check_dtype(self, d: Deduction, data: KnownTensor) -> None:
        """Refuse dtypes that the function is not defined on."""
        raise NotImplementedError

    def read(self, data: te.Tensor, otherwise: Any, index: Any, loops: dict[str, Any]) -> Any:
        """The element at offset `loops` of the window for element `index` of the result; `otherwise` outside of
        data."""
        layout = self.layouts()[0]
        sizes, place = layout.named(te.dims(data)), self.placed(index)
        may_leave = []
        for w in self.windows():
            place[w.letter] = w.place(place[w.letter], loops[w.letter])
            if self.ceil_mode or w.before or w.after:
                may_leave.append((place[w.letter], sizes[w.letter]))
        value = te.element(data(*layout.order(place)))
        return te.if_then_else(inside(may_leave), value, otherwise) if may_leave else value

    def loops(self) -> dict[str, Any]:
        """A loop over the offsets in a window for each spatial axis."""
        return {w.letter: te.reduce_axis(w.size, f"k{w.letter}") for w in self.windows()}

    def places(
        self, shape: Sequence[int]
    ) -> Iterator[tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]]:
        """For each offset in a window, over an array of `shape` in layout NC and the spatial axes: the indices of the
        elements at that offset of all windows (clamped to data; 0 for an empty axis), whether each is inside data, and
        whether each is inside data or padding."""
        windows, sizes = self.windows(), shape[2:]
        counts = [self.reach(size, w) // w.stride for size, w in zip(sizes, windows, strict=True)]
        for k in np.ndindex(*(w.size for w in windows)):
            places = [
                w.place(np.arange(n), at) for n, at, w in zip(counts, k, windows, strict=True)
            ]
            within = [(p >= 0) & (p < n) for p, n in zip(places, sizes, strict=True)]
            padded = [p < n + w.after for p, n, w in zip(places, sizes, windows, strict=True)]
            nearest = [np.clip(p, 0, max(n - 1, 0)) for p, n in zip(places, sizes, strict=True)]
            index = np.ix_(np.arange(shape[0]), np.arange(shape[1]), *nearest)
            yield index, _all(within), _all(padded)

    def seen(self, data: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each offset in a window, on numpy in layout NC and the spatial axes: the elements at that offset of all
        windows, whether each is inside data, and whether each is inside data or padding."""
        x = self.plain(data)
        source = x if x.size else np.zeros([max(n, 1) for n in x.shape], x.dtype)
        for index, within, padded in self.places(x.shape):
            yield source[index], within, padded


def _all(conditions: Sequence[np.ndarray]) -> np.ndarray:
    """Combine a condition for each axis into an array over all axes."""
    return functools.reduce(np.logical_and, np.meshgrid(*conditions, indexing="ij"))


@dataclass(frozen=True)
class MaxPooling(Pooling):
    """The maximum of each window; NaN if it contains one. A window entirely outside of data gives minus infinity, or
    the smallest integer."""

    def check_dtype(self, d: Deduction, data: KnownTensor) -> None:
        d.require(
            data.dtype != "bool", "data must be numbers, got bool", arg="data", code="op-dtype"
        )

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        loops, lowest = self.loops(), te.const(DType(str(data.dtype)).limits[0], str(data.dtype))

        def largest(*i: Any) -> Any:
            value = te.widen(self.read(data, lowest, i, loops))
            return te.reduce_max(value, list(loops.values()))

        found = te.compute(out.dims, largest, "max_pool")
        if str(found.dtype) == out.dtype:
            return found
        return te.compute(out.dims, lambda *i: te.cast(found(*i), out.dtype), "narrowed")

    def reference(self, data: np.ndarray) -> np.ndarray:
        lowest = np.asarray(DType(data.dtype).limits[0]).astype(data.dtype)
        best: Any = lowest
        data = widened(data)
        for value, within, _ in self.seen(data):
            value = np.where(within, value, lowest)
            best = np.where(
                (best > value) | np.isnan(best), best, value
            )  # of 0.0 and -0.0 the later
        return np.ascontiguousarray(self.result(best)).astype(lowest.dtype)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        x, o = (layout.letters for layout in self.layouts())
        if any(layout.blocks for layout in self.layouts()):
            return [NoRule(f"{self.name} has no rule for blocks of channels")]
        plain, sizes = f"NC{self.spatial}", self.layouts()[0].sizes(b.dims(data))
        shape = tuple(sizes[letter] for letter in plain)
        zeros = b.zeros((*shape[:2], product(shape[2:])), b.dtype(ct))
        places, given = (
            planes(b, rearranged(b, each, o, plain)) for each in (maxima(b, self, data), ct)
        )
        found = b.reshape(b.scatter_elements(zeros, places, given, 2, "add"), shape)
        return [rearranged(b, found, plain, x)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for attributes, sizes in _cases(len(cls.spatial)):
            yield sample(cls(**attributes), rand(2, 2, *sizes), dims=_dims(cls))
        last = cls(2, 2, layout=f"N{cls.spatial}C", out_layout=f"NC{cls.spatial}")
        shape = (1, *(4, 3, 5)[: len(cls.spatial)], 2)
        yield sample(last, rand(*shape), dims=" ".join(("n", *cls.spatial.lower(), "2")))
        blocks = rand(1, 2, *(4, 3, 5)[: len(cls.spatial)], 4)
        for out_layout in (f"NC{cls.spatial}", f"N{cls.spatial}C2c"):
            apart = cls(2, 2, 1, layout=f"NC{cls.spatial}4c", out_layout=out_layout)
            yield sample(apart, blocks, dims=_dims(cls) + " 4")
        apart = cls(2, out_layout=f"NC{cls.spatial}3c")
        odd = (*(4, 3, 5)[: len(cls.spatial)],)
        yield sample(apart, rand(2, 6, *odd), dims=" ".join(("n", "6", *cls.spatial.lower())))
        yield wrong(apart, rand(2, 4, *odd), code="shape-mismatch", match="blocks of 3: 4")
        packed = cls(2, 2, layout=f"NC{cls.spatial}4c")
        yield sample(packed, rand(1, 2, *(4, 3, 5)[: len(cls.spatial)], 4), dims=_dims(cls) + " 4")
        special = np.array([np.nan, -np.inf, np.inf, -0.0, -1, 2], np.float32)
        line = special.reshape(1, 1, *(1,) * (len(cls.spatial) - 1), 6)
        yield sample(cls((1,) * (len(cls.spatial) - 1) + (2,)), line, dims=_dims(cls))
        ints = rand(1, 2, *(3,) * len(cls.spatial), dtype="int8", low=-99, high=99)
        yield sample(cls(2, padding=1), ints, dims=_dims(cls))
        yield wrong(cls(), ints.astype(bool), code="op-dtype", match="bool")
        yield from _wrong(cls)


@dataclass(frozen=True)
class AveragePooling(Pooling):
    """The mean of each window; 0 if nothing is counted. Integer sums are exact and the quotient is rounded toward 0."""

    def check_dtype(self, d: Deduction, data: KnownTensor) -> None:
        d.require(
            data.dtype != "bool", "data must be numbers, got bool", arg="data", code="op-dtype"
        )

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        loops, layout, out_layout = self.loops(), *self.layouts()
        sizes = layout.named(te.dims(data))
        zero, wide = te.const(0, str(data.dtype)), sum_dtype(DType(str(data.dtype)))

        def total(*i: Any) -> Any:
            return te.sum(te.cast(self.read(data, zero, i, loops), wide), list(loops.values()))

        sums = te.compute(out.dims, total, "sum")

        def element(*i: Any) -> Any:
            at, value, count = out_layout.named(i), te.element(sums(*i)), te.dim(1)
            for w in self.windows():
                count = count * self.counted(w, at[w.letter], sizes[w.letter])
            count = te.cast(te.maximum(count, te.dim(1)), wide)
            return te.cast(te.divide(value, count), out.dtype)

        return te.compute(out.dims, element, "avg_pool")

    def counted(self, w: Window, o: Any, size: Dim) -> Any:
        """The number of counted elements of window o on an axis of `size` elements."""
        if not (self.ceil_mode or w.before or w.after):
            return te.dim(w.size)
        first, low = w.place(o, te.dim(0)), te.dim(-w.before if self.count_include_pad else 0)
        high = te.dim(size + (w.after if self.count_include_pad else 0))

        def below(limit: Any) -> Any:
            """The number of indices of the window below a limit."""
            steps = (limit - first + (w.dilation - 1)) // w.dilation
            return te.maximum(te.minimum(steps, te.dim(w.size)), te.dim(0))

        return te.maximum(below(high) - below(low), te.dim(0))

    def reference(self, data: np.ndarray) -> np.ndarray:
        x = data.astype(sum_dtype(DType(data.dtype)).numpy)
        total: Any = x.dtype.type(0)
        count: Any = 0
        for value, within, padded in self.seen(x):
            total = total + np.where(within, value, x.dtype.type(0))
            count = count + (padded if self.count_include_pad else within)
        value = quotient(total, np.maximum(count, 1))
        return np.ascontiguousarray(self.result(narrowed(value, data)))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        x, o = (layout.letters for layout in self.layouts())
        if any(layout.blocks for layout in self.layouts()):
            return [NoRule(f"{self.name} has no rule for blocks of channels")]
        plain, sizes = f"NC{self.spatial}", self.layouts()[0].sizes(b.dims(data))
        wanted = tuple(sizes[letter] for letter in plain)
        found = rearranged(b, ct, o, plain)
        # The mean is that along each axis, one after the other.
        for axis, w in enumerate(self.windows(), start=2):
            dims = b.dims(found)
            rows, rest = (*dims[:1], product(dims[1:axis])), product(dims[axis + 1 :])
            given = b.reshape(found, (*rows, dims[axis], rest))
            zeros = b.zeros((*rows, wanted[axis], rest), b.dtype(ct))
            each = {**attributes_of(self), "layout": "NCHW", "out_layout": None}
            each |= {
                "pool_size": (w.size, 1),
                "strides": (w.stride, 1),
                "dilation": (w.dilation, 1),
            }
            each |= {"padding": (w.before, 0, w.after, 0)}
            given = b.grad.avg_pool2d_backward(given, zeros, **each)
            found = b.reshape(given, (*dims[:axis], wanted[axis], *dims[axis + 1 :]))
        return [rearranged(b, found, plain, x)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for attributes, sizes in _cases(len(cls.spatial)):
            for counted in (False, True) if attributes.get("padding") else (False,):
                op = cls(**attributes, count_include_pad=counted)
                yield sample(op, rand(2, 2, *sizes), dims=_dims(cls))
        last = cls(2, 2, layout=f"N{cls.spatial}C", out_layout=f"NC{cls.spatial}")
        shape = (1, *(4, 3, 5)[: len(cls.spatial)], 2)
        yield sample(last, rand(*shape), dims=" ".join(("n", *cls.spatial.lower(), "2")))
        packed = cls(2, padding=1, layout=f"NC{cls.spatial}4c")
        yield sample(packed, rand(1, 2, *(4, 3, 5)[: len(cls.spatial)], 4), dims=_dims(cls) + " 4")
        half = rand(1, 2, *(3,) * len(cls.spatial), dtype="float16")
        yield sample(cls(2, padding=1), half, dims=_dims(cls), rtol=2e-3, atol=2e-3)
        ints = rand(1, 2, *(3,) * len(cls.spatial), dtype="int8", low=-128, high=127)
        yield sample(cls(2, padding=1), ints, dims=_dims(cls))
        yield sample(
            cls(3, padding=1, count_include_pad=True), ints.astype("uint8"), dims=_dims(cls)
        )
        yield wrong(cls(), half.astype(bool), code="op-dtype", match="bool")
        yield from _wrong(cls)


def _cases(count: int) -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
    """Attributes and spatial sizes, for samples."""
    sizes = (6, 5, 4)[:count]
    yield {"pool_size": 2, "strides": 2}, sizes
    yield {"pool_size": 3, "padding": 1}, sizes
    yield {"pool_size": (3, 2, 1)[:count], "strides": (2, 1, 2)[:count], "ceil_mode": True}, sizes
    padding = ((1, 0), (1, 0, 1, 2), (0, 1, 0, 1, 1, 2))[count - 1]
    yield {"pool_size": 2, "strides": 3, "padding": padding, "ceil_mode": True}, sizes
    yield {"pool_size": 2, "dilation": 2, "padding": 1, "strides": 2}, sizes


def _dims(cls: type[PoolLike]) -> str:
    return " ".join(("n", "c", *cls.spatial.lower()))


def _wrong(cls: type[Pooling]) -> Iterator[Sample]:
    """Calls that all pooling operators refuse."""
    count = len(cls.spatial)
    x, letter = rand(1, 2, *(4,) * count), cls.spatial[0]
    yield wrong(cls(5), x, code="shape-mismatch", match=f"axis {letter} of size 4")
    yield wrong(cls(pool_size=(1,) * (count + 1)), x, code="op-arguments", match="pool_size")
    yield wrong(cls(strides=0), x, code="op-arguments", match="strides")
    yield wrong(cls(padding=(1,) * (2 * count + 1)), x, code="op-arguments", match="padding")
    yield wrong(cls(layout="NC"), x, code="op-arguments", match="layout")
    packed = f"NC{cls.spatial}4c"
    yield wrong(cls(layout=packed), x, code="op-rank", match="data")
    yield wrong(cls(layout=packed), x[..., None], code="shape-mismatch", match=packed)
    yield wrong(cls(), x[0], code="op-rank", match="data")


@define_op
class MaxPool1d(MaxPooling):
    """1-D max pooling: the maximum of each window, NaN if it contains one. `strides` is the distance of windows. A
    window entirely outside of data gives minus infinity, or the smallest integer."""

    name = "nn.max_pool1d"
    spatial = "W"
    layout: str = "NCW"


@define_op
class MaxPool2d(MaxPooling):
    """2-D max pooling: the maximum of each window, NaN if it contains one. `strides` is the distance of windows. A
    window entirely outside of data gives minus infinity, or the smallest integer."""

    name = "nn.max_pool2d"
    spatial = "HW"
    layout: str = "NCHW"

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.grad.max_pool2d_backward(ct, *args, **attributes_of(self))]


@define_op
class MaxPool3d(MaxPooling):
    """3-D max pooling: the maximum of each window, NaN if it contains one. `strides` is the distance of windows. A
    window entirely outside of data gives minus infinity, or the smallest integer."""

    name = "nn.max_pool3d"
    spatial = "DHW"
    layout: str = "NCDHW"


@define_op
class AvgPool1d(AveragePooling):
    """1-D average pooling: the mean of each window; 0 if nothing is counted. `strides` is the distance of windows."""

    name = "nn.avg_pool1d"
    spatial = "W"
    layout: str = "NCW"
    count_include_pad: bool = True


@define_op
class AvgPool2d(AveragePooling):
    """2-D average pooling: the mean of each window; 0 if nothing is counted. `strides` is the distance of windows."""

    name = "nn.avg_pool2d"
    spatial = "HW"
    layout: str = "NCHW"


@define_op
class AvgPool3d(AveragePooling):
    """3-D average pooling: the mean of each window; 0 if nothing is counted. `strides` is the distance of windows."""

    name = "nn.avg_pool3d"
    spatial = "DHW"
    layout: str = "NCDHW"
    count_include_pad: bool = True


def attributes_of(op: Pooling) -> dict[str, Any]:
    """The attributes by name, which are those of all operators on windows."""
    return {name: getattr(op, name) for name in op.attr_names()}


def maxima(b: Rule, op: Pooling, data: Expr) -> Expr:
    """Where the maximum of each window is, in its plane."""
    name = op.name.removeprefix("nn.").removeprefix("grad.").removesuffix("_backward")
    return getattr(b.nn, f"{name}_indices")(data, **attributes_of(op))


def planes(b: Rule, x: Expr) -> Expr:
    """X with its spatial axes as one."""
    dims = b.dims(x)
    return b.reshape(x, (*dims[:2], product(dims[2:])))
