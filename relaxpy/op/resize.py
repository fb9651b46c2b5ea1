"""Image resizing (`R.image.resize2d`, `R.image.resize3d`): an element of the result is a weighted sum of the elements
around its position in data.

Positions are exact: in all modes except one they are fractions of integers, and their floor and remainder are computed
in integers. So neither rounding nor symbolic dimensions change which elements are read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum, minimum
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import ArgSpec, Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import Layout, check_packed_layout, inside, rearranged
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import converted
from relaxpy.op.rule import Cotangent, Rule

Floats = tuple[float, ...]

_MODES = (
    "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
_METHODS = {"nearest_neighbor": 1, "linear": 2, "cubic": 4}
"""Number of elements along an axis that an interpolation method reads."""
_HALF = Fraction(1, 2)
SLACK = 1e-6
"""Tolerance within which a weighted sum counts as a whole number."""
_ROUNDINGS: dict[str, Callable[[Any], int]] = {
    "round": round,
    "round_prefer_floor": lambda x: math.ceil(x - _HALF),
    "round_prefer_ceil": lambda x: math.floor(x + _HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}
"""Rounding method → function from a position to the nearest index."""


def chosen(values: Sequence[Any], tap: Any) -> Any:
    """The expression of number `tap`."""
    value = values[-1]
    for n, other in reversed(list(enumerate(values[:-1]))):
        value = te.select(te.equal(tap, te.dim(n)), other, value)
    return value


def spline_weights(taps: int, t: Any, alpha: float) -> list[Any]:
    """Interpolation weights of the two (linear) or four (cubic) elements around a position. `t` is the distance from
    the element before it. Works on te expressions and numpy arrays (Keys, 1981)."""
    if taps == 2:
        return [1 - t, t]
    t2, t3 = t * t, t * t * t
    return [
        (t3 - t2 * 2 + t) * alpha,
        t3 * (alpha + 2) - t2 * (alpha + 3) + 1,
        t2 * (2 * alpha + 3) - t3 * (alpha + 2) - t * alpha,
        (t2 - t3) * alpha,
    ]


@dataclass(frozen=True)
class Resize(Op):
    """Base of the resizing operators, which resize the spatial axes to `size`."""

    mixed = "follow"

    roi: Floats | float | None = None
    """Mode tf_crop_and_resize: the region of interest, as (starts, ends) along the spatial axes; 0 is the first element
    of an axis and 1 the last."""
    layout: str = ""
    method: str = "linear"
    """Interpolation: "nearest_neighbor", "linear" (two elements along each axis) or "cubic" (four)."""
    coordinate_transformation_mode: str = "half_pixel"
    """The mapping from an index of the result to a position in data, by ONNX's name."""
    rounding_method: str = "round"
    """Rounding to the nearest element: "round" (halves to even), "round_prefer_floor", "round_prefer_ceil", "floor" or
    "ceil". "": round for align_corners, else floor."""
    cubic_alpha: float = -0.75
    """Coefficient of the cubic spline."""
    cubic_exclude: int = 0
    """1: elements outside of data get no cubic weight, and the other weights are normalised. 0: the nearest element is
    read instead."""
    extrapolation_value: float = 0.0
    """Mode tf_crop_and_resize: the value outside of data."""
    out_dtype: DType | None = None
    """Dtype of the result; None: the dtype of data. Fractions are truncated toward 0 in integer results; a sum within
    `SLACK` of a whole number counts as that number."""

    spatial: ClassVar[str]

    def _argument(self, spec: ArgSpec, value: Any, dtype: DType | None) -> Expr:
        """Accept one number as the size of all axes."""
        if spec.name == "size" and isinstance(value, (int, Dim)) and not isinstance(value, bool):
            value = (value,) * len(self.spatial)
        return super()._argument(spec, value, dtype)

    def deduce(self, d: Deduction, data: KnownTensor, size: KnownShape) -> TensorType:
        self.check_attributes(d)
        layout = check_packed_layout(d, self.layout, f"NC{self.spatial}", "layout", data)
        count = len(self.spatial)
        d.require(
            size.ndim == count, f"size must have {count} numbers, got {size.ndim}", arg="size"
        )
        dtype = self.out_dtype or data.dtype
        d.require(
            not dtype.is_bool or self.method == "nearest_neighbor",
            f"method {self.method} gives fractions: the result cannot be {dtype}",
            arg="data", code="op-dtype", help='pass out_dtype="float32"',
        )  # fmt: skip
        sizes = layout.sizes(data.dims)
        for letter, wanted in zip(self.spatial, size.dims, strict=True):
            d.ensure(
                dim_op("le", 1, sizes[letter]),
                f"axis {letter} of data is empty", arg="data",
            )  # fmt: skip
            d.ensure(
                dim_op("le", 0, wanted), f"a size must be at least 0, got {wanted}", arg="size"
            )
            sizes[letter] = wanted
        return TensorType(layout.dims(sizes), dtype)

    def check_attributes(self, d: Deduction) -> None:
        """Refuse unknown names."""
        for arg, known in (
            ("method", tuple(_METHODS)),
            ("coordinate_transformation_mode", _MODES),
            ("rounding_method", ("", *_ROUNDINGS)),
        ):
            value = getattr(self, arg)
            d.require(value in known, f"{arg} {value!r} is none of {', '.join(known)}", arg=arg)
        count = 2 * len(self.spatial)
        fits = self.roi is None or isinstance(self.roi, (int, float)) or len(self.roi) == count
        d.require(fits, f"roi must be one number or {count}, got {self.roi}", arg="roi")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        data = expect(TensorType, args[0])
        return TensorType(None, self.out_dtype or data.dtype, len(Layout.of(self.layout).letters))

    @property
    def crops(self) -> bool:
        """Whether only a region of interest is resized; then positions may be outside of data."""
        return self.coordinate_transformation_mode == "tf_crop_and_resize"

    @property
    def rounding(self) -> str:
        """The rounding method, with "" resolved."""
        corners = self.coordinate_transformation_mode == "align_corners"
        return self.rounding_method or ("round" if corners else "floor")

    def region(self, axis: int) -> tuple[float, float]:
        """The start and end of the region of interest on a spatial axis."""
        roi, count = self.roi, len(self.spatial)
        if roi is None or isinstance(roi, (int, float)):
            return float(roi or 0), float(roi or 0)
        return float(roi[axis]), float(roi[axis + count])

    def wide(self, dtype: DType, out: DType) -> DType:
        """The accumulation dtype."""
        if "float64" in (dtype, out) or dtype in _WIDE_INTS or out.is_int:
            return DType("float64")
        return DType("float32")

    # The tensor program

    def legalize(self, out: KnownTensor, data: te.Tensor, size: Sequence[Dim]) -> te.Tensor:
        layout, taps = Layout.of(self.layout), _METHODS[self.method]
        sizes, dtype = layout.named(te.dims(data)), str(data.dtype)
        wide = self.wide(DType(dtype), DType(str(out.dtype)))
        axes = {
            s: self.axis(axis, sizes[s], parts, wide)
            for axis, (s, parts) in enumerate(zip(self.spatial, size, strict=True))
        }
        loops = {s: te.reduce_axis(taps, f"k{s}") for s in self.spatial if taps > 1}

        def part(*i: Any) -> Any:
            """One of the summands of an element."""
            place, factors = layout.named(i), []
            for s, (places, weights, _) in axes.items():
                tap = loops.get(s, te.dim(0))
                factors.append(te.element(weights(place[s], tap)))
                place[s] = places(place[s], tap)
            value = te.element(data(*layout.order(place)))
            if not loops:
                return value
            value = te.cast(value, wide)
            for factor in factors:
                value = value * factor
            return te.sum(value, list(loops.values()))

        found = te.compute(out.dims, part, "resized")

        def element(*i: Any) -> Any:
            place, value = layout.named(i), te.element(found(*i))
            if loops and DType(str(out.dtype)).is_int:
                whole = te.round(value)
                near = te.less(te.absolute(value - whole), te.const(SLACK, wide))
                value = te.select(near, whole, value)
            value = te.cast(value, out.dtype)
            if self.crops:
                beyond = te.const(self.extrapolation_value, out.dtype)
                for s, (_, _, outside) in axes.items():
                    value = te.select(te.equal(outside(place[s]), te.dim(1)), beyond, value)
            return value

        return te.compute(out.dims, element, "resize")

    def axis(
        self, axis: int, size: Dim, parts: Dim, wide: str
    ) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
        """For every index along a spatial axis of the result: the indices of data that are read, their weights, and
        whether (1) the position is outside of data."""
        taps, end = _METHODS[self.method], te.dim(size - 1)
        floor, rest, nearest, outside = self.position(axis, size, parts)

        def place(o: Any, tap: Any) -> Any:
            at = nearest(o) if taps == 1 else floor(o) + (tap - (taps // 2 - 1))
            return te.maximum(te.minimum(at, end), te.dim(0))

        def weight(o: Any, tap: Any) -> Any:
            if taps == 1:
                return te.const(1, wide)
            return chosen(spline_weights(taps, te.element(distance(o)), self.cubic_alpha), tap)

        name = self.spatial[axis]
        # A stage of its own: a distance is a division of integers, which a cubic weight would have a dozen times.
        distance = te.compute((parts,), lambda o: te.cast(rest(o), wide), f"distance_{name}")
        weights = te.compute((parts, taps), weight, f"weights_{name}")
        if self.method == "cubic" and self.cubic_exclude:
            weights = self.normalised(weights, floor, parts, size, name, wide)
        return (
            te.compute((parts, taps), place, f"places_{name}"),
            weights,
            te.compute((parts,), lambda o: te.cast(outside(o), "int64"), f"outside_{name}"),
        )

    def normalised(
        self, weights: te.Tensor, floor: Any, parts: Dim, size: Dim, name: str, wide: str
    ) -> te.Tensor:
        """Cubic weights with those of elements outside of data at 0, and a sum of 1. A stage of its own: written into
        one formula, each weight would be there five times."""

        def kept(o: Any, n: Any) -> Any:
            is_inside = inside([(floor(o) - 1 + n, size)])
            return te.select(is_inside, te.element(weights(o, n)), te.const(0, wide))

        kept_weights = te.compute((parts, 4), kept, f"kept_{name}")

        def weight(o: Any, tap: Any) -> Any:
            each = [te.element(kept_weights(o, te.dim(n))) for n in range(4)]
            return te.element(kept_weights(o, tap)) / (each[0] + each[1] + each[2] + each[3])

        return te.compute((parts, 4), weight, f"normalised_{name}")

    def position(self, axis: int, size: Dim, parts: Dim) -> tuple[Any, Any, Any, Any]:
        """Functions of an index of the result: the index of data before its position, the distance to that, the nearest
        index, and whether the position is outside of data."""
        if self.crops:
            return self.position_in_region(axis, size, parts)
        a, b, c = (te.dim(value) for value in self.fraction(size, parts))

        def nearest(o: Any) -> Any:
            q = o * a + b
            match self.rounding:
                case "floor":
                    return q // c
                case "ceil":
                    return (q + c - 1) // c
                case "round_prefer_floor":
                    return (q * 2 + c - 1) // (c * 2)
                case rounding:
                    up, rest = (q * 2 + c) // (c * 2), (q * 2 + c) % (c * 2)
                    odd_tie = te.logical_and(te.equal(rest, te.dim(0)), te.equal(up % 2, te.dim(1)))
                    down = te.select(odd_tie, up - 1, up)
                    return up if rounding == "round_prefer_ceil" else down

        def rest(o: Any) -> Any:
            return te.cast((o * a + b) % c, "float64") / te.cast(c, "float64")

        return lambda o: (o * a + b) // c, rest, nearest, lambda _: te.dim(0)

    def fraction(self, size: Dim, parts: Dim) -> tuple[Dim, Dim, Dim]:
        """The integers a, b and c of the position (o * a + b) / c in an axis of `size` elements, for index o of an axis
        of `parts`; c is at least 1."""
        zero, several = Dim.of(0), minimum(maximum(parts - 1, 0), 1)
        match self.coordinate_transformation_mode:
            case "asymmetric":
                a, b, c = size, zero, parts
            case "align_corners":
                a, b, c = size - 1, zero, parts - 1
            case "tf_half_pixel_for_nn":
                a, b, c = size * 2, size, parts * 2
            case "pytorch_half_pixel":
                a, b, c = size * 2 * several, (size - parts) * several, parts * 2
            case _:
                a, b, c = size * 2, size - parts, parts * 2
        return a, b, maximum(c, 1)

    def position_in_region(self, axis: int, size: Dim, parts: Dim) -> tuple[Any, Any, Any, Any]:
        """Like `position`, computed in floats."""
        start, end = (te.const(value, "float64") for value in self.region(axis))
        last, steps = (
            te.cast(te.dim(value), "float64") for value in (size - 1, maximum(parts - 1, 1))
        )
        half = te.const(0.5, "float64")

        def x(o: Any) -> Any:
            several = start * last + te.cast(o, "float64") * (end - start) * last / steps
            return te.select(
                te.less(te.dim(1), te.dim(parts)), several, half * (start + end) * last
            )

        def nearest(o: Any) -> Any:
            match self.rounding:
                case "floor":
                    found = te.floor(x(o))
                case "ceil":
                    found = te.ceil(x(o))
                case "round_prefer_floor":
                    found = te.ceil(x(o) - half)
                case "round_prefer_ceil":
                    found = te.floor(x(o) + half)
                case _:
                    found = te.round(x(o))
            return te.cast(found, "int64")

        def outside(o: Any) -> Any:
            return te.logical_or(te.less(x(o), te.const(0, "float64")), te.greater(x(o), last))

        return (
            lambda o: te.cast(te.floor(x(o)), "int64"),
            lambda o: x(o) - te.floor(x(o)),
            nearest,
            outside,
        )

    # The reference: positions as Python's fractions, an axis at a time

    def reference(self, data: np.ndarray, size: Sequence[int]) -> np.ndarray:
        dtype = self.out_dtype or DType(data.dtype)
        layout = Layout.of(self.layout)
        x = data
        if self.method != "nearest_neighbor":
            x = data.astype(self.wide(DType(data.dtype), dtype).numpy)
        beyond = np.zeros((1,) * data.ndim, bool)
        for axis, (letter, parts) in enumerate(zip(self.spatial, size, strict=True)):
            where = layout.letters.index(letter)
            positions = [
                self.position_on_numpy(axis, o, x.shape[where], parts) for o in range(parts)
            ]
            along = [-1 if a == where else 1 for a in range(x.ndim)]
            outside = [self.crops and not 0 <= p <= x.shape[where] - 1 for p in positions]
            beyond = beyond | np.array(outside, bool).reshape(along)
            x = self.resized(x, where, positions)
        if self.method != "nearest_neighbor" and dtype.is_int:
            x = np.where(np.abs(x - np.round(x)) < SLACK, np.round(x), x)
        x = converted(x, dtype)
        return np.where(beyond, np.asarray(self.extrapolation_value).astype(x.dtype), x)

    def position_on_numpy(self, axis: int, o: int, size: int, parts: int) -> Fraction | float:
        """The position in an axis of `size` elements for index `o` of an axis of `parts`."""
        match self.coordinate_transformation_mode:
            case "asymmetric":
                return Fraction(o * size, parts)
            case "align_corners":
                return Fraction(o * (size - 1), max(parts - 1, 1))
            case "tf_half_pixel_for_nn":
                return (o + Fraction(1, 2)) * size / parts
            case "pytorch_half_pixel" if parts == 1:
                return Fraction(0)
            case "tf_crop_and_resize":
                start, end = self.region(axis)
                if parts == 1:
                    return 0.5 * (start + end) * (size - 1)
                return start * (size - 1) + o * (end - start) * (size - 1) / (parts - 1)
            case _:
                return (o + Fraction(1, 2)) * size / parts - Fraction(1, 2)

    def resized(
        self, x: np.ndarray, axis: int, positions: Sequence[Fraction | float]
    ) -> np.ndarray:
        """Resize one axis: its elements are read at `positions`."""
        last = x.shape[axis] - 1
        if self.method == "nearest_neighbor":
            places = [min(max(_ROUNDINGS[self.rounding](p), 0), last) for p in positions]
            return np.take(x, np.array(places, np.int64), axis)
        parts: list[np.ndarray] = []
        for position in positions:
            first = math.floor(position) - (_METHODS[self.method] // 2 - 1)
            weights = spline_weights(
                _METHODS[self.method], float(position - math.floor(position)), self.cubic_alpha
            )
            if self.method == "cubic" and self.cubic_exclude:
                weights = [w if 0 <= first + n <= last else 0.0 for n, w in enumerate(weights)]
                weights = [w / sum(weights) for w in weights]
            total = np.zeros_like(np.take(x, 0, axis))
            for n, weight in enumerate(weights):
                total = total + np.take(x, min(max(first + n, 0), last), axis) * x.dtype.type(
                    weight
                )
            parts.append(total)
        return np.stack(parts, axis) if parts else np.take(x, range(0), axis)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        """Resizing an axis is a product with a matrix, which is what resizing makes of unit vectors."""
        data, _ = args
        layout, kind = Layout.of(self.layout), b.dtype(data)
        sizes, wanted = (layout.sizes(b.dims(each)) for each in (data, ct))
        along = dataclasses.replace(
            self, layout=f"NC{self.spatial}", extrapolation_value=0.0, out_dtype=None
        )
        found = b.astype(ct, kind)
        for letter in self.spatial:
            last = layout.letters.replace(letter, "") + letter
            n, parts = sizes[letter], wanted[letter]
            lengths = [(n, parts) if each == letter else (1, 1) for each in self.spatial]
            units = b.reshape(b.eye(n, dtype=str(kind)), (n, 1, *(old for old, _ in lengths)))
            resized = b.emit(along(units, tuple(Dim.of(new) for _, new in lengths)))
            matrix = b.permute_dims(b.reshape(resized, (n, parts)))
            moved = b.matmul(rearranged(b, found, layout.letters, last), matrix)
            found = rearranged(b, moved, last, layout.letters)
        return [found, None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        count = len(cls.spatial)
        x, dims = rand(1, 2, *(4, 3, 2)[:count]), " ".join(("n", "c", *cls.spatial.lower()))
        big, small = (7, 5, 4)[:count], (2, 2, 1)[:count]
        named = f"{dims}, {' '.join(f'{s}2' for s in cls.spatial.lower())}"
        yield sample(cls(), x, big, dims=named, atol=1e-5)
        yield sample(cls(), x, small, dims=f"{dims}, {' '.join(map(str, small))}", atol=1e-5)
        for mode in _MODES[1:5]:
            op = cls(coordinate_transformation_mode=mode)
            yield sample(op, x, big, dims=named, atol=1e-5)
            yield sample(op, x, (1,) * count, atol=1e-5)
        for rounding in ("", *_ROUNDINGS):
            nearest = cls(method="nearest_neighbor", rounding_method=rounding)
            yield sample(nearest, x, small if rounding == "round" else big, dims=named)
        corners = cls(
            method="nearest_neighbor", rounding_method="", coordinate_transformation_mode="align_corners"
        )  # fmt: skip
        yield sample(corners, rand(*x.shape, dtype="int8", low=-99, high=99), big, dims=named)
        cubic = cls(method="cubic", cubic_alpha=-0.5)
        yield sample(cubic, x, big, dims=named, atol=1e-5)
        yield sample(cls(method="cubic", cubic_exclude=1), x, small, dims=named, atol=1e-5)
        keys = cls(method="cubic", cubic_alpha=-0.5, cubic_exclude=1)
        yield sample(keys, x, big, dims=named, atol=1e-5)
        crop = "tf_crop_and_resize"
        roi = (0.0, 0.3, 0.1)[:count] + (1.0, 1.2, 0.7)[:count]
        part = cls(roi, coordinate_transformation_mode=crop, extrapolation_value=9.0)
        yield sample(part, x, big, dims=named, atol=1e-5)
        yield sample(
            cls(roi, method="nearest_neighbor", coordinate_transformation_mode=crop), x, big
        )
        packed = rand(2, 3, *(4, 3, 2)[: len(cls.spatial)], 4)
        yield sample(cls(layout=f"NC{cls.spatial}4c"), packed, (5, 2, 3)[: len(cls.spatial)])
        last = cls(layout=f"N{cls.spatial}C", out_dtype=DType("float32"))
        channels_last = np.moveaxis(rand(*x.shape, dtype="uint8", low=0, high=255), 1, -1)
        yield sample(last, np.ascontiguousarray(channels_last), big, atol=1e-3)
        half = x.astype(np.float16)
        yield sample(cls(), half, big, dims=named, rtol=2e-3, atol=2e-3)
        yield wrong(cls(method="bicubic"), x, big, code="op-arguments", match="bicubic")
        yield wrong(cls(rounding_method="up"), x, big, code="op-arguments", match="up")
        yield wrong(cls(coordinate_transformation_mode="pixel"), x, big, code="op-arguments")
        yield wrong(cls((0.0, 1.0, 2.0)), x, big, code="op-arguments", match="roi")
        yield wrong(cls(layout="NHW"), x, big, code="op-arguments", match="layout")
        packs = cls(layout=f"NC{cls.spatial}8c")
        yield wrong(packs, packed, big, code="shape-mismatch", match="4 and 8")
        yield wrong(cls(), x[0], big, code="op-rank", match="data")
        yield wrong(cls(), x, (*big, 2), code="op-arguments", match="size")
        yield wrong(cls(), x[:, :, :0], big, code="shape-mismatch", match="of data is empty")
        ints = rand(*x.shape, dtype="int8", low=-128, high=127)
        yield sample(cls(), ints, big, dims=named)
        yield sample(cls(method="cubic"), ints.astype("uint8"), small, dims=named)
        yield wrong(cls(), x.astype(bool), big, code="op-dtype", match="bool")


_WIDE_INTS = ("int64", "int32", "uint64", "uint32")
"""Integer dtypes that float32 cannot represent exactly."""


@define_op
class Resize2d(Resize):
    """Resize the two spatial axes of data to `size`. Each element is a weighted sum of the elements around its position
    in data. Beyond the ends of an axis the nearest element is read."""

    name = "image.resize2d"
    spatial = "HW"
    layout: str = "NCHW"


@define_op
class Resize3d(Resize):
    """Resize the three spatial axes of data to `size`. Each element is a weighted sum of the elements around its
    position in data. Beyond the ends of an axis the nearest element is read."""

    name = "image.resize3d"
    spatial = "DHW"
    layout: str = "NCDHW"
    rounding_method: str = ""
