"""Ranges of numbers that were seen, and the scale and zero point that a method makes of them.

Statistics of a tensor are its smallest and largest numbers, one each or one for each index of an axis, and how many
numbers there were of each size, in bins of a sixteenth of an octave: they take the same few KB however much was seen,
and those of several runs are added up. They are plain data: `to_json` and `from_json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.op.pair import Pair

STEPS = 16
"""Bins of an octave."""
OCTAVES = 40
"""Octaves below 1, and above it."""
BINS = 2 * STEPS * OCTAVES
"""Bins of numbers of one sign: those of 0 and above, then those below 0."""
METHODS = ("min_max", "percentile", "mse", "kl")
SHRINKS = np.geomspace(1.0, 0.05, 60)
"""The parts of a range that a method tries."""
_LEVELS = 2048
"""Bins of equal width in which distributions are compared."""


def sizes() -> np.ndarray:
    """The number in the middle of each bin, by the logarithm."""
    middle = 2.0 ** ((np.arange(BINS) + 0.5) / STEPS - OCTAVES)
    return np.concatenate([middle, -middle])


@dataclass(frozen=True)
class Seen:
    """The statistics of one tensor."""

    low: np.ndarray
    high: np.ndarray
    """float32: one number, or one for each index of an axis."""
    counts: np.ndarray
    """int64 (2 BINS,): how many numbers were in each bin."""

    def merged(self, other: Seen) -> Seen:
        """The statistics of both. Raises UsageError (`quantization`) if they are of different sizes."""
        if self.low.shape != other.low.shape:
            raise UsageError(
                "quantization",
                f"statistics of {self.low.size} and of {other.low.size} ranges cannot be merged",
            )
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Seen(low, high, self.counts + other.counts)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        (places,) = np.nonzero(self.counts)
        counts = {str(place): int(self.counts[place]) for place in places}
        return {"low": self.low.tolist(), "high": self.high.tolist(), "counts": counts}

    @classmethod
    def from_json(cls, fields: Any) -> Seen:
        """The inverse of `to_json`. Raises UsageError (`quantization`) for what is no statistics."""
        try:
            counts = np.zeros(2 * BINS, np.int64)
            for place, count in fields["counts"].items():
                counts[int(place)] = int(count)
            low, high = (np.asarray(fields[name], np.float32) for name in ("low", "high"))
        except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
            raise UsageError("quantization", f"these are no statistics: {error!r}") from None
        if low.shape != high.shape or low.ndim > 1 or not (low <= high).all():
            raise UsageError("quantization", "these are no statistics: low and high do not fit")
        return cls(low, high, counts)

    def clipped(self, low: float, high: float) -> float:
        """The share of the numbers that are outside of a range."""
        number = sizes()
        outside = (number < low) | (number > high)
        return float(self.counts[outside].sum() / max(1, self.counts.sum()))

    def range_by(self, method: str, pair: Pair, percentile: float) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the range that codes are for."""
        low, high = (each.astype(np.float64) for each in (self.low, self.high))
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        if pair.is_symmetric:
            high = np.maximum(-low, high)
            low = -high
        if method == "min_max":
            return low, high
        if low.size != 1:
            raise UsageError(
                "quantization",
                f"{method} is for one range of a tensor: there are {low.size}",
                help="use min_max, or a pair without an axis",
            )
        if method == "percentile":
            return self._percentile(low, high, pair, percentile)
        cost = {"mse": _squared, "kl": _divergence}[method]
        counts = self.counts + (
            self.counts[np.r_[BINS : 2 * BINS, :BINS]] if pair.is_symmetric else 0
        )
        levels = pair.limits[1] - pair.limits[0]

        def best(ends: Callable[[float], tuple[float, float]]) -> float:
            costs = [cost(counts, *ends(float(part)), levels) for part in SHRINKS]
            return float(SHRINKS[int(np.argmin(costs))])

        if pair.is_symmetric:
            part = best(lambda part: (-float(high) * part, float(high) * part))
            return low * part, high * part
        high = high * best(lambda part: (float(low), float(high) * part))
        return low * best(lambda part: (float(low) * part, float(high))), high

    def _percentile(
        self, low: np.ndarray, high: np.ndarray, pair: Pair, percentile: float
    ) -> tuple[np.ndarray, np.ndarray]:
        number, part = sizes(), 1 - percentile / 100
        order = np.argsort(np.abs(number) if pair.is_symmetric else number)
        share = np.cumsum(self.counts[order]) / max(1, self.counts.sum())
        sorted_numbers = (np.abs(number) if pair.is_symmetric else number)[order]
        above = float(sorted_numbers[min(int(np.searchsorted(share, 1 - part)), len(share) - 1)])
        top = np.minimum(high, max(above, 0.0) * 2 ** (0.5 / STEPS))
        if pair.is_symmetric:
            return -top, top
        below = float(sorted_numbers[int(np.searchsorted(share, part, side="right"))])
        return np.maximum(low, min(below, 0.0) * 2 ** (0.5 / STEPS)), top


