"""The tensor program that quantises a matrix by a scheme (`relaxpy.op.weight_scheme`): rows of groups in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from relaxpy.op import te

if TYPE_CHECKING:
    from relaxpy.op.weight_scheme import WeightScheme
    from relaxpy.tir.prim_func import PrimFunc


@dataclass(frozen=True)
class Quantizer:
    """Writes the program for matrices of one shape, with their depth along `axis`."""

    scheme: WeightScheme
    shape: tuple[int, ...]
    axis: int
    dtype: str

    def program(self) -> PrimFunc:
        """The program from the matrix to its parts, in the order of `WeightScheme.types`."""
        from relaxpy.tir.prim_func import PrimFunc  # loads TVM

        parts = {"codes": self.words, "scale": self.scale}
        if self.scheme.zero == "zero_point":
            parts["zero"] = self.zero
        if self.scheme.zero == "minimum":
            parts["minimum"] = self.minimum
        types = self.scheme.types(self.shape, self.axis)
        return PrimFunc.from_te([self.weight], [parts[name] for name in types])

    @property
    def depth(self) -> int:
        """Neighbours along the depth."""
        return self.shape[self.axis]

    @property
    def group(self) -> int:
        """Neighbours that share a scale."""
        return self.scheme.group_size(self.depth)

    @cached_property
    def weight(self) -> Any:
        """The matrix."""
        return te.placeholder(self.shape, self.dtype, "weight")

    @cached_property
    def low(self) -> Any:
        """The smallest weight of each group."""
        return self._of_group(te.reduce_min, "low")

    @cached_property
    def high(self) -> Any:
        """The largest weight of each group."""
        return self._of_group(te.reduce_max, "high")

    @cached_property
    def span(self) -> Any:
        """The distance that the codes of each group cover, or half of it in the symmetric scheme."""
        if self.scheme.zero == "symmetric":
            return self._of_group(te.reduce_max, "span", lambda x: te.select(x < 0, -x, x))
        zero = _float(0)

        def spread(*at: Any) -> Any:
            below, above = self.low(*at), self.high(*at)
            if self.scheme.zero == "zero_point":  # so that zero has a code
                below = te.select(below > zero, zero, below)
                above = te.select(above < zero, zero, above)
            return above - below

        return self._each_group(spread, "span")

    @cached_property
    def scale(self) -> Any:
        """The scale of each group."""
        scheme = self.scheme
        steps = scheme.middle - 1 if scheme.zero == "symmetric" else scheme.mask

        def element(*at: Any) -> Any:
            return te.cast(self.span(*at) / _float(steps), scheme.scale_dtype)

        return self._each_group(element, "scale")

    @cached_property
    def inverse(self) -> Any:
        """One over the scale as it is stored; 0 for the scale 0."""

        def element(*at: Any) -> Any:
            used = self.scale(*at).astype("float32")
            return te.select(used > 0, _float(1) / used, _float(0))

        return self._each_group(element, "inverse")

    @cached_property
    def minimum(self) -> Any:
        """The value of code 0 of each group."""
        dtype = self.scheme.scale_dtype
        return self._each_group(lambda *at: te.cast(self.low(*at), dtype), "minimum")

    @cached_property
    def zero(self) -> Any:
        """The code that means 0 in each group."""

        def element(*at: Any) -> Any:
            below = te.select(self.low(*at) > 0, _float(0), self.low(*at))
            return self._code(te.round(-below * self.inverse(*at)), "uint8")

        return self._each_group(element, "zero")

    @cached_property
    def words(self) -> Any:
        """The codes as they are packed; those past the end are 0."""
        scheme, each, depth = self.scheme, self.scheme.per_word, self.depth
        shape = scheme.types(self.shape, self.axis)["codes"].dims or ()
        if each == 1:
            return te.compute(shape, lambda *at: self._code_at(at, at[self.axis], 0), "codes")
        place = te.reduce_axis(each)

        def element(*at: Any) -> Any:
            k = at[self.axis] * te.dim(each) + place
            code = self._code_at(at, self._inside(k, each), each)
            if depth % each:
                code = te.select(k < te.dim(depth), code, te.const(0, scheme.word))
            shift = (place * te.dim(scheme.bits)).astype(scheme.word)
            return te.sum(code << shift, place)

        return te.compute(shape, element, "words")

    def _code_at(self, at: Sequence[Any], k: Any, every: int) -> Any:
        """The code at a place of the depth. It is in the word that `at` names, if words have so many codes."""
        scheme, group = self.scheme, k // te.dim(self.group)
        if every and self.group % every == 0:
            group = at[self.axis] // te.dim(self.group // every)
        own, value = self._at(at, group), self._read(self._at(at, k))
        if scheme.zero == "minimum":
            value = value - self.minimum(*own).astype("float32")
            return self._code(te.round(value * self.inverse(*own)), scheme.word)
        value = te.round(value * self.inverse(*own))
        if scheme.zero == "symmetric":
            return self._code(value + _float(scheme.middle), scheme.word)
        return self._code(value + self.zero(*own).astype("float32"), scheme.word)

    def _of_group(
        self,
        combine: Callable[[Any, Any], Any],
        name: str,
        value: Callable[[Any], Any] = lambda x: x,
    ) -> Any:
        """A number of each group, that of a NaN if it has one. The last group is filled with the last weight."""
        k = te.reduce_axis(self.group)

        def element(*at: Any) -> Any:
            place = self._inside(at[self.axis] * te.dim(self.group) + k, self.group)
            return combine(te.float_order(value(self._read(self._at(at, place)))), k)

        words = self._each_group(element, f"{name}_order")
        return self._each_group(lambda *at: te.in_float_order(words(*at)), name)

    def _each_group(self, element: Callable[..., Any], name: str) -> Any:
        groups = self.scheme.types(self.shape, self.axis)["scale"].dims or ()
        return te.compute(groups, element, name)

    def _read(self, at: Sequence[Any]) -> Any:
        return self.weight(*at).astype("float32")

    def _at(self, at: Sequence[Any], k: Any) -> list[Any]:
        """The index with another place of the depth."""
        return [k if n == self.axis % len(self.shape) else index for n, index in enumerate(at)]

    def _inside(self, k: Any, every: int) -> Any:
        """A place of the depth, or the last one for those past the end, if pieces of this size do not divide it."""
        return te.minimum(k, te.dim(self.depth - 1)) if self.depth % every else k

    def _code(self, value: Any, dtype: str) -> Any:
        """A rounded float as a code; NaN becomes 0. The conversion by way of int32 is one instruction."""
        low, high = _float(0), _float(self.scheme.mask)
        inside = te.select(value > low, te.select(value < high, value, high), low)
        return inside.astype("int32").astype(dtype)


def _float(value: float) -> Any:
    return te.const(value, "float32")
