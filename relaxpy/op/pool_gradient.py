"""Gradients of pooling with respect to data (`R.grad.max_pool2d_backward`, …): each window distributes its gradient to
its elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import inside, rearranged
from relaxpy.op.deduction import Deduction
from relaxpy.op.gradient import Gradient, check_shape
from relaxpy.op.pool import AveragePooling, Pooling, attributes_of, maxima, planes
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.rule import Cotangent, NoRule, Rule


@dataclass(frozen=True)
class PoolingBackward(Pooling, Gradient):
    """Base of the gradients of pooling with respect to data. Where windows overlap, their contributions are summed, in
    float32 for narrower dtypes."""

    def deduce(self, d: Deduction, output_grad: KnownTensor, data: KnownTensor) -> TensorType:
        pooled = super().deduce(d, data)
        d.same_dtype(output_grad, data)
        check_shape(d, output_grad, pooled.dims or (), "the pooled data", "output_grad")
        return TensorType(data.dims, data.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return self.like(args)

    def check_dtype(self, d: Deduction, data: KnownTensor) -> None:
        d.need_float(data, "data")

    def legalize(self, out: KnownTensor, output_grad: te.Tensor, data: te.Tensor) -> te.Tensor:
        wide = str(te.dtype_of(te.widen(te.const(0, out.dtype))))
        layout, out_layout = self.layouts()
        sizes, counts = layout.sizes(te.dims(data)), out_layout.sizes(te.dims(output_grad))

        def fill(p: Any, result: Any, grad: Any, source: Any) -> None:
            # Windows overlap within a plane only, so planes are filled in parallel.
            with te.rows(p, [sizes["N"], sizes["C"]]) as (n, c):
                row = {"N": n, **layout.split("C", c)}
                out_row = {"N": n, **out_layout.split("C", c)}
                with p.loops([te.dim(sizes[a]) for a in self.spatial]) as at:
                    place = row | dict(zip(self.spatial, at, strict=True))
                    p.write(result, *layout.order(place), value=te.const(0, wide))
                with p.loops([te.dim(counts[a]) for a in self.spatial], "o") as at:
                    window = dict(zip(self.spatial, at, strict=True))
                    given = te.widen(p.read(grad, *out_layout.order(out_row | window)))
                    window = row | window
                    found = FromWindow(self, p, window, sizes, source, result)
                    self.hand_back(found, p.let("given", given))

        found = te.serial((out.dims, wide), [output_grad, data], fill, "pool_backward")
        if wide == out.dtype:
            return found
        return te.compute(out.dims, lambda *i: te.cast(found(*i), out.dtype), "narrowed")

    def hand_back(self, at: FromWindow, given: Any) -> None:
        """The statements for one window, whose result has the gradient `given`."""
        raise NotImplementedError

    def reference(self, output_grad: np.ndarray, data: np.ndarray) -> np.ndarray:
        layout, out_layout = self.layouts()
        plain = f"NC{self.spatial}"
        x = layout.merged(widened(data), plain)
        found = np.zeros_like(x)
        if x.size:
            self.hand_back_numpy(out_layout.merged(widened(output_grad), plain), x, found)
        return np.ascontiguousarray(narrowed(layout.divided(found, plain), data))

    def hand_back_numpy(self, given: np.ndarray, x: np.ndarray, found: np.ndarray) -> None:
        """Add the contributions of all windows to `found`; all arrays are in layout NC and the spatial axes."""
        raise NotImplementedError

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = rand(2, 3, 6, 5)
        halved = rand(2, 3, 3, 2), rand(2, 3, 6, 4)
        yield sample(cls(2, 2), *halved, dims="n c h w, n c h*2 w*2")
        cases: tuple[tuple[dict[str, Any], tuple[int, int]], ...] = (
            ({"pool_size": 3, "padding": 1}, (6, 5)),
            ({"pool_size": (3, 2), "strides": (2, 1), "ceil_mode": True}, (3, 4)),
            ({"pool_size": 2, "strides": 3, "padding": (1, 0, 1, 2), "ceil_mode": True}, (3, 2)),
            ({"pool_size": 2, "dilation": 2, "padding": 1, "strides": 2}, (3, 3)),
        )
        for attributes, (h, w) in cases:
            yield sample(cls(**attributes), rand(2, 3, h, w), x, dims=f"n c {h} {w}, n c 6 5")
        last = cls(2, 2, layout="NHWC", out_layout="NCHW")
        yield sample(last, rand(1, 2, 2, 1), rand(1, 4, 3, 2), dims="n c 2 1, n 4 3 c")
        for out_layout in ("NCHW2c", "NHWC", "NC3cHW"):
            apart = cls(2, 2, layout="NCHW2c", out_layout=out_layout)
            shape = {"NCHW2c": (1, 3, 2, 1, 2), "NHWC": (1, 2, 1, 6), "NC3cHW": (1, 2, 3, 2, 1)}
            yield sample(apart, rand(*shape[out_layout]), rand(1, 3, 4, 3, 2))
        half = [rand(1, 2, *size, dtype="float16") for size in ((4, 4), (3, 3))]
        yield sample(cls(2, padding=1), *half, dims="n c 4 4, n c 3 3", rtol=4e-3, atol=4e-3)
        yield wrong(cls(2), rand(2, 3, 6, 5), x, code="shape-mismatch", match="output_grad")
        yield wrong(cls(2), rand(3, 5, 4), x, code="shape-mismatch", match="4 dimensions")
        yield wrong(cls(9), x, x, code="shape-mismatch", match="axis H of size 6")
        yield wrong(cls(), x, x.astype(np.float16), code="op-dtype", match="float16")
        yield wrong(cls(), x.astype(np.int32), x.astype(np.int32), code="op-dtype", match="float")


@dataclass(frozen=True)
class FromWindow:
    """One window in the program of a gradient."""

    op: PoolingBackward
    program: Any
    window: dict[str, Any]
    """The index of the window, by letters."""
    sizes: dict[str, Any]
    """The sizes of data, by letters."""
    data: Any
    result: Any

    @contextmanager
    def places(self) -> Iterator[dict[str, Any]]:
        """Loop over the indices of the window inside data; yields them by letters."""
        windows, p = self.op.windows(), self.program
        with p.loops([te.dim(w.size) for w in windows], "k") as k:
            place = {
                w.letter: p.let(f"at{w.letter}", w.place(self.window[w.letter], at))
                for w, at in zip(windows, k, strict=True)
            }
            with p.when(inside([(place[a], self.sizes[a]) for a in self.op.spatial])):
                yield place

    def index(self, place: dict[str, Any]) -> tuple[Any, ...]:
        """The index of data for an index of the window."""
        return self.op.layouts()[0].order(self.window | place)

    def value(self, place: dict[str, Any]) -> Any:
        """The element of data, widened."""
        return te.widen(self.program.read(self.data, *self.index(place)))

    def give(self, place: dict[str, Any], amount: Any) -> None:
        """Add to the gradient at this index."""
        index = self.index(place)
        total = te.add(self.program.read(self.result, *index), amount)
        self.program.write(self.result, *index, value=total)


@define_op
class MaxPool2dBackward(PoolingBackward):
    """The gradient of `nn.max_pool2d` with respect to data, given the gradient `output_grad` of its result. Each
    window's gradient goes to its largest element: a NaN first, else the first of equal elements in row-major order."""

    name = "grad.max_pool2d_backward"
    of_data = True
    spatial = "HW"
    layout: str = "NCHW"

    def hand_back(self, at: FromWindow, given: Any) -> None:
        p = at.program
        best = te.cell(p, "best", te.literal(0, given))
        chosen = {a: te.cell(p, f"chosen{a}", te.dim(-1)) for a in self.spatial}
        first = chosen[self.spatial[0]]
        with at.places() as place:
            value, largest = p.let("value", at.value(place)), best.get()
            unknown = te.logical_and(te.isnan(value), te.logical_not(te.isnan(largest)))
            better = te.logical_or(te.greater(value, largest), unknown)
            with p.when(te.logical_or(te.less(first.get(), te.dim(0)), better)):
                best.set(value)
                for letter, axis in chosen.items():
                    axis.set(place[letter])
        with p.when(te.greater_equal(first.get(), te.dim(0))):
            at.give({letter: axis.get() for letter, axis in chosen.items()}, given)

    def hand_back_numpy(self, given: np.ndarray, x: np.ndarray, found: np.ndarray) -> None:
        best, chosen = np.zeros_like(given), np.full(given.shape, -1)
        for k, (index, within, _) in enumerate(self.places(x.shape)):
            value = x[index]
            better = (chosen < 0) | (value > best) | (np.isnan(value) & ~np.isnan(best))
            best = np.where(within & better, value, best)
            chosen = np.where(within & better, k, chosen)
        for k, (index, _, _) in enumerate(self.places(x.shape)):
            np.add.at(found, index, np.where(chosen == k, given, 0))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        _, data = args
        if any(layout.blocks for layout in self.layouts()):
            return [NoRule(f"{self.name} has no rule for blocks of channels")]
        x, o = (layout.letters for layout in self.layouts())
        plain = f"NC{self.spatial}"
        places = rearranged(b, maxima(b, self, data), o, plain)
        flat = planes(b, places)
        found = b.gather_elements(planes(b, rearranged(b, ct, x, plain)), flat, 2)
        inside = b.less(flat, b.dims(planes(b, rearranged(b, data, x, plain)))[2])
        found = b.where(inside, found, 0.0)
        return [rearranged(b, b.reshape(found, b.dims(places)), plain, o), None]


