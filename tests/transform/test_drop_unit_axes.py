"""DropUnitAxes: axes that come and go, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform.bind_params import BindParams
from relaxpy.transform.drop_unit_axes import DropUnitAxes
from relaxpy.transform.normalize import Normalize


def after(body: str) -> str:
    """The text of a function of x, (n, m, 2, 3), and w, (2, 1, 3), after the pass; its numbers are those before."""
    lines = "".join(f"            {line}\n" for line in body.strip().splitlines())
    mod = Normalize()(
        relaxpy.parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            '    def main(x: R.Tensor(("n", "m", 2, 3), "float32"), w: R.Tensor((2, 1, 3), "float32")):\n'
            "        n, m = T.int64(), T.int64()\n        with R.dataflow():\n"
            "            wide = R.reshape(x, R.shape([n, m, 2, 1, 3]))\n"
            f"{lines}            R.output(y)\n        return y\n"
        )
    )
    found = DropUnitAxes()(mod)
    check_well_formed(found)
    for n, m in ((5, 7), (1, 1), (1, 0)):
        rng = np.random.default_rng(n)
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((n, m, 2, 3), (2, 1, 3)))
        want, got = (interpret(each, "main", x, w) for each in (mod, found))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return found.script()


def test_the_example_of_the_docstring() -> None:
    check_example(DropUnitAxes())


@pytest.mark.parametrize(
    ("body", "largest"),
    [
        ("a = R.permute_dims(wide, (3, 1, 0, 2, 4))\nb = R.exp(a)\ny = R.reshape(b, R.shape([m, n, 2, 3]))", 4),
        ("a = R.multiply(wide, w)\nb = R.sum(a, axis=[4])\nc = R.expand_dims(b, axis=[4])\nd = R.divide(a, c)\n"
         "y = R.reshape(d, R.shape([n, m, 2, 3]))", 4),
        ("a = R.max(wide, axis=[1], keepdims=True)\nb = R.subtract(wide, a)\ny = R.reshape(b, R.shape([n, m, 2, 3]))", 4),
        ('a = R.where(R.greater(wide, R.const(0.0, "float32")), wide, w)\nb = R.astype(a, "float16")\n'
         'c = R.astype(b, "float32")\ny = R.reshape(c, R.shape([n, m, 2, 3]))', 4),
        ("a = R.broadcast_to(wide, R.shape([2, n, m, 2, 1, 3]))\ny = R.reshape(a, R.shape([2, n, m, 2, 3]))", 5),
        ("a = R.exp(wide)\ny = R.sum(a, axis=[3])", 5),
        ("y = R.exp(wide)", 5),
        ("a = R.broadcast_to(wide, R.shape([n, m, 2, 4, 3]))\ny = R.sum(a, axis=[3])", 5),
        ("a = R.exp(wide)\nb = R.permute_dims(a, (0, 1, 3, 2, 4))\nc = R.add(a, b)\ny = R.reshape(R.sum(c, axis=[2]), R.shape([n, m, 2, 3]))", 5),
    ],
    ids=["moved", "reduced", "kept", "where", "broadcast", "reduced itself", "result", "repeated", "two places"],
)  # fmt: skip
def test_axes(body: str, largest: int) -> None:
    text = after(body).partition("R.dataflow")[2]
    ranks = [
        line.partition("R.Tensor((")[2].partition(")")[0].count(",") for line in text.splitlines()
    ]
    assert max(ranks) + 1 == largest


def test_numbers_of_random_programs_stay() -> None:
    assert check_pass(DropUnitAxes(), range(8), BindParams()) >= 0
