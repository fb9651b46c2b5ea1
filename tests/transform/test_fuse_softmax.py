"""FuseSoftmax: what is softmax, what is not, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform.bind_params import BindParams
from relaxpy.transform.fuse_softmax import FuseSoftmax
from relaxpy.transform.normalize import Normalize

LESS = """
largest = R.max(x, axis=[1])
guarded = R.maximum(largest, R.const(float("-inf"), "float32"))
row = R.reshape(guarded, R.shape([n, 1, n]))
less = R.subtract(x, row)
powers = R.exp(less)
"""


def after(body: str) -> str:
    """The text of a function of x, (n, m, n), after the pass; its numbers are those before."""
    lines = "".join(f"            {line}\n" for line in body.strip().splitlines())
    mod = Normalize()(
        relaxpy.parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            '    def main(x: R.Tensor(("n", "m", "n"), "float32")):\n'
            "        n, m = T.int64(), T.int64()\n        with R.dataflow():\n"
            f"{lines}            R.output(y)\n        return y\n"
        )
    )
    found = FuseSoftmax()(mod)
    check_well_formed(found)
    assert FuseSoftmax()(found) is found
    for n, m in ((3, 5), (1, 1), (2, 1)):
        x = np.random.default_rng(n).standard_normal((n, m, n)).astype(np.float32)
        x[0, 0] = -np.inf
        with np.errstate(invalid="ignore"):
            want, got = (interpret(each, "main", x) for each in (mod, found))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return found.script()


def test_the_example_of_the_docstring() -> None:
    check_example(FuseSoftmax())


@pytest.mark.parametrize(
    ("rest", "is_softmax"),
    [
        ("total = R.sum(powers, axis=[-2], keepdims=True)\ny = R.divide(powers, total)", True),
        (
            "sums = R.sum(powers, axis=[1])\ntotal = R.broadcast_to(R.expand_dims(sums, axis=1), R.shape([n, m, n]))\n"
            "y = R.divide(powers, total)",
            True,
        ),
        ("total = R.sum(powers, axis=[0], keepdims=True)\ny = R.divide(powers, total)", False),
        (
            "sums = R.sum(powers, axis=[1])\ntotal = R.expand_dims(sums, axis=2)\n"
            "y = R.divide(powers, R.permute_dims(total, (0, 2, 1)))",
            False,
        ),
        ("total = R.sum(less, axis=[1], keepdims=True)\ny = R.divide(powers, total)", False),
        (
            "total = R.sum(powers, axis=[1], keepdims=True)\nz = R.divide(powers, total)\ny = R.add(z, less)",
            False,
        ),
    ],
)
def test_softmax(rest: str, is_softmax: bool) -> None:
    """Along one axis, and nothing else reads a part of it."""
    assert ("R.nn.softmax(x, axis=1)" in after(LESS + rest)) == is_softmax


def test_rows_are_along_the_axis() -> None:
    """A sum of a square along its last axis that is broadcast as rows is no softmax of columns."""
    body = """
less = R.subtract(x, R.max(x, axis=[2], keepdims=True))
powers = R.exp(less)
sums = R.expand_dims(R.sum(powers, axis=[2]), axis=2)
y = R.divide(powers, sums)
"""
    assert "R.nn.softmax(x, axis=2)" in after(body)
    assert "softmax" not in after(
        body.replace("axis=2)\n", "axis=1)\n").replace(
            "sums)\n", "R.reshape(sums, R.shape([n, m, 1])))\n"
        )
    )


def test_log_softmax() -> None:
    total = "total = R.sum(powers, axis=[1], keepdims=True)\n"
    assert "R.nn.log_softmax(x, axis=1)" in after(
        LESS + total + "y = R.subtract(less, R.log(total))"
    )
    both = total + "z = R.subtract(less, R.log(total))\nw = R.divide(powers, total)\ny = (z, w)"
    assert "softmax" not in after(LESS + both)


def test_numbers_of_random_programs_stay() -> None:
    assert check_pass(FuseSoftmax(), range(10), BindParams()) == 0