@define_op
class AvgPool2dBackward(PoolingBackward, AveragePooling):
    """The gradient of `nn.avg_pool2d` with respect to data, given the gradient `output_grad` of its result. Each
    window's gradient is divided equally among its elements, counted padding included."""

    name = "grad.avg_pool2d_backward"
    of_data = True
    spatial = "HW"
    layout: str = "NCHW"

    def hand_back(self, at: FromWindow, given: Any) -> None:
        count = te.dim(1)
        for w in self.windows():
            count = count * self.counted(w, at.window[w.letter], at.sizes[w.letter])
        count = te.cast(te.maximum(count, te.dim(1)), str(te.dtype_of(given)))
        share = at.program.let("share", given / count)
        with at.places() as place:
            at.give(place, share)

    def hand_back_numpy(self, given: np.ndarray, x: np.ndarray, found: np.ndarray) -> None:
        count: Any = 0
        for _, within, padded in self.places(x.shape):
            count = count + (padded if self.count_include_pad else within)
        share = given / np.maximum(count, 1).astype(x.dtype)
        for index, within, _ in self.places(x.shape):
            np.add.at(found, index, np.where(within, share, 0))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.nn.avg_pool2d(ct, **attributes_of(self)), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        counted = cls(2, 2, (1, 0, 1, 2), count_include_pad=True, ceil_mode=True)
        yield sample(counted, rand(2, 3, 4, 3), rand(2, 3, 6, 5), dims="n c 4 3, n c 6 5")
