"""Regions of interest of a feature map, each pooled to a fixed size (`R.vision.roi_align`, `R.vision.roi_pool`).

A region is a row (image, x1, y1, x2, y2) of `rois`, in coordinates of an original image that is `1 / spatial_scale`
times as large as the map. An image index out of range is clamped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import Layout, check_per_axis, per_axis
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import converted, widened
from relaxpy.op.rule import LATER

FAR = float(1 << 30)
"""Coordinates are clamped to this magnitude, so that no sum of them overflows."""


class RegionOperator(Op):
    """The common part of both operators: deduction of the result, and the position of a region on the map."""

    of_data = True
    layouts: ClassVar[tuple[str, ...]] = ("NCHW",)
    pooled_size: tuple[int, ...] | int
    spatial_scale: float
    layout: str

    def deduce(self, d: Deduction, data: KnownTensor, rois: KnownTensor) -> TensorType:
        d.need_float(data, "data")
        dtype = d.same_dtype(data, rois)
        for name, x, ndim in (("data", data, 4), ("rois", rois, 2)):
            d.require(
                x.ndim == ndim,
                f"{name} must have {ndim} dimensions, got {x.ndim}", arg=name, code="op-rank",
            )  # fmt: skip
        check_per_axis(d, self.pooled_size, 2, "pooled_size")
        d.require(
            self.layout in self.layouts,
            f"layout {self.layout!r} is none of {', '.join(self.layouts)}", arg="layout",
        )  # fmt: skip
        self.check_attributes(d)
        d.same_dim(rois.dims[1], Dim.of(5), "a region has 5 numbers", arg="rois")
        sizes = Layout(self.layout).named(data.dims)
        for letter in "NHW":
            there = dim_op("le", 1, sizes[letter])
            d.ensure(there, f"axis {letter} of data is empty", arg="data")
        rows, columns = per_axis(self.pooled_size, 2)
        sizes |= {"N": rois.dims[0], "H": Dim.of(rows), "W": Dim.of(columns)}
        return TensorType(Layout(self.layout).order(sizes), dtype)

    def check_attributes(self, d: Deduction) -> None:
        """Refuse invalid attributes of the operator."""

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        data = args[0]
        return TensorType(None, data.dtype if isinstance(data, TensorType) else None, 4)

    def legalize(self, out: KnownTensor, data: te.Tensor, rois: te.Tensor) -> te.Tensor:
        layout = Layout(self.layout)
        sizes = layout.named(te.dims(data))

        def fill(p: Any, result: Any, source: Any, regions: Any) -> None:
            with te.rows(p, out.dims) as index:
                at = layout.named(index)
                region = [
                    te.known(p, f"r{k}", te.widen(p.read(regions, at["N"], k))) for k in range(5)
                ]
                named = te.known(p, "named", te.cast(region[0], "int64"))
                image = te.maximum(te.minimum(named, te.dim(sizes["N"] - 1)), te.dim(0))
                image = te.known(p, "image", image)

                def read(y: Any, x: Any) -> Any:
                    place = layout.order({**at, "N": image, "H": y, "W": x})
                    return te.widen(p.read(source, *place))

                value = self.element(p, region, at, sizes, read)
                p.write(result, *index, value=te.cast(value, str(out.dtype)))

        return te.serial((out.dims, str(out.dtype)), [data, rois], fill, self.name.split(".")[1])

    def element(
        self, p: Any, region: list[Any], at: dict[str, Any], sizes: dict[str, Dim], read: Any
    ) -> Any:
        """Compute an element of the result, at index `at`."""
        raise NotImplementedError

    def reference(self, data: np.ndarray, rois: np.ndarray) -> np.ndarray:
        layout = Layout(self.layout)
        x, regions = layout.moved(widened(data), "NCHW"), widened(rois)
        rows, columns = per_axis(self.pooled_size, 2)
        found = np.zeros((len(regions), x.shape[1], rows, columns), x.dtype)
        for n, region in enumerate(regions):
            image = x[min(max(int(converted(region[:1], "int64")[0]), 0), len(x) - 1)]
            for i, j in np.ndindex(rows, columns):
                found[n, :, i, j] = self.pooled(image, region[1:], i, j)
        return np.ascontiguousarray(Layout("NCHW").moved(found, self.layout)).astype(data.dtype)

    def pooled(self, image: np.ndarray, region: np.ndarray, i: int, j: int) -> Any:
        """The element at (i, j) for all channels."""
        raise NotImplementedError


@define_op
class RoiAlign(RegionOperator):
    """Pool each region of `rois` (image, x1, y1, x2, y2) to `pooled_size`. Each bin is the mean, or the maximum, of
    data sampled at evenly spaced points in the bin by bilinear interpolation; points outside of data are 0."""

    name = "vision.roi_align"
    no_vjp = LATER
    layouts = ("NCHW", "NHWC")
    pooled_size: tuple[int, ...] | int
    """Rows and columns of the result; one number for both."""
    spatial_scale: float
    """The ratio of data's size to that of the original image."""
    sample_ratio: int = -1
    """Sampling points per bin along an axis; below 1: the size of the bin in elements, rounded up (at most about four
    times the size of data)."""
    aligned: bool = False
    """Whether a region may be smaller than one element; otherwise its sides are at least 1."""
    layout: str = "NCHW"
    mode: str = "avg"
    """"avg" or "max"."""

    def check_attributes(self, d: Deduction) -> None:
        known = ("avg", "max")
        d.require(self.mode in known, f"mode {self.mode!r} is none of avg, max", arg="mode")

    def element(
        self, p: Any, region: list[Any], at: dict[str, Any], sizes: dict[str, Dim], read: Any
    ) -> Any:
        wide = str(te.dtype_of(region[0]))
        number = lambda value: te.const(value, wide)  # noqa: E731
        axes = []
        for s, low, high, parts in zip(
            "HW", (region[2], region[1]), (region[4], region[3]), per_axis(self.pooled_size, 2),
            strict=True,
        ):  # fmt: skip
            start, end = (_bounded(p, x * number(self.spatial_scale), wide) for x in (low, high))
            length = te.known(p, f"length{s}", end - start)
            if not self.aligned:
                length = te.known(p, f"long{s}", te.maximum(length, number(1.0)))
            part = te.known(p, f"part{s}", length / number(parts))
            count = te.dim(self.sample_ratio)
            if self.sample_ratio < 1:
                whole = te.known(p, f"whole{s}", te.ceil(part))
                count = te.known(p, f"wanted{s}", te.cast(whole, "int64"))
                count = te.maximum(te.minimum(count, te.dim(sizes[s] * 4 + 4)), te.dim(0))
            count = te.known(p, f"count{s}", count)
            first = te.known(p, f"first{s}", start + te.cast(at[s], wide) * part)
            axes.append((s, first, part, count))
        lowest = number(0.0 if self.mode == "avg" else -math.inf)
        total: Any = te.cell(p, "total", lowest)
        (_, y0, rows, down), (_, x0, columns, across) = axes
        with p.loop("i", down, about=2) as i:
            y = te.known(p, "y", _place(i, y0, rows, down, wide))
            with p.loop("j", across, about=2) as j:
                x = te.known(p, "x", _place(j, x0, columns, across, wide))
                value = te.known(p, "value", _between(p, y, x, sizes, read, wide))
                if self.mode == "avg":
                    total.set(total.get() + value)
                else:
                    total.set(te.maximum(total.get(), value))
        if self.mode == "max":
            return total.get()
        return total.get() / te.cast(te.maximum(down * across, te.dim(1)), wide)

    def pooled(self, image: np.ndarray, region: np.ndarray, i: int, j: int) -> Any:
        kind = image.dtype.type
        places = []
        for axis, (low, high, o, parts) in enumerate(
            zip(region[1::-1], region[:1:-1], (i, j), per_axis(self.pooled_size, 2), strict=True)
        ):
            start, end = (_bounded_on_numpy(x * kind(self.spatial_scale)) for x in (low, high))
            length = end - start if self.aligned else np.maximum(end - start, kind(1))
            part = length / kind(parts)
            count = self.sample_ratio
            if count < 1:
                count = int(converted(np.ceil(part).reshape(1), "int64")[0])
                count = max(min(count, 4 * image.shape[1 + axis] + 4), 0)
            first = start + kind(o) * part
            places.append(
                [first + (kind(n) + kind(0.5)) * part / kind(count) for n in range(count)]
            )
        found = [_between_on_numpy(image, y, x) for y in places[0] for x in places[1]]
        if self.mode == "max":
            return np.max(found, axis=0, initial=-math.inf) if found else -math.inf
        return np.sum(found, axis=0) / kind(max(len(found), 1)) if found else 0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        data, rois = rand(2, 3, 6, 8), _regions()
        dims = "n c h w, m 5"
        yield sample(cls((3, 2), 0.5), data, rois, dims=dims)
        yield sample(cls(2, 1.0, sample_ratio=2, aligned=True), data, rois, dims=dims)
        yield sample(cls((1, 4), 0.25, mode="max"), data, rois, dims=dims)
        last = np.ascontiguousarray(data.transpose(0, 2, 3, 1))
        yield sample(cls(2, 1.0, layout="NHWC"), last, rois, dims="n h w c, m 5")
        yield sample(cls(2, 1.0, aligned=True), data, rois[:, [0, 3, 4, 1, 2]].copy(), dims=dims)
        half = data.astype(np.float16), rois.astype(np.float16)
        yield sample(cls(2, 0.5), *half, dims=dims, rtol=2e-3, atol=2e-3)
        yield sample(cls(2, 0.5), data, rois[:0], dims=dims)
        yield wrong(cls(2, 0.5, mode="sum"), data, rois, code="op-arguments", match="mode")
        yield wrong(cls(2, 0.5, layout="CHWN"), data, rois, code="op-arguments", match="layout")
        yield from _wrong(cls)


