"""The gradient of a maximum of windows along any axes, as XLA has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import dim_op
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import inside, per_axis
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.reduce_window import WindowAxis
from relaxpy.op.rule import LATER
from relaxpy.op.scatter import wide_dtype


@define_op
class SelectAndScatterAdd(Op):
    """Add each element of `source` to 0 at the place where its window of data has its largest (or, with `select` "min",
    its smallest) element, as the gradient of `reduce_window` does: the first of equal elements in row-major order, and
    the element after a NaN, if there is one. `window` is the size of windows along each axis, `padding` how far they
    extend beyond data, before and after each axis; padding is not chosen."""

    name = "select_and_scatter_add"
    no_vjp = LATER
    of_data = True
    select: str = "max"
    strides: tuple[int, ...] | int = 1
    """Distance of windows: one number, or one for each axis."""

    def deduce(
        self, d: Deduction, source: KnownTensor, data: KnownTensor, window: KnownShape,
        padding: KnownShape | None = None,
    ) -> TensorType:  # fmt: skip
        d.require(
            self.select in ("max", "min"), f"select {self.select!r} is none of max, min",
            arg="select",
        )  # fmt: skip
        d.same_dtype(source, data)
        d.require(
            data.dtype != "bool", "data must be numbers, got bool", arg="data", code="op-dtype"
        )
        d.require(
            source.ndim == data.ndim, f"ranks differ: {source.ndim} and {data.ndim}", arg="source",
            code="op-rank",
        )  # fmt: skip
        strides = per_axis(self.strides, data.ndim)
        d.require(
            len(strides) == data.ndim and min(strides, default=1) > 0,
            f"strides must be positive, one number or one for each of {data.ndim} axes, got "
            f"{self.strides}", arg="strides",
        )  # fmt: skip
        for name, given, count in (("window", window, 1), ("padding", padding, 2)):
            d.require(
                given is None or len(given.dims) == count * data.ndim,
                f"{name} must have {count * data.ndim} numbers for {data.ndim} axes", arg=name,
                code="op-rank",
            )  # fmt: skip
        for n, a in enumerate(self._axes(data.dims, window.dims, _dims(padding))):
            d.ensure(dim_op("le", 1, a.window), f"a window has size {a.window}", arg="window")
            message = f"there are {a.count} windows along axis {n}, and source has {source.dims[n]}"
            d.ensure(dim_op("eq", a.count, source.dims[n]), message, arg="source")
        return TensorType(data.dims, data.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return args[1] if isinstance(args[1], TensorType) else TensorType()

    def _axes(
        self, sizes: Sequence[Any], window: Sequence[Any], padding: Sequence[Any] | None
    ) -> list[WindowAxis]:
        ndim = len(sizes)
        around = [0] * (2 * ndim) if padding is None else padding
        columns = zip(
            sizes, window, around[::2], around[1::2], per_axis(self.strides, ndim), strict=True
        )
        return [WindowAxis(*given, 1, 1) for given in columns]

    def legalize(
        self, out: KnownTensor, source: te.Tensor, data: te.Tensor, window: Any, padding: Any = None
    ) -> te.Tensor:
        wide = wide_dtype(out.dtype, "add")
        around = None if padding is None else te.dims(padding)
        axes = self._axes(te.dims(data), te.dims(window), around)
        stays = te.greater_equal if self.select == "max" else te.less_equal

        def within(place: list[Any]) -> Any:
            pairs = [(at, a.size) for at, a in zip(place, axes, strict=True)]
            return inside(pairs) if pairs else te.const(True, "bool")

        def fill(p: Any, result: Any, given: Any, values: Any) -> None:
            with p.loops(result.shape) as at:
                p.write(result, *at, value=te.const(0, wide))
            with p.loops(given.shape, "o") as o:
                best = te.cell(p, "best", te.widen(te.const(0, out.dtype)))
                chosen = [te.cell(p, f"chosen{n}", te.dim(-1)) for n in range(len(axes))]
                found = te.cell(p, "found", te.dim(0))
                with p.loops([te.dim(a.window) for a in axes], "k") as k:
                    place = [
                        p.let(f"at{n}", at * a.stride + by - te.dim(a.before))
                        for n, (at, by, a) in enumerate(zip(o, k, axes, strict=True))
                    ]
                    with p.when(within(place)):
                        value = p.let("value", te.widen(p.read(values, *place)))
                        kept = te.logical_and(
                            te.equal(found.get(), te.dim(1)), stays(best.get(), value)
                        )
                        with p.when(te.logical_not(kept)):
                            best.set(value)
                            found.set(te.dim(1))
                            for cell, x in zip(chosen, place, strict=True):
                                cell.set(x)
                with p.when(te.equal(found.get(), te.dim(1))):
                    index = [p.let(f"to{n}", cell.get()) for n, cell in enumerate(chosen)]
                    amount = te.cast(p.read(given, *o), wide)
                    p.write(result, *index, value=p.read(result, *index) + amount)

        found = te.serial((out.dims, wide), [source, data], fill, "select_and_scatter")
        if wide == out.dtype:
            return found
        return te.compute(out.dims, lambda *i: te.cast(found(*i), out.dtype), "narrowed")

    def reference(
        self, source: np.ndarray, data: np.ndarray, window: Sequence[int],
        padding: Sequence[int] | None = None,
    ) -> np.ndarray:  # fmt: skip
        axes = self._axes(data.shape, window, padding)
        wide = widened(source)
        found = np.zeros(data.shape, wide.dtype)
        for o in np.ndindex(source.shape):
            best: tuple[int, ...] | None = None
            for k in np.ndindex(*window):
                at = tuple(
                    i * a.stride + by - a.before for i, by, a in zip(o, k, axes, strict=True)
                )
                if not all(0 <= i < size for i, size in zip(at, data.shape, strict=True)):
                    continue
                if best is not None:
                    kept = (
                        data[best] >= data[at] if self.select == "max" else data[best] <= data[at]
                    )
                    if kept:
                        continue
                best = at
            if best is not None:
                found[best] += wide[o]
        return narrowed(found, source)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = rand(2, 6, 5)
        for select in ("max", "min"):
            yield sample(cls(select), rand(2, 4, 4), x, (1, 3, 2), dims="n 4 m, n 6 m+1, 1 3 2")
            padded = cls(select, strides=(1, 2, 1))
            given = rand(2, 3, 6), x, (1, 3, 2), (0, 0, 1, 0, 1, 1)
            yield sample(padded, *given, dims="n 3 m+1, n 6 m, 1 3 2, 0 0 1 0 1 1")
        ties = np.array([1, 1, np.nan, 0, 3, np.nan], np.float32)
        yield sample(cls(), rand(5), ties, (2,), dims="n, n+1, 2")
        yield sample(cls(strides=3), rand(2), rand(3), (1,), (0, 1), dims="2, 3, 1, 0 1")
        yield sample(cls(), rand(0, 3), rand(1, 3), (2, 1), dims="0 n, 1 n, 2 1")
        ints = rand(4, dtype="int8"), rand(5, dtype="int8"), (2,)
        yield sample(cls(), *ints, dims="n, n+1, 2")
        half = rand(4, dtype="float16"), rand(5, dtype="float16"), (2,)
        yield sample(cls(), *half, dims="n, n+1, 2", rtol=2e-3, atol=2e-3)
        yield sample(cls(), rand(), rand(), ())
        yield wrong(cls("sum"), rand(5), ties, (2,), code="op-arguments", match="sum")
        yield wrong(cls(), rand(4), ties, (2,), code="shape-mismatch", match="5 windows")
        yield wrong(cls(), rand(1, 5), ties, (2,), code="op-rank", match="2 and 1")
        yield wrong(cls(), rand(5), ties, (2, 1), code="op-rank", match="window must have 1")
        yield wrong(cls(), rand(5), ties, (2,), (0,), code="op-rank", match="padding must have 2")
        yield wrong(cls(strides=0), rand(5), ties, (2,), code="op-arguments", match="strides")
        yield wrong(cls(), rand(5, dtype="int8"), ties, (2,), code="op-dtype", match="int8")
        flags = rand(3, dtype="bool")
        yield wrong(cls(), flags, flags, (1,), code="op-dtype", match="bool")


def _dims(shape: KnownShape | None) -> Sequence[Any] | None:
    return None if shape is None else shape.dims
