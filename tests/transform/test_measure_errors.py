"""MeasureErrors: the squares of what each layer loses, on the arguments of the floats."""

from __future__ import annotations

import numpy as np

import relaxpy
from relaxpy.op.pair import ROW, Pair
from relaxpy.testing.interpret import interpret
from relaxpy.transform import Annotate, MeasureErrors

TWO = """
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(("n", 5), "float32"), up: R.Tensor((7, 5), "float32"), down: R.Tensor((3, 7), "float32")):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        a = R.linear(x, up)
        y = R.linear(a, down)
        R.output(y)
    return y
"""


def codes(x: np.ndarray) -> np.ndarray:
    """Rows, quantised to int8 and dequantised."""
    scale = np.abs(x).max(axis=1, keepdims=True) / 127
    return np.rint(x / scale) * scale


def test_each_layer_alone() -> None:
    rng = np.random.default_rng(0)
    x, up, down = (rng.standard_normal(s).astype("float32") for s in ((4, 5), (7, 5), (3, 7)))
    mod, calls = MeasureErrors().measured(relaxpy.parse(TWO))
    assert calls == [("main", "up"), ("main", "down")]
    found = interpret(mod, "main", x, up, down)
    inner = x @ up.T
    for (lost, size, mean), (a, w) in zip(found, ((x, up), (inner, down)), strict=True):
        want = a @ w.T
        np.testing.assert_allclose(size, (want**2).sum(), rtol=1e-5)
        difference = want - codes(a) @ codes(w).T
        np.testing.assert_allclose(lost, (difference**2).sum(), rtol=1e-3)
        assert mean.shape == (1, len(w))
        np.testing.assert_allclose(mean[0], difference.mean(0), atol=1e-5)


def test_what_a_rule_leaves_out_is_not_measured() -> None:
    wide = {"data": Pair("int16", axis=ROW)}
    mod, calls = MeasureErrors(Annotate({"up": None, "down": wide})).measured(relaxpy.parse(TWO))
    assert calls == [("main", "down")]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("float32") for s in ((4, 5), (7, 5), (3, 7))]
    ((lost, size, mean),) = interpret(mod, "main", *arrays)
    assert 0 < lost < 1e-8 * size
    assert np.abs(mean).max() < 1e-3