@define_op
class RoiPool(RegionOperator):
    """Max-pool each region of `rois` (image, x1, y1, x2, y2) to `pooled_size`; an empty bin is 0. The corners of a
    region are rounded to integers and included."""

    name = "vision.roi_pool"
    no_vjp = LATER
    pooled_size: tuple[int, ...] | int
    """Rows and columns of the result; one number for both."""
    spatial_scale: float
    """The ratio of data's size to that of the original image."""
    layout: str = "NCHW"

    def element(
        self, p: Any, region: list[Any], at: dict[str, Any], sizes: dict[str, Dim], read: Any
    ) -> Any:
        wide = str(te.dtype_of(region[0]))
        ranges = []
        for s, low, high, parts in zip(
            "HW", (region[2], region[1]), (region[4], region[3]), per_axis(self.pooled_size, 2),
            strict=True,
        ):  # fmt: skip
            scaled = (x * te.const(self.spatial_scale, wide) for x in (low, high))
            nearest = (_bounded(p, x, wide) + te.const(0.5, wide) for x in scaled)
            whole = [te.known(p, f"whole{s}", te.floor(x)) for x in nearest]
            start, end = (te.known(p, f"edge{s}", te.cast(x, "int64")) for x in whole)
            length = te.known(p, f"length{s}", te.maximum(end - start + 1, te.dim(1)))

            def inside(x: Any, size: Dim, name: str) -> Any:
                x = te.known(p, name, x)
                return te.known(p, name, te.maximum(te.minimum(x, te.dim(size)), te.dim(0)))

            first = inside(start + at[s] * length // parts, sizes[s], f"first{s}")
            end_of = start + ((at[s] + 1) * length + (parts - 1)) // parts
            last = inside(end_of, sizes[s], f"last{s}")
            ranges.append((first, te.known(p, f"count{s}", te.maximum(last - first, te.dim(0)))))
        (y, down), (x, across) = ranges
        best: Any = te.cell(p, "best", te.const(-math.inf, wide))
        with p.loop("i", down, about=4) as i, p.loop("j", across, about=4) as j:
            best.set(te.maximum(best.get(), read(y + i, x + j)))
        empty = te.equal(down * across, te.dim(0))
        return te.select(empty, te.const(0.0, wide), best.get())

    def pooled(self, image: np.ndarray, region: np.ndarray, i: int, j: int) -> Any:
        kind = image.dtype.type
        ends = _bounded_on_numpy(region * kind(self.spatial_scale)) + kind(0.5)
        x1, y1, x2, y2 = converted(np.floor(ends), "int64").tolist()
        found = image
        for axis, (start, end, o, parts) in enumerate(
            zip((y1, x1), (y2, x2), (i, j), per_axis(self.pooled_size, 2), strict=True), start=1
        ):
            length, size = max(end - start + 1, 1), image.shape[axis]
            first = min(max(start + o * length // parts, 0), size)
            last = min(max(start - (-(o + 1) * length // parts), 0), size)
            found = np.take(found, range(first, last), axis)
        return found.max((1, 2)) if found.shape[1] * found.shape[2] else 0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        data, rois, dims = rand(2, 3, 6, 8), _regions(), "n c h w, m 5"
        yield sample(cls((3, 2), 0.5), data, rois, dims=dims)
        yield sample(cls(4, 1.0), data, rois, dims=dims)
        half = data.astype(np.float16), rois.astype(np.float16)
        yield sample(cls(2, 0.5), *half, dims=dims)
        yield sample(cls(2, 0.5), data, rois[:0], dims=dims)
        yield wrong(cls(2, 0.5, layout="NHWC"), data, rois, code="op-arguments", match="layout")
        yield from _wrong(cls)


def _bounded(p: Any, x: Any, wide: str) -> Any:
    """A coordinate clamped to a finite range; a NaN stays NaN."""
    # Each step is bound to a name: nested expressions that repeat it would be slow to compile.
    below = te.known(p, "below", te.minimum(te.known(p, "scaled", x), te.const(FAR, wide)))
    return te.known(p, "bounded", te.maximum(below, te.const(-FAR, wide)))


def _bounded_on_numpy(x: Any) -> Any:
    return np.clip(x, x.dtype.type(-FAR), x.dtype.type(FAR))


def _place(n: Any, first: Any, part: Any, count: Any, wide: str) -> Any:
    """Point n of `count` evenly spaced points in a bin that starts at `first` and is `part` long."""
    middle = te.cast(n, wide) + te.const(0.5, wide)
    return first + middle * part / te.cast(count, wide)


def _between(p: Any, y: Any, x: Any, sizes: dict[str, Dim], read: Any, wide: str) -> Any:
    """Data interpolated between four elements; 0 where a point is more than one element outside."""
    zero, one = te.const(0.0, wide), te.const(1.0, wide)
    corners, outside = [], te.const(False, "bool")
    for name, at, size in (("y", y, te.dim(sizes["H"])), ("x", x, te.dim(sizes["W"]))):
        near = te.logical_and(at >= -one, at <= te.cast(size, wide))
        outside = te.logical_or(outside, te.logical_not(near))
        held = te.known(p, f"below_{name}", te.minimum(at, te.cast(size - 1, wide)))
        held = te.known(p, f"held_{name}", te.select(held > zero, held, zero))
        whole = te.known(p, f"whole_{name}", te.floor(held))
        low = te.known(p, f"low_{name}", te.cast(whole, "int64"))
        rest = te.known(p, f"rest_{name}", held - whole)
        above = te.cast(te.greater(rest, zero), "int64")
        high = te.known(p, f"high_{name}", te.minimum(low + above, size - 1))
        corners.append((low, high, rest))
    (top, bottom, v), (left, right, u) = corners
    value = (
        read(top, left) * (one - u) * (one - v) + read(top, right) * u * (one - v)
        + read(bottom, left) * (one - u) * v + read(bottom, right) * u * v
    )  # fmt: skip
    return te.select(outside, zero, value)


def _between_on_numpy(image: np.ndarray, y: Any, x: Any) -> Any:
    kind = image.dtype.type
    corners = []
    for at, size in zip((y, x), image.shape[1:], strict=True):
        if not -1 <= at <= size:
            return np.zeros(image.shape[0], image.dtype)
        held = min(max(at, kind(0)), kind(size - 1))
        corners.append((math.floor(held), min(math.ceil(held), size - 1), held - np.floor(held)))
    (top, bottom, v), (left, right, u) = corners
    return (
        image[:, top, left] * (1 - u) * (1 - v) + image[:, top, right] * u * (1 - v)
        + image[:, bottom, left] * (1 - u) * v + image[:, bottom, right] * u * v
    )  # fmt: skip


def _regions() -> np.ndarray:
    """Regions inside, across an edge, outside, and of an image index out of range."""
    return np.array(
        [[0, 1, 1, 5, 6], [1, 0, 0, 7, 5], [0, -3, 2, 14, 4], [1, 30, 30, 40, 40], [9, 2, 3, 2, 3]],
        np.float32,
    )


def _wrong(cls: Any) -> Iterator[Sample]:
    """Samples that both operators refuse."""
    data, rois = rand(2, 3, 6, 8), _regions()
    yield wrong(cls(0, 0.5), data, rois, code="op-arguments", match="pooled_size")
    yield wrong(cls(2, 0.5), data[0], rois, code="op-rank", match="data")
    yield wrong(cls(2, 0.5), data, rois[0], code="op-rank", match="rois")
    yield wrong(cls(2, 0.5), data, rois[:, :4], code="shape-mismatch", match="5 numbers")
    yield wrong(cls(2, 0.5), data[:0], rois, code="shape-mismatch", match="axis N")
    yield wrong(cls(2, 0.5), data, rois.astype(np.float64), code="op-dtype", match="float64")
    ints = data.astype(np.int32), rois.astype(np.int32)
    yield wrong(cls(2, 0.5), *ints, code="op-dtype", match="float")
