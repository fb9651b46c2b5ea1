"""Scales that methods make of what was seen, beside those of the numbers themselves."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.op.pair import Pair
from relaxpy.op.ranges import BINS, OCTAVES, STEPS, Seen, scale_of

RNG = np.random.default_rng(0)


def seen(x: np.ndarray) -> Seen:
    places = np.floor(np.log2(np.maximum(np.abs(x), 2.0**-OCTAVES)) * STEPS) + STEPS * OCTAVES
    places = np.clip(places, 0, BINS - 1).astype(int) + BINS * (x < 0)
    counts = np.bincount(places, minlength=2 * BINS)
    return Seen(np.float32(x.min()).reshape(()), np.float32(x.max()).reshape(()), counts)


def lost(x: np.ndarray, pair: Pair, method: str, percentile: float = 99.9) -> float:
    """The mean square of what codes lose by a method."""
    scale, zero = scale_of(seen(x), pair, method, percentile)
    low, high = pair.limits
    codes = np.clip(np.rint(x / scale) + zero.astype(float), low, high)
    return float((((codes - zero.astype(float)) * scale - x) ** 2).mean())


PAIRS = (Pair(static=True), Pair("uint8", static=True), Pair(static=True, symmetric=False))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.dtype}-{pair.is_symmetric}")
def test_min_max_holds_all(pair: Pair) -> None:
    x = RNG.standard_normal(5000) + 1
    scale, zero = scale_of(seen(x), pair)
    low, high = pair.limits
    codes = np.rint(x / scale) + zero.astype(float)
    assert codes.min() >= low - 1
    assert codes.max() <= high + 1
    assert abs(np.ptp(codes) - (high - low)) < (70 if pair.is_symmetric else 2)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.dtype}-{pair.is_symmetric}")
def test_outliers_are_clipped(pair: Pair) -> None:
    """A large number among many: mse loses least, and the others have smaller steps for what is usual."""
    x = np.concatenate([RNG.standard_normal(100000), [80.0]])
    least = lost(x, pair, "mse")
    assert least < 0.95 * lost(x, pair, "min_max")
    for method in ("percentile", "kl"):
        assert least < lost(x, pair, method)
        assert scale_of(seen(x), pair, method, 99.9)[0] < 0.3 * scale_of(seen(x), pair)[0], method


def test_the_percentile_is_that_of_numpy() -> None:
    """Within a bin."""
    x = RNG.standard_normal(50000)
    scale, _ = scale_of(seen(x), Pair(), "percentile", 99)
    assert float(scale) * 127 == pytest.approx(np.percentile(np.abs(x), 99), rel=2 / STEPS)


def test_nothing_below_zero_needs_no_codes_below() -> None:
    """Unsigned codes of what is 0 and above, as after a relu, begin at 0."""
    x = np.maximum(RNG.standard_normal(5000), 0)
    for method in ("min_max", "percentile", "mse", "kl"):
        _, zero = scale_of(seen(x), Pair("uint8"), method)
        assert zero == 0, method


def test_a_scale_for_each_index() -> None:
    both = Seen(np.float32([-1, -4]), np.float32([2, 3]), np.zeros(2 * BINS, np.int64))
    scale, zero = scale_of(both, Pair(axis=1))
    np.testing.assert_allclose(scale * 127, [2, 4], rtol=1e-6)
    assert not zero.any()
    with pytest.raises(UsageError, match="mse is for one range of a tensor: there are 2"):
        scale_of(both, Pair(axis=1), "mse")


def test_mistakes() -> None:
    none = Seen(np.float32(0).reshape(()), np.float32(0).reshape(()), np.zeros(2 * BINS, np.int64))
    with pytest.raises(UsageError, match="all numbers that were seen are 0"):
        scale_of(none, Pair())
    two = Seen(np.zeros(2, np.float32), np.ones(2, np.float32), none.counts)
    with pytest.raises(UsageError, match="of 1 and of 2 ranges"):
        none.merged(two)
