"""Sampling images at given coordinates (`R.image.affine_grid`, `R.image.grid_sample`), as in spatial transformers
(Jaderberg et al., 2015). Coordinates along an axis run from -1 at its start to 1 at its end. Coordinate 0 of a grid is
along the last axis (x), 1 along the second last (y), 2 along the third last (z)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, ShapeType, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant, Expr, PrimValue
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import ArgSpec, Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import Layout, check_packed_layout, inside, rearranged
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.resize import chosen, spline_weights
from relaxpy.op.rule import Cotangent, NoRule, Rule

_METHODS = {"nearest": 1, "bilinear": 2, "bicubic": 4}
"""Number of elements along an axis that an interpolation method reads."""
_PADDING = ("zeros", "border", "reflection")
_CUBIC_ALPHA = -0.75
_FAR = 1e6
"""Positions are clamped to this magnitude, so that infinity becomes a finite position."""


@define_op
class AffineGrid(Op):
    """A sampling grid: the affine transforms data, (batch, 2, 3) or (batch, 3, 4), applied to the coordinates of an
    evenly spaced grid of `size`. The result is (batch, 2, H, W) or (batch, 3, D, H, W). An axis of size 1 has
    coordinate 0."""

    name = "image.affine_grid"
    align_corners: bool = True
    """Whether -1 and 1 are the centres of the first and last elements; otherwise their outer edges."""

    def _argument(self, spec: ArgSpec, value: Any, dtype: DType | None) -> Expr:
        """Accept one number as the size of a square."""
        if spec.name == "size" and isinstance(value, (int, Dim)) and not isinstance(value, bool):
            value = (value, value)
        return super()._argument(spec, value, dtype)

    def deduce(self, d: Deduction, data: KnownTensor, size: KnownShape) -> TensorType:
        d.need_float(data, "data")
        d.require(
            data.ndim == 3,
            f"data must have 3 dimensions, got {data.ndim}", arg="data", code="op-rank",
        )  # fmt: skip
        count = size.ndim
        d.require(count in (2, 3), f"size must have 2 or 3 numbers, got {count}", arg="size")
        matrix = f"data must have matrices of {count} rows and {count + 1} columns for {count} axes"
        d.same_dim(data.dims[1], Dim.of(count), matrix, arg="data")
        d.same_dim(data.dims[2], Dim.of(count + 1), matrix, arg="data")
        for wanted in size.dims:
            d.ensure(
                dim_op("le", 0, wanted), f"a size must be at least 0, got {wanted}", arg="size"
            )
        return TensorType((data.dims[0], count, *size.dims), data.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        data, size = args
        data = expect(TensorType, data)
        count = size.ndim if isinstance(size, ShapeType) else -1
        return TensorType(None, data.dtype, count + 2 if count >= 0 else -1)

    def legalize(self, out: KnownTensor, data: te.Tensor, size: Sequence[Dim]) -> te.Tensor:
        wide = str(te.dtype_of(te.widen(data(0, 0, 0))))
        count = len(size)

        def coordinate(places: Dim, i: Any) -> Any:
            if self.align_corners:  # (2 * i - last) / last
                last = maximum(places - 1, 0)
                return te.cast(i * 2 - te.dim(last), wide) / te.cast(te.dim(maximum(last, 1)), wide)
            step = te.cast(te.dim(maximum(places, 1)), wide)
            return te.cast(i * 2 + 1 - te.dim(places), wide) / step

        def element(n: Any, row: Any, *place: Any) -> Any:
            value = te.widen(data(n, row, count))
            for axis, (places, i) in enumerate(zip(size, place, strict=True)):
                value = value + te.widen(data(n, row, count - 1 - axis)) * coordinate(places, i)
            return te.cast(value, out.dtype)

        return te.compute(out.dims, element, "affine_grid")

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, size = args
        count, kind = b.rank(ct) - 2, b.dtype(data)
        same = b.reshape(b.eye(count, count + 1, dtype=kind), (1, count, count + 1))
        coordinates = b.image.affine_grid(same, size, self.align_corners)
        places = product(b.dims(ct)[2:])
        ones = b.ones((1, places), kind)
        points = b.concat([b.reshape(coordinates, (count, places)), ones])
        flat = b.reshape(ct, (b.dims(ct)[0], count, places))
        return [b.matmul(flat, b.permute_dims(points))]

    def reference(self, data: np.ndarray, size: Sequence[int]) -> np.ndarray:
        theta = widened(data)
        axes = [
            (2 * np.arange(n) - (n - 1)) / max(n - 1 if self.align_corners else n, 1) for n in size
        ]
        z_y_x = np.meshgrid(*axes, indexing="ij")
        points = np.stack([*reversed(z_y_x), np.ones(tuple(size))]).astype(theta.dtype)
        return narrowed(np.einsum("nij,j...->ni...", theta, points), data)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        plane, space = rand(2, 2, 3), rand(2, 3, 4)
        yield sample(cls(), plane, (3, 4), dims="n 2 3, h w")
        yield sample(cls(False), plane, (3, 4), dims="n 2 3, h w")
        yield sample(cls(), space, (2, 3, 4), dims="n 3 4, d h w")
        yield sample(cls(False), space, (2, 1, 4), dims="n 3 4, d h w")
        yield sample(cls(), plane, (1, 2), dims="n 2 3, h w")
        half = plane.astype(np.float16)
        yield sample(cls(), half, (3, 4), dims="n 2 3, h w", rtol=2e-3, atol=2e-3)
        yield wrong(cls(), space, (3, 4), code="shape-mismatch", match="2 rows")
        yield wrong(cls(), plane, (3,), code="op-arguments", match="size")
        yield wrong(cls(), plane[0], (3, 4), code="op-rank", match="data")
        yield wrong(cls(), plane.astype(np.int32), (3, 4), code="op-dtype", match="float")


@define_op
class GridSample(Op):
    """Sample data at the coordinates `grid`, (batch, 2, H, W) or (batch, 3, D, H, W), with coordinates along axis 1, as
    from `image.affine_grid`. The nearest element of a position halfway between two is the even one. A NaN coordinate
    gives NaN; with method "nearest" it reads index 0."""

    name = "image.grid_sample"
    of_data = True
    method: str = "bilinear"
    """Interpolation: "nearest", "bilinear" (two elements along each axis) or "bicubic" (four)."""
    layout: str = "NCHW"
    """Layout of data and of the result: the letters N, C, H, W, and D for three spatial axes; channels may be divided
    into blocks."""
    padding_mode: str = "zeros"
    """Values outside of data: "zeros", "border" (the nearest element), or "reflection" (data mirrored)."""
    align_corners: bool = False
    """Whether -1 and 1 are the centres of the first and last elements; otherwise their outer edges."""

    @property
    def spatial(self) -> str:
        """Letters of the spatial axes."""
        return "DHW" if "D" in self.layout else "HW"

    def deduce(self, d: Deduction, data: KnownTensor, grid: KnownTensor) -> TensorType:
        d.need_float(data, "data")
        d.same_dtype(data, grid)
        for arg, known in (("method", tuple(_METHODS)), ("padding_mode", _PADDING)):
            value = getattr(self, arg)
            d.require(value in known, f"{arg} {value!r} is none of {', '.join(known)}", arg=arg)
        layout = check_packed_layout(d, self.layout, f"NC{self.spatial}", "layout", data)
        count = len(self.spatial)
        d.require(
            grid.ndim == count + 2,
            f"grid must have {count + 2} dimensions, got {grid.ndim}", arg="grid", code="op-rank",
        )  # fmt: skip
        sizes = layout.sizes(data.dims)
        d.same_dim(sizes["N"], grid.dims[0], "batch sizes of data and grid differ", arg="grid")
        d.same_dim(
            grid.dims[1], Dim.of(count), f"axis 1 of grid must have {count} coordinates", arg="grid"
        )
        for letter, places in zip(self.spatial, grid.dims[2:], strict=True):
            d.ensure(
                dim_op("le", 1, sizes[letter]),
                f"axis {letter} of data is empty", arg="data",
            )  # fmt: skip
            sizes[letter] = places
        return TensorType(layout.dims(sizes), data.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        data = expect(TensorType, args[0])
        return TensorType(None, data.dtype, len(Layout.of(self.layout).letters))

    def legalize(self, out: KnownTensor, data: te.Tensor, grid: te.Tensor) -> te.Tensor:
        layout, taps = Layout.of(self.layout), _METHODS[self.method]
        sizes, points = layout.named(te.dims(data)), te.dims(grid)
        axes = {
            s: self.axis(grid, len(self.spatial) - 1 - axis, sizes[s], points, s)
            for axis, s in enumerate(self.spatial)
        }
        loops = {s: te.reduce_axis(taps, f"k{s}") for s in self.spatial if taps > 1}

        def part(*i: Any) -> Any:
            place = layout.named(i)
            point, factors = [place["N"], *(place[s] for s in self.spatial)], []
            for s, (places, weights) in axes.items():
                tap = loops.get(s, te.dim(0))
                factors.append(te.element(weights(*point, tap)))
                place[s] = te.element(places(*point, tap))
            value = te.widen(data(*layout.order(place)))
            if self.padding_mode == "zeros":
                there = inside((place[s], sizes[s]) for s in self.spatial)
                value = te.if_then_else(there, value, te.literal(0, value))
            if not loops:
                return value
            for factor in factors:
                value = value * factor
            return te.sum(value, list(loops.values()))

        found = te.compute(out.dims, part, "sampled")
        return te.compute(out.dims, lambda *i: te.cast(found(*i), out.dtype), "grid_sample")

    def axis(
        self, grid: te.Tensor, coordinate: int, size: Dim, points: Sequence[Dim], letter: str
    ) -> tuple[te.Tensor, te.Tensor]:
        """The indices read along a spatial axis, and their interpolation weights, for every point of the grid."""
        taps, wide = _METHODS[self.method], str(te.dtype_of(te.widen(grid(*(0,) * len(points)))))
        extent, zero, half = te.cast(te.dim(size), wide), te.const(0, wide), te.const(0.5, wide)
        last, one = extent - te.const(1, wide), te.const(1, wide)

        def between(x: Any, low: Any, high: Any) -> Any:
            return te.let(
                "x", x, lambda v: te.let("y", te.minimum(v, high), lambda w: te.maximum(w, low))
            )

        def mirrored(x: Any) -> Any:
            start = zero if self.align_corners else zero - half
            span = last if self.align_corners else extent
            distance = te.absolute(x - start)

            def folded(turns: Any) -> Any:
                rest = distance - turns * span
                odd = te.greater(turns - te.floor(turns * half) * 2, half)
                return te.select(odd, span - rest, rest) + start

            turns = te.floor(distance / te.select(te.greater(span, half), span, half))
            return te.let("turns", turns, folded)

        def bounded(x: Any) -> Any:
            """Apply the padding mode to a position. With zeros, clamp it to just outside the reach of the
            interpolation."""
            if self.padding_mode == "zeros":
                return between(x, te.const(-5, wide), extent + 4)
            if self.padding_mode == "reflection":
                x = te.let("x", x, mirrored)
            return between(x, zero, last)

        def position(point: Sequence[Any]) -> Any:
            g = te.widen(grid(point[0], coordinate, *point[1:]))
            x = (g + one) * half * last if self.align_corners else ((g + one) * extent - one) * half
            if taps < 4 or self.padding_mode == "zeros":
                return bounded(x)
            # Each of the four taps is clamped by itself; so far outside, all four read the same element anyway.
            return between(x, te.const(-_FAR, wide), te.const(_FAR, wide))

        shape = (points[0], *points[2:])
        positions = te.compute(shape, lambda *point: position(point), f"position_{letter}")

        def place(*i: Any) -> Any:
            *point, tap = i
            x = te.element(positions(*point))
            first = te.round(x) if taps == 1 else te.floor(x)
            at = first + te.cast(tap - max(taps // 2 - 1, 0), wide)
            if taps == 4 and self.padding_mode != "zeros":
                at = bounded(at)
            whole = te.let("at", at, lambda v: te.cast(v, "int64"))
            if self.padding_mode == "zeros":
                return whole
            return te.maximum(te.minimum(whole, te.dim(size - 1)), te.dim(0))

        def weight(*i: Any) -> Any:
            *point, tap = i
            x = te.element(positions(*point))
            return te.let(
                "t", x - te.floor(x), lambda t: chosen(spline_weights(taps, t, _CUBIC_ALPHA), tap)
            )

        places = te.compute((*shape, taps), place, f"places_{letter}")
        if taps == 1:
            return places, places
        return places, te.compute((*shape, taps), weight, f"weights_{letter}")

    def reference(self, data: np.ndarray, grid: np.ndarray) -> np.ndarray:
        layout, taps = Layout.of(self.layout), _METHODS[self.method]
        x, points = layout.merged(widened(data), f"NC{self.spatial}"), widened(grid)
        places, weights = [], []
        for axis, size in enumerate(x.shape[2:]):
            g = points[:, x.ndim - 3 - axis]
            at = (g + 1) * (size - 1) / 2 if self.align_corners else ((g + 1) * size - 1) / 2
            if taps < 4:
                at = self.bounded_on_numpy(at, size)
            at = np.clip(at, -_FAR, _FAR)  # clamped to a finite position; NaN stays NaN
            first = np.rint(at) if taps == 1 else np.floor(at)
            places.append([first + k - max(taps // 2 - 1, 0) for k in range(taps)])
            weights.append(spline_weights(taps, at - first, _CUBIC_ALPHA) if taps > 1 else [None])
        batch = np.arange(len(x)).reshape(-1, *(1,) * (x.ndim - 2))
        total: Any = np.zeros((*points[:, 0].shape, x.shape[1]), x.dtype)
        for ks in itertools.product(range(taps), repeat=x.ndim - 2):
            there, index = np.ones(points[:, 0].shape, bool), []
            for k, at, size in zip(ks, places, x.shape[2:], strict=True):
                where = self.bounded_on_numpy(at[k], size) if taps == 4 else at[k]
                whole = np.where(np.isnan(where), 0, where).astype(np.int64)
                if self.padding_mode == "zeros":
                    there &= (whole >= 0) & (whole < size)
                index.append(np.clip(whole, 0, size - 1))
            read = np.moveaxis(x, 1, -1)[(batch, *index)]
            value = np.where(there[..., None], read, x.dtype.type(0))
            for k, weight in zip(ks, weights, strict=True):
                value = value if weight[k] is None else value * weight[k][..., None]
            total = total + value
        result = np.moveaxis(total, -1, 1)
        return narrowed(layout.divided(result, f"NC{self.spatial}"), data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        if len(self.layout) > len(self.spatial) + 2:
            return [NoRule("grid_sample on blocks of channels has no rule")] * 2
        return b.through(lambda data, grid: _sampled(self, b, data, grid), args, ct)

    def bounded_on_numpy(self, x: np.ndarray, size: int) -> np.ndarray:
        """Positions on an axis after the padding mode."""
        if self.padding_mode == "zeros":
            return x
        if self.padding_mode == "reflection":
            start, span = (0.0, size - 1) if self.align_corners else (-0.5, size)
            distance = np.abs(x - start)
            turns = np.floor(distance / max(span, 0.5))
            rest = distance - turns * span
            x = np.where(turns % 2 == 1, span - rest, rest) + start
        return np.clip(x, 0, size - 1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, grid = rand(2, 2, 4, 5), rand(2, 2, 3, 2, low=-1.6, high=1.6)
        dims = "n c h w, n 2 i j"
        for padding, corners in itertools.product(_PADDING, (False, True)):
            for method in _METHODS:
                op = cls(method, padding_mode=padding, align_corners=corners)
                yield sample(op, x, grid, dims=dims, atol=2e-5)
        space = rand(1, 2, 2, 3, 4), rand(1, 3, 2, 2, 1)
        each = "n c d h w, n 3 i j 1"
        yield sample(cls(layout="NCDHW"), *space, dims=each, atol=2e-5)
        yield sample(cls("nearest", "NCDHW", "border"), *space, dims=each)
        last = rand(1, 3, 4, 2), rand(1, 2, 2, 3)
        yield sample(cls(layout="NHWC"), *last, dims="n h w c, n 2 i j", atol=2e-5)
        blocks = cls(layout="NHWC3c"), rand(1, 3, 4, 2, 3), rand(1, 2, 2, 3)
        yield sample(*blocks, dims="n h w c 3, n 2 i j", atol=2e-5)
        far = np.array([[[np.inf, -np.inf, 1e30, 0.3]], [[0.0, 0.5, -1e30, -0.2]]], np.float32)
        for padding in _PADDING[:2]:
            yield sample(cls(padding_mode=padding), x[:1], far[None], dims="n c h w, n 2 1 j")
        yield sample(cls(padding_mode="reflection"), x[:, :, :1, :1], grid, dims="n 2 1 1, n 2 3 2")
        half = x.astype(np.float16), (grid / 2).astype(np.float16)
        yield sample(cls(), *half, dims=dims, rtol=2e-3, atol=4e-3)
        yield wrong(cls("linear"), x, grid, code="op-arguments", match="linear")
        yield wrong(cls(padding_mode="wrap"), x, grid, code="op-arguments", match="wrap")
        yield wrong(cls(layout="NCH"), x, grid, code="op-arguments", match="layout")
        yield wrong(cls(), x, rand(2, 3, 4, 2), code="shape-mismatch", match="2 coordinates")
        yield wrong(cls(), x, grid[:1], code="shape-mismatch", match="batch")
        yield wrong(cls(), x, grid[0], code="op-rank", match="grid")
        yield wrong(cls(), x[:, :, :0], grid, code="shape-mismatch", match="axis H")
        yield wrong(cls(), x, grid.astype(np.float16), code="op-dtype", match="float16")


# As calls of other operators, whose rules it has


def _sampled(op: GridSample, b: Rule, data: Expr, grid: Expr) -> Expr:
    """The rows that all taps of all points read, times their weights, summed over the taps."""
    kind, count = b.dtype(data), len(op.spatial)
    wide = DType("float32") if kind.is_narrow else kind
    x = rearranged(b, b.astype(data, wide), op.layout, f"N{op.spatial}C")
    batch, *sizes, channels = b.dims(x)
    points = b.dims(grid)[2:]
    many = product(points)
    flat: Expr = b.reshape(b.arange(PrimValue(batch)), (batch, *(1,) * (count + 1)))
    weights, there = list[Expr](), list[Expr]()
    taps = _METHODS[op.method]
    for axis, size in enumerate(sizes):
        row = b.take(grid, Constant(count - 1 - axis, "int64"), axis=1)
        row = b.reshape(b.astype(row, wide), (batch, many, 1))
        places, factors, inside = _taps(op, b, row, size)
        shape = (batch, many, *(taps if each == axis else 1 for each in range(count)))
        flat = b.add(b.multiply(flat, _number(b, size, "int64")), b.reshape(places, shape))
        if factors is not None:
            weights.append(b.reshape(factors, (*shape, 1)))
        if inside is not None:
            there.append(b.reshape(inside, (*shape, 1)))
    value = b.take(b.reshape(x, (product((batch, *sizes)), channels)), flat, axis=0)
    for each in there:
        value = b.where(each, value, 0.0)
    for each in weights:
        value = b.multiply(value, each)
    found = b.sum(value, axis=tuple(range(2, count + 2)))
    found = b.reshape(found, (batch, *points, channels))
    return b.astype(rearranged(b, found, f"N{op.spatial}C", op.layout), kind)


def _number(b: Rule, value: Dim, kind: DType | str) -> Expr:
    """A size as a tensor."""
    return b.scalar_to_tensor(PrimValue(value, kind), str(kind))


def _taps(op: GridSample, b: Rule, row: Expr, size: Dim) -> tuple[Expr, Expr | None, Expr | None]:
    """The indices that each point reads along an axis, for coordinates (batch, points, 1); their weights, unless there
    is one; and which of them are in data, where others are 0."""
    kind, taps = b.dtype(row), _METHODS[op.method]
    extent = _number(b, size, kind)
    last = b.subtract(extent, 1.0)
    at = b.multiply(b.add(row, 1.0), 0.5)
    at = b.multiply(at, last) if op.align_corners else b.subtract(b.multiply(at, extent), 0.5)

    def within(x: Expr, low: Expr, high: Expr) -> Expr:
        """Clamped; no slope at the bounds, as torch has it."""
        x = b.where(b.less_equal(x, low), low, x)
        return b.where(b.greater_equal(x, high), high, x)

    zero = b.multiply(last, 0.0)

    def bounded(x: Expr) -> Expr:
        if op.padding_mode == "zeros":
            return within(x, b.subtract(zero, 5.0), b.add(extent, 4.0))
        if op.padding_mode == "reflection":
            start = zero if op.align_corners else b.subtract(zero, 0.5)
            span = last if op.align_corners else extent
            distance = b.subtract(x, start)
            distance = b.where(b.less(distance, 0.0), b.negative(distance), distance)
            turns = b.floor(b.divide(distance, b.maximum(span, 0.5)))
            rest = b.subtract(distance, b.multiply(turns, span))
            halves = b.floor(b.multiply(turns, 0.5))
            is_odd = b.greater(b.subtract(turns, b.multiply(halves, 2.0)), 0.5)
            x = b.add(b.where(is_odd, b.subtract(span, rest), rest), start)
        return within(x, zero, last)

    far = b.add(zero, _FAR)
    clamped = taps == 4 and op.padding_mode != "zeros"
    at = within(at, b.negative(far), far) if clamped else bounded(at)
    first = b.grad.no_grad(b.round(at) if taps == 1 else b.floor(at))
    steps = b.subtract(b.astype(b.arange(taps), kind), float(max(taps // 2 - 1, 0)))
    places = b.add(first, b.reshape(steps, (1, 1, taps)))
    if clamped:
        places = bounded(places)
    whole = b.astype(places, "int64")
    most = b.subtract(_number(b, size, "int64"), Constant(1, "int64"))
    inside = None
    if op.padding_mode == "zeros":
        inside = b.logical_and(
            b.greater_equal(whole, Constant(0, "int64")), b.less_equal(whole, most)
        )
    whole = b.maximum(b.minimum(whole, most), Constant(0, "int64"))
    if taps == 1:
        return whole, None, inside
    t = b.subtract(at, first)
    return whole, b.concat(_spline(b, taps, t), axis=2), inside


def _spline(b: Rule, taps: int, t: Expr) -> list[Expr]:
    """`spline_weights` as calls of operators."""
    if taps == 2:
        return [b.subtract(1.0, t), t]

    def cubic(x: Expr, *factors: float) -> Expr:
        """A polynomial, by Horner's scheme, of the factors of the third power to the constant."""
        found: Any = factors[0]
        for factor in factors[1:]:
            found = b.add(b.multiply(found, x), factor)
        return found

    a = _CUBIC_ALPHA
    return [
        cubic(t, a, -2 * a, a, 0.0),
        cubic(t, a + 2, -a - 3, 0.0, 1.0),
        cubic(t, -a - 2, 2 * a + 3, -a, 0.0),
        cubic(t, -a, a, 0.0, 0.0),
    ]
