"""Adaptive pooling: windows that divide an axis into a given number of parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr, PrimValue
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import arranged, check_per_axis, inside, per_axis, rearranged
from relaxpy.op.deduction import Deduction
from relaxpy.op.pool import PoolLike
from relaxpy.op.precision import narrowed, quotient, sum_dtype
from relaxpy.op.rule import Cotangent, NoRule, Rule


@dataclass(frozen=True)
class AdaptiveAveragePooling(PoolLike):
    """The mean of each window. Where an axis of `size` elements is divided into `parts` windows, window o covers the
    indices from floor(o * size / parts) up to, but not including, ceil((o + 1) * size / parts). Integer sums are exact
    and the quotient is rounded toward 0; an empty integer window gives 0."""

    output_size: tuple[int, ...] | int | None = None
    """Number of windows along each spatial axis; None: the size of the axis is kept."""
    layout: str = ""
    out_layout: str | None = None
    """Layout of the result; None: the layout of data."""

    def parts(self) -> dict[str, int]:
        """Number of windows of each pooled axis, by its letter."""
        if self.output_size is None:
            return {}
        sizes = per_axis(self.output_size, len(self.spatial))
        return dict(zip(self.spatial, sizes, strict=True))

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        d.require(
            data.dtype != "bool", "data must be numbers, got bool", arg="data", code="op-dtype"
        )
        self.check_layouts(d, data)
        if self.output_size is not None:
            check_per_axis(d, self.output_size, len(self.spatial), "output_size")
        layout, out_layout = self.layouts()
        sizes = layout.sizes(data.dims)
        sizes.update({letter: Dim.of(parts) for letter, parts in self.parts().items()})
        return TensorType(arranged(d, sizes, out_layout, "channels", "data"), data.dtype)

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        layout, out_layout = self.layouts()
        wide = sum_dtype(DType(str(data.dtype)))
        sizes, parts = layout.named(te.dims(data)), self.parts()
        length = {s: sizes[s].divide_exact(n) for s, n in parts.items()}
        even = {s: size for s, size in length.items() if size is not None}
        # Windows have different lengths: the loop runs as long as the longest window, under a condition.
        ragged = {s: (sizes[s] + (n - 1)) // n + 1 for s, n in parts.items() if s not in even}
        loops = {s: te.reduce_axis(extent, f"k{s}") for s, extent in (even | ragged).items()}

        def bounds(s: str, o: Any) -> tuple[Any, Any]:
            """The first index of window o, and the index after its last."""
            size, n = te.dim(sizes[s]), parts[s]
            return o * size // n, ((o + 1) * size + (n - 1)) // n

        def total(*i: Any) -> Any:
            place, conditions = self.placed(i), []
            for s in parts:
                first, end = bounds(s, place[s])
                place[s] = first + loops[s]
                if s in ragged:
                    conditions.append((loops[s], end - first))
            value = te.cast(te.element(data(*layout.order(place))), wide)
            if conditions:
                value = te.if_then_else(inside(conditions), value, te.literal(0, value))
            return te.sum(value, list(loops.values())) if loops else value

        sums = te.compute(out.dims, total, "sum")
        same = product(tuple(even.values()))

        def element(*i: Any) -> Any:
            at, value = out_layout.named(i), te.element(sums(*i))
            lengths = [end - first for first, end in (bounds(s, at[s]) for s in ragged)]
            if wide.is_int:
                count = math.prod(lengths, start=te.dim(same))
                value = te.divide(value, te.cast(te.maximum(count, te.dim(1)), wide))
                return te.cast(value, out.dtype)
            value = te.per_count(value, same)
            for length in lengths:
                value = value / te.cast(length, wide)
            return te.cast(value, out.dtype)

        return te.compute(out.dims, element, "adaptive_avg_pool")

    def reference(self, data: np.ndarray) -> np.ndarray:
        wide = sum_dtype(DType(data.dtype))
        x = self.plain(data.astype(wide.numpy))
        count: Any = np.ones((1,) * x.ndim, np.int64)
        for axis, parts in enumerate(self.parts().values(), start=2):
            size = x.shape[axis]
            windows = [
                np.take(x, range(o * size // parts, -(-(o + 1) * size // parts)), axis)
                for o in range(parts)
            ]
            lengths = np.array([w.shape[axis] for w in windows])
            along = lengths.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
            x = np.stack([w.sum(axis, dtype=x.dtype) for w in windows], axis)
            if wide.is_int:
                count = count * along
            else:
                x = quotient(x, along)
        if wide.is_int:
            x = quotient(x, np.maximum(count, 1))
        return narrowed(self.result(x), data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        x, o = (layout.letters for layout in self.layouts())
        if any(layout.blocks for layout in self.layouts()):
            return [NoRule(f"{self.name} has no rule for blocks of channels")]
        plain = f"NC{self.spatial}"
        found, sizes = rearranged(b, ct, o, plain), self.layouts()[0].sizes(b.dims(data))
        for letter, parts in self.parts().items():
            axis, size = plain.index(letter), sizes[letter]
            order = [a for a in range(len(plain)) if a != axis] + [axis]
            rows = b.matmul(
                b.permute_dims(found, tuple(order)), shares(b, parts, size, b.dtype(ct))
            )
            found = b.permute_dims(rows, tuple(order.index(a) for a in range(len(plain))))
        return [rearranged(b, found, plain, x)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        count = len(cls.spatial)
        x, dims = rand(2, 2, *(6, 5, 4)[:count]), " ".join(("n", "c", *cls.spatial.lower()))
        yield sample(cls(), x, dims=dims)
        yield sample(cls(1), x, dims=dims)
        yield sample(cls(2), x, dims=dims)
        yield sample(cls((3, 5, 7)[:count]), x, dims=dims)
        yield sample(cls((3, 5, 4)[:count]), x)
        blocks = rand(1, 2, *(4, 3, 5)[:count], 6)
        for out_layout in (f"NC{cls.spatial}", f"N{cls.spatial}C4c"):
            apart = cls(2, layout=f"NC{cls.spatial}6c", out_layout=out_layout)
            yield sample(apart, blocks, dims=f"{dims} 6".replace("c", "2"))
        last = cls((2, 3, 4)[:count], layout=f"N{cls.spatial}C")
        shape = (1, *(4, 3, 5)[:count], 2)
        yield sample(last, rand(*shape), dims=" ".join(("n", *cls.spatial.lower(), "2")))
        packed = cls(2, layout=f"NC{cls.spatial}4c")
        yield sample(packed, rand(1, 2, *(4, 3, 5)[:count], 4), dims=f"{dims} 4")
        yield wrong(cls(0), x, code="op-arguments", match="output_size")
        yield wrong(cls((1,) * (count + 1)), x, code="op-arguments", match="output_size")
        yield wrong(cls(), x[0], code="op-rank", match="data")
        ints = rand(1, 2, *(5, 3, 4)[:count], dtype="int8", low=-128, high=127)
        for op in (cls(2), cls(1), cls((3, 2, 4)[:count])):
            yield sample(op, ints, dims=dims)
        yield wrong(cls(), x.astype(bool), code="op-dtype", match="bool")


@define_op
class AdaptiveAvgPool1d(AdaptiveAveragePooling):
    """Adaptive average pooling over one axis: the mean of each of `output_size` windows. Windows overlap where the axis
    is not divisible by their number. An empty window gives NaN."""

    name = "nn.adaptive_avg_pool1d"
    spatial = "W"
    layout: str = "NCW"


@define_op
class AdaptiveAvgPool2d(AdaptiveAveragePooling):
    """Adaptive average pooling over two axes: the mean of each of `output_size` windows. Windows overlap where an axis
    is not divisible by their number. An empty window gives NaN."""

    name = "nn.adaptive_avg_pool2d"
    spatial = "HW"
    layout: str = "NCHW"


@define_op
class AdaptiveAvgPool3d(AdaptiveAveragePooling):
    """Adaptive average pooling over three axes: the mean of each of `output_size` windows. Windows overlap where an
    axis is not divisible by their number. An empty window gives NaN."""

    name = "nn.adaptive_avg_pool3d"
    spatial = "DHW"
    layout: str = "NCDHW"


def shares(b: Rule, parts: int, size: Dim, dtype: DType) -> Expr:
    """The share of each element of an axis in the mean of each window, as a matrix of windows by elements."""
    window = b.reshape(b.arange(PrimValue(parts)), (parts, 1))
    place = b.reshape(b.arange(PrimValue(size)), (1, size))
    begin = b.floor_divide(b.multiply(window, size), parts)
    end = b.negative(b.floor_divide(b.negative(b.multiply(b.add(window, 1), size)), parts))
    inside = b.logical_and(b.greater_equal(place, begin), b.less(place, end))
    return b.divide(b.astype(inside, dtype), b.astype(b.subtract(end, begin), dtype))
