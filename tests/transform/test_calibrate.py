"""Calibrate: what its program returns, in the interpreter, and what is not observed."""

from __future__ import annotations

import numpy as np

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.op.pair import Pair
from relaxpy.op.ranges import BINS, OCTAVES, STEPS
from relaxpy.testing.interpret import interpret
from relaxpy.transform import Calibrate

TWO = """
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(("n", 2, 5), "float32"), w1: R.Tensor((3, 2, 3), "float32"), w2: R.Tensor((2, 3, 1), "float32")):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        a = R.nn.conv1d(x, w1)
        y = R.nn.conv1d(a, w2)
        R.output(y)
    return y
"""
BRANCH = """
from relaxpy.script import relax as R

@R.function
def main(c: R.Tensor((), "bool"), x: R.Tensor((1, 2, 5), "float32"), w1: R.Tensor((3, 2, 3), "float32")):
    R.func_attr({"num_input": 2})
    if c:
        y = R.nn.conv1d(x, w1)
    else:
        y = R.nn.conv1d(x, w1)
    return y
"""
RNG = np.random.default_rng(0)
WEIGHTS = [
    RNG.standard_normal((3, 2, 3)).astype("float32"),
    RNG.standard_normal((2, 3, 1)).astype("float32"),
]


def test_statistics_of_each_argument() -> None:
    """In the order of the calls: the least, the greatest, and the numbers in bins of a sixteenth of an octave."""
    mod, sites = Calibrate().observed(relaxpy.parse(TWO))
    check_well_formed(mod)
    assert [(s.layer, s.argument) for s in sites] == [("w1", "data"), ("w2", "data")]
    x = np.array([0, 1, -1, 3, 0.001, -5, 2.0**-50, 2, -2, 1e15], np.float32).reshape(1, 2, 5)
    (low, high, counts), second = interpret(mod, "main", x, *WEIGHTS)
    assert (low, high) == (-5, np.float32(1e15))
    assert counts.sum() == x.size
    one = STEPS * OCTAVES
    assert counts[one] == 1
    assert counts[BINS + one] == 1
    assert counts[one + STEPS] == 1
    assert counts[0] == 2  # zeros, and what is as good as that
    assert counts[BINS - 1] == 1  # what is too large for the bins
    assert second[2].sum() == 3 * 3


def test_a_range_for_each_channel() -> None:
    rules = {"nn.conv1d": {"data": Pair(axis=1, static=True)}}
    mod, _ = Calibrate(rules).observed(relaxpy.parse(TWO))
    x = RNG.standard_normal((3, 2, 5)).astype("float32")
    (low, high, _), _ = interpret(mod, "main", x, *WEIGHTS)
    np.testing.assert_array_equal(low, x.min(axis=(0, 2)))
    np.testing.assert_array_equal(high, x.max(axis=(0, 2)))


def test_what_is_inside_a_branch_is_not_observed() -> None:
    mod = relaxpy.parse(BRANCH)
    observed, sites = Calibrate().observed(mod)
    assert not sites
    check_well_formed(observed)
    x = RNG.standard_normal((1, 2, 5)).astype("float32")
    arguments = [np.array(True), x, WEIGHTS[0]]
    np.testing.assert_array_equal(*(interpret(m, "main", *arguments) for m in (mod, observed)))