def scale_of(
    seen: Seen, pair: Pair, method: str = "min_max", percentile: float = 99.99
) -> tuple[np.ndarray, np.ndarray]:
    """The scale (float32) and the zero point (of the codes) for what was seen. Raises UsageError (`quantization`) for
    an unknown method, or a range of 0."""
    if method not in METHODS:
        raise UsageError("quantization", f"method {method!r} is none of {', '.join(METHODS)}")
    if not 50 < percentile <= 100:
        raise UsageError(
            "quantization", f"the percentile is above 50 and at most 100, got {percentile}"
        )
    low, high = seen.range_by(method, pair, percentile)
    if not (high - low).all():
        raise UsageError(
            "quantization",
            "all numbers that were seen are 0: there is no scale",
            help="give data that reaches the layer, or leave it in floats by a rule: None",
        )
    low_code, high_code = pair.limits
    scale = (high - low) / (high_code - low_code)
    if pair.is_symmetric:
        zero = np.zeros_like(scale)
    else:
        zero = np.clip(low_code - np.rint(low / scale), low_code, high_code)
    return scale.astype(np.float32), zero.astype(pair.dtype)


def _squared(counts: np.ndarray, low: float, high: float, levels: int) -> float:
    """The squared error of codes for a range: rounding inside, clipping outside."""
    number = sizes()
    beyond = np.maximum(0, np.maximum(number - high, low - number))
    inside = (number >= low) & (number <= high)
    step = (high - low) / levels
    rounding = np.minimum(step, 2 * np.abs(number)) ** 2 / 12
    return float((counts * (beyond**2 + inside * rounding)).sum())


def _divergence(counts: np.ndarray, low: float, high: float, levels: int) -> float:
    """The Kullback-Leibler divergence of the numbers in so many levels of a range, with those outside at its ends, from
    the numbers as they were. Zeros are left out: a code is for them in every range, and after a ReLU they are most."""
    counts = counts.copy()
    counts[[0, BINS]] = 0
    edges = np.linspace(low, high, _LEVELS + 1)
    seen = _spread(counts, edges)
    clipped = seen.copy()
    number = sizes()
    clipped[0] += counts[number < low].sum()
    clipped[-1] += counts[number > high].sum()
    level = np.minimum(np.arange(_LEVELS) * levels // _LEVELS, levels - 1)
    total = np.bincount(level, seen, levels)
    there = np.bincount(level, seen > 0, levels)
    coarse = np.where(seen > 0, (total / np.maximum(there, 1))[level], 0)
    p, q = clipped / max(clipped.sum(), 1), coarse / max(coarse.sum(), 1e-30)
    both = p > 0
    return float((p[both] * np.log(p[both] / np.maximum(q[both], 1e-10))).sum())


def _spread(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Counts in bins between these edges, as if the numbers of a bin were as many everywhere in it."""
    ends = 2.0 ** (np.arange(BINS + 1) / STEPS - OCTAVES)
    ends[0] = 0.0  # the first bin has the zeros
    found = np.zeros(len(edges) - 1)
    for own, sign in ((counts[:BINS], 1.0), (counts[BINS:], -1.0)):
        upto = np.concatenate([[0], np.cumsum(own)])
        at = np.interp(np.clip(sign * edges, 0, ends[-1]), ends, upto)
        found += np.maximum(sign * np.diff(at), 0)
    return found


def merged_all(
    first: Mapping[str, Mapping[str, Seen]], other: Mapping[str, Mapping[str, Seen]]
) -> dict[str, dict[str, Seen]]:
    """The statistics of both runs, by layer and argument."""
    found = {layer: dict(own) for layer, own in first.items()}
    for layer, own in other.items():
        mine = found.setdefault(layer, {})
        for name, seen in own.items():
            mine[name] = mine[name].merged(seen) if name in mine else seen
    return found
