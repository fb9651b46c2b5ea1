"""Padding: a border around a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.rule import Cotangent, NoRule, Rule

_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""Padding mode → numpy's name for it."""


Widths: TypeAlias = tuple[int, ...]


@define_op
class Pad(Op):
    """Pad data. `pad_width` is the width of the border before and after each axis: (before_0, after_0, before_1, …).
    The border is `pad_value` (mode "constant"), the elements mirrored at the edge without the edge itself ("reflect":
    needs a size above the width), the edge element ("replicate": needs at least one element), or the elements of the
    other end ("circular": needs a size of at least the width)."""

    name = "nn.pad"
    mixed = "follow"
    pad_width: Widths
    """Flat, or as pairs, one for each axis."""
    pad_mode: str = "constant"
    pad_value: float = 0.0

    def __post_init__(self) -> None:
        given: Any = self.pad_width
        pairs = given if isinstance(given, (tuple, list)) else (given,)
        flat = tuple(n for p in pairs for n in (p if isinstance(p, (tuple, list)) else (p,)))
        if not isinstance(given, (tuple, list)) or not all(isinstance(n, int) for n in flat):
            raise DeduceError(
                "op-arguments", f"nn.pad: pad_width must be a list of integers, got {given!r}"
            ).about("pad_width")
        object.__setattr__(self, "pad_width", flat)

    def widths(self) -> list[tuple[int, int]]:
        """(before, after) of each axis."""
        return list(zip(self.pad_width[::2], self.pad_width[1::2], strict=True))

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        d.require(
            self.pad_mode in _MODES,
            f"pad_mode {self.pad_mode!r} is none of {', '.join(_MODES)}", arg="pad_mode",
        )  # fmt: skip
        d.require(
            len(self.pad_width) == 2 * data.ndim,
            f"pad_width has {len(self.pad_width)} numbers, but must have two for each of "
            f"{data.ndim} axes", arg="pad_width",
        )  # fmt: skip
        d.require(
            min(self.pad_width, default=0) >= 0 or self.pad_mode == "constant",
            f"a width of mode {self.pad_mode!r} cannot be negative, got {list(self.pad_width)}",
            arg="pad_width",
        )  # fmt: skip
        if self.pad_mode == "constant":
            check_value(d, self.pad_value, data)
        for a, (size, width) in enumerate(zip(data.dims, self.widths(), strict=True)):
            self._check_size(d, a, size, max(width))
            if min(width) < 0:
                message = f"axis {a} of size {size} cannot be {-sum(width)} shorter"
                d.ensure(dim_op("le", -sum(width), size), message, arg="data")
        pairs = zip(data.dims, self.widths(), strict=True)
        return TensorType(tuple(size + sum(width) for size, width in pairs), data.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (data,) = args
        dtype = data.dtype if isinstance(data, TensorType) else None
        return TensorType(None, dtype, len(self.pad_width) // 2)

    def _check_size(self, d: Deduction, axis: int, size: Dim, width: int) -> None:
        """Refuse an axis that has too few elements for its border."""
        needed = {"reflect": width + 1, "circular": width, "replicate": 1}.get(self.pad_mode, 0)
        if width:
            message = (
                f"pad_mode {self.pad_mode!r} by {width} needs {needed} elements along axis {axis}"
            )
            d.ensure(dim_op("le", needed, size), f"{message}, got {size}", arg="data")

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        sizes, widths = te.dims(data), self.widths()

        def element(*i: Any) -> Any:
            places = [
                self._place(v - before, size) if before or after else v
                for v, size, (before, after) in zip(i, sizes, widths, strict=True)
            ]
            read = te.element(data(*places))
            if self.pad_mode != "constant":
                return read
            value = te.const(literal_value(self.pad_value), str(out.dtype))
            for at, size, (before, after) in reversed(
                list(zip(places, sizes, widths, strict=True))
            ):
                if after > 0:
                    read = te.if_then_else(at < te.dim(size), read, value)
                if before > 0:
                    read = te.if_then_else(at >= 0, read, value)
            return read

        return te.compute(out.dims, element, "pad")

    def _place(self, at: Any, size: Dim) -> Any:
        """The index in data that an index relative to data's start, possibly in the border, reads."""
        last = te.dim(size - 1)
        match self.pad_mode:
            case "reflect":
                return te.select(at < 0, 0 - at, te.select(at > last, last * 2 - at, at))
            case "replicate":
                return te.maximum(te.minimum(at, last), te.dim(0))
            case "circular":
                extent = te.dim(size)
                return te.select(at < 0, at + extent, te.select(at > last, at - extent, at))
            case _:
                return at

    def reference(self, data: np.ndarray) -> np.ndarray:
        constant = (
            {"constant_values": literal_value(self.pad_value)}
            if self.pad_mode == "constant"
            else {}
        )
        mode: Any = _MODES[self.pad_mode]
        more = [(max(before, 0), max(after, 0)) for before, after in self.widths()]
        padded = np.pad(data, more or 0, mode, **constant)
        for a, (before, after) in enumerate(self.widths()):
            kept = range(max(-before, 0), padded.shape[a] - max(-after, 0))
            padded = np.take(padded, kept, a)
        return padded.astype(data.dtype)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        if self.pad_mode != "constant":
            return [NoRule(f"nn.pad of mode {self.pad_mode!r} has no rule yet")]
        flat = [-width for pair in self.widths() for width in pair]
        return [b.nn.pad(ct, flat)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = rand(3, 5)
        yield sample(cls((1, 2, 0, 3)), x, dims="n m")
        yield sample(cls((1, 0, 0, 1), pad_value=-1.5), x, dims="n 5")
        yield sample(cls(((1, 0), (2, 2))), x, dims="n m")  # type: ignore[arg-type]
        yield sample(cls((2, 2, 4, 1), "reflect"), x, dims="n m")
        yield sample(cls((2, 0, 0, 7), "replicate"), x, dims="n m")
        yield sample(cls((3, 1, 2, 5), "circular"), x, dims="n m")
        yield sample(cls((0, 1), pad_value=7.0), rand(4, dtype="int8"), dims="n")
        yield sample(cls((1, 1), pad_value=float("-inf")), rand(0), dims="n")
        yield sample(cls((0, 0, 1, 1), "reflect"), rand(0, 2), dims="n m")
        yield sample(cls(()), rand())
        yield wrong(cls((1, 2)), x, code="op-arguments", match="two for each of 2 axes")
        yield sample(cls((-1, 2, 0, -3), pad_value=2.0), x, dims="n m")
        yield sample(cls((4, -6)), rand(3), dims="n")
        yield sample(cls((-4, 3)), rand(2), dims="n")
        yield wrong(cls((1, -2), "reflect"), rand(3), code="op-arguments", match="negative")
        yield wrong(cls((-2, -2)), rand(3), code="shape-mismatch", match="4 shorter")
        yield wrong(cls((1, 1), "mirror"), rand(3), code="op-arguments", match="mirror")
        yield wrong(
            cls((3, 0), "reflect"), rand(3), code="shape-mismatch", match="needs 4 elements"
        )
        yield wrong(cls((1, 0), "replicate"), rand(0), code="shape-mismatch", match="needs 1")
        yield wrong(cls((0, 1), pad_value=0.5), rand(3, dtype="int8"), code="op-dtype", match="0.5")


def check_value(d: Deduction, value: float, data: KnownTensor) -> None:
    """Refuse a `pad_value` that data's dtype cannot represent."""
    if data.dtype.is_float:
        return
    low, high = 0, 1
    if not data.dtype.is_bool:
        info = np.iinfo(data.dtype.numpy)
        low, high = int(info.min), int(info.max)
    d.require(
        float(value).is_integer() and low <= value <= high,
        f"pad_value {value} is not a {data.dtype}", arg="pad_value", code="op-dtype",
    )  # fmt: skip


def literal_value(value: float) -> float | int:
    """A number as a literal: an integer if it is whole."""
    return int(value) if float(value).is_integer() else value


pad = Pad.make
