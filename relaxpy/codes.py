"""Codes: how a matrix of floats is kept as small integers with scales.

The integers ("codes") are unsigned numbers of 3, 4 or 8 bits, packed into words along one axis, the *depth*: the axis
that a matrix product sums over. Each group of neighbours along the depth shares a scale and, depending on the kind, a
zero point or a minimum:

* symmetric: `(code - 2 ** (bits - 1)) * scale`
* with zero points: `(code - zero) * scale`, for weights whose range is not centred; 0 stays exact
* with minimums: `code * scale + minimum`

This is the arithmetic on numpy, which checkpoints are read with; `relaxpy.op.weight_scheme` has the tensor programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from relaxpy.errors import UsageError

Zero = Literal["symmetric", "zero_point", "minimum"]

_WORDS = {3: ("uint32", 10), 4: ("uint32", 8), 8: ("uint8", 1)}
"""By bits: the dtype of a word, and the codes in it. A word of 3-bit codes has two unused bits."""


@dataclass(frozen=True, slots=True)
class Codes:
    """How weights are quantised. Raises UsageError (`weight-scheme`) for bits, groups or kinds that do not exist."""

    bits: int = 4
    """Bits of a code: 3, 4 or 8."""
    group: int | None = 32
    """Neighbours along the depth that share a scale; None: all of them."""
    zero: Zero = "symmetric"
    """The value of code 0; see above."""
    scale_dtype: str = "float16"
    """Dtype of scales and minimums: float16 or float32."""

    def __post_init__(self) -> None:
        if self.bits not in _WORDS:
            raise UsageError("weight-scheme", f"a code has 3, 4 or 8 bits, got {self.bits!r}")
        if self.group is not None and (type(self.group) is not int or self.group < 1):
            raise UsageError(
                "weight-scheme", f"a group has at least one weight, got {self.group!r}"
            )
        kinds = ("symmetric", "zero_point", "minimum")
        if self.zero not in kinds:
            raise UsageError(
                "weight-scheme", f"zero is one of {', '.join(kinds)}, got {self.zero!r}"
            )
        if self.scale_dtype not in ("float16", "float32"):
            raise UsageError(
                "weight-scheme", f"scales are float16 or float32, got {self.scale_dtype!r}"
            )

    @property
    def word(self) -> str:
        """The dtype of the words that codes are packed into."""
        return _WORDS[self.bits][0]

    @property
    def per_word(self) -> int:
        """Codes in a word; the first one is in the lowest bits."""
        return _WORDS[self.bits][1]

    def group_size(self, depth: int) -> int:
        """Neighbours that share a scale along a depth of this many."""
        return max(1, min(self.group or depth, depth))

    def parts(self, shape: Sequence[int], axis: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """The parts of a quantised matrix of this shape with its depth along `axis`, and their shapes and dtypes:
        `codes`, `scale`, and `zero` or `minimum` if the scheme has it. The last word and the last group may be partly
        empty."""
        depth = shape[axis]

        def cut(size: int) -> tuple[int, ...]:
            whole = enumerate(shape)
            return tuple(-(-depth // size) if i == axis % len(shape) else n for i, n in whole)

        groups = cut(self.group_size(depth))
        parts = {"codes": (cut(self.per_word), self.word), "scale": (groups, self.scale_dtype)}
        if self.zero == "zero_point":
            parts["zero"] = groups, "uint8"
        if self.zero == "minimum":
            parts["minimum"] = groups, self.scale_dtype
        return parts

    def quantize(self, weight: np.ndarray, axis: int) -> dict[str, np.ndarray]:
        """Quantise a matrix with its depth along `axis`. Returns the parts by the names of `parts`. The error of a
        weight is at most half its group's scale, and what rounding the scale (and the minimum) adds. Raises UsageError
        (`weight-values`) for infinite weights, NaN, and groups whose scale overflows."""
        rows = np.moveaxis(np.asarray(weight), axis, -1).astype(np.float32)
        *outer, depth = rows.shape
        size = self.group_size(depth)
        groups = -(-depth // size)
        # The last group is filled with its last weight, which changes neither its largest nor its smallest.
        padded = _padded(rows, groups * size).reshape(*outer, groups, size)
        codes, parts = self._codes(padded)
        flat = codes.reshape(*outer, groups * size)[..., :depth]
        found = {"codes": self.words(flat), **parts}
        return {
            name: np.ascontiguousarray(np.moveaxis(part, -1, axis)) for name, part in found.items()
        }

    def dequantize(self, parts: Mapping[str, np.ndarray], axis: int, depth: int) -> np.ndarray:
        """The matrix that the parts mean, in float32, computed in the order of the tensor program."""
        read = {name: np.moveaxis(part, axis, -1) for name, part in parts.items()}
        words = read["codes"][..., None] >> self._shifts() & self.mask
        *outer, count, each = words.shape
        codes = words.reshape(*outer, count * each)[..., :depth].astype(np.float32)
        own = np.arange(depth) // self.group_size(depth)
        rows = self.floats(
            codes, *(part[..., own] for name, part in read.items() if name != "codes")
        )
        return np.ascontiguousarray(np.moveaxis(rows, -1, axis))

    def floats(
        self, codes: np.ndarray, scale: np.ndarray, offset: np.ndarray | None = None
    ) -> np.ndarray:
        """The float32 numbers that codes mean, with a scale and, unless the scheme is symmetric, a zero point or a
        minimum for each: arrays that broadcast."""
        values, factor = codes.astype(np.float32), scale.astype(np.float32)
        if self.zero == "symmetric":
            return (values - np.float32(self.middle)) * factor
        assert offset is not None, "schemes that are not symmetric have one"
        if self.zero == "minimum":
            return values * factor + offset.astype(np.float32)
        return (values - offset.astype(np.float32)) * factor

    @property
    def mask(self) -> int:
        """The largest code."""
        return 2**self.bits - 1

    @property
    def middle(self) -> int:
        """The code that means 0 in the symmetric scheme."""
        return 2 ** (self.bits - 1)

    def _shifts(self) -> np.ndarray:
        return (np.arange(self.per_word) * self.bits).astype(self.word)

    def _codes(self, groups: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The codes of groups (..., groups, size), and the other parts (..., groups)."""
        low, high = groups.min(axis=-1), groups.max(axis=-1)
        if self.zero == "symmetric":
            span, steps = np.maximum(high, -low), self.middle - 1
        else:
            if self.zero == "zero_point":  # so that zero has a code
                low, high = np.minimum(low, 0), np.maximum(high, 0)
            span, steps = high - low, self.mask
        with np.errstate(over="ignore"):
            scale = (span / np.float32(steps)).astype(self.scale_dtype)
        least = low.astype(self.scale_dtype)
        if not (np.isfinite(scale).all() and np.isfinite(least).all()):
            raise UsageError(
                "weight-values",
                f"weights must be finite, and their scales must fit {self.scale_dtype}",
                help="use scale_dtype='float32' for very large weights",
            )
        used = scale.astype(np.float32)
        by = np.divide(1, used, out=np.zeros_like(used), where=used > 0)[..., None]
        if self.zero == "minimum":
            codes = np.rint((groups - least.astype(np.float32)[..., None]) * by)
            parts = {"scale": scale, "minimum": least}
        elif self.zero == "zero_point":
            zero = np.clip(np.rint(-low * by[..., 0]), 0, self.mask)
            codes = np.rint(groups * by) + zero[..., None]
            parts = {"scale": scale, "zero": zero.astype("uint8")}
        else:
            codes = np.rint(groups * by) + self.middle
            parts = {"scale": scale}
        return np.clip(codes, 0, self.mask).astype(self.word), parts

    def words(self, codes: np.ndarray) -> np.ndarray:
        """Pack codes (..., depth), in the dtype of words, into words; codes past the end are 0."""
        if self.per_word == 1:
            return codes
        *outer, depth = codes.shape
        count = -(-depth // self.per_word)
        filled = np.zeros((*outer, count * self.per_word), codes.dtype)
        filled[..., :depth] = codes
        parts = filled.reshape(*outer, count, self.per_word)
        return np.bitwise_or.reduce(parts << self._shifts(), axis=-1)


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    """Rows of this length, filled with their last element."""
    missing = size - rows.shape[-1]
    if not missing:
        return rows
    return np.concatenate([rows, np.repeat(rows[..., -1:], missing, axis=-1)], axis=-1)
