"""CausalAttention: which masks are causal, what stays of them, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform.canonicalize_bindings import CanonicalizeBindings
from relaxpy.transform.causal_attention import CausalAttention
from relaxpy.transform.convert_to_dataflow import ConvertToDataflow
from relaxpy.transform.normalize import Normalize
from tests.sweeps import sweep

RNG = np.random.default_rng(0)
HEADER = """
@I.ir_module
class Module:
    @R.function
    def main(
        q: R.Tensor(("b", "s", 4, 8), "float32"), k: R.Tensor(("b", "p + s", 2, 8), "float32"),
        kept: R.Tensor(("b", "p + s"), "bool"), past: R.Tensor(("p",), "int8"),
    ):
        b, s, p = T.int64(), T.int64(), T.int64()
        with R.dataflow():
            keys = R.arange(R.prim_value(p + s))
            rows = R.expand_dims(R.arange(R.prim_value(s)), axis=1)
            last = R.expand_dims(R.add(R.arange(R.prim_value(s)), R.scalar_to_tensor(R.prim_value(p), dtype="int64")), axis=1)
            padding = R.expand_dims(kept, axis=[1, 2])
"""
FOOTER = """
            bias = R.where(mask, R.const(0.0, "float32"), R.const(float("-inf"), "float32"))
            whole = R.broadcast_to(bias, R.shape([b, 1, s, p + s]))
            y = R.nn.attention(q, k, k, whole)
            R.output(y)
        return y
"""


def after(mask: str, footer: str = FOOTER) -> tuple[IRModule, str]:
    """The module after the pass, its numbers compared with those before, and its call of attention."""
    body = "\n".join(f"            {line.strip()}" for line in mask.strip().splitlines())
    before = Normalize()(relaxpy.parse(HEADER + body + footer))
    before = CanonicalizeBindings()(ConvertToDataflow()(before))
    found = CausalAttention()(before)
    check_well_formed(found)
    assert CausalAttention()(found) is found
    vm = relaxpy.VirtualMachine(relaxpy.build(found, target="llvm -opt-level=0"))
    for b, s, p in ((2, 3, 4), (1, 1, 6), (2, 5, 0)):
        q, k = (RNG.standard_normal((b, n, h, 8), np.float32) for n, h in ((s, 4), (p + s, 2)))
        kept = np.arange(p + s) >= np.arange(2, b + 2)[:, None]  # some queries see nothing
        args = q, k, kept, np.zeros(p, np.int8)
        want = interpret(before, "main", *args)
        np.testing.assert_allclose(interpret(found, "main", *args), want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(vm["main"](*args).numpy(), want, rtol=1e-4, atol=1e-5)
    (call,) = (line for line in found.script().splitlines() if "nn.attention" in line)
    return found, call


def test_the_example_of_the_docstring() -> None:
    check_example(CausalAttention())


@sweep(2)
@pytest.mark.parametrize(
    ("mask", "causal", "has_bias"),
    [
        ("mask = R.less_equal(keys, rows)", '"TopLeft"', False),
        ("mask = R.less_equal(keys, last)", '"BottomRight"', False),
        ("mask = R.logical_not(R.less_equal(keys, last))", None, True),
        ("mask = R.logical_and(R.greater_equal(last, keys), padding)", '"BottomRight"', True),
        (
            'mask = R.bitwise_and(R.bitwise_and(R.ones([], "bool"), padding), R.less(keys, R.add(rows, R.const(1, "int64"))))',
            '"TopLeft"',
            True,
        ),
        (
            'mask = R.logical_and(R.less_equal(keys, last), R.greater(keys, R.subtract(last, R.const(3, "int64"))))',
            '"BottomRight", window_size=3',
            False,
        ),
        (
            'mask = R.logical_and(R.less_equal(keys, last), R.less_equal(R.subtract(last, R.const(3, "int64")), keys))',
            '"BottomRight", window_size=4',
            False,
        ),
        ("mask = R.logical_or(R.less_equal(keys, last), padding)", None, True),
        ('mask = R.less_equal(keys, R.add(rows, R.const(1, "int64")))', None, True),
        ("mask = R.greater_equal(keys, rows)", None, True),
        ("mask = R.logical_and(padding, padding)", None, True),
    ],
)  # fmt: skip
def test_masks(mask: str, causal: str | None, has_bias: bool) -> None:
    """A mask of another diagonal, an alternative, or a negation stays."""
    _, call = after(mask)
    assert ("causal_mask" in call) == (causal is not None)
    assert causal is None or f"causal_mask={causal}" in call
    inside = call.partition("nn.attention(")[2].partition(")")[0].split(", ")
    assert len([arg for arg in inside if "=" not in arg]) == 3 + has_bias


def test_what_is_hidden_is_minus_infinity() -> None:
    """A large negative number leaves some weight where all keys are hidden, which no causal mask alone does."""
    large = FOOTER.replace('float("-inf")', "-1e30")
    _, call = after("mask = R.logical_and(R.less_equal(keys, last), padding)", large)
    assert "causal_mask" not in call
    _, call = after("mask = R.less_equal(keys, last)", large)
    assert "causal_mask" in call
    _, call = after("mask = R.less_equal(keys, last)", large.replace("-1e30", "-1e9"))
    assert "causal_mask" not in call


def test_masks_as_numbers_and_below_further_axes() -> None:
    """Flax's masks: compared per sequence, made numbers, and compared with 0."""
    mask = """
one = R.multiply(R.const(1, "int64"), R.arange(R.prim_value(s)))
each = R.broadcast_to(one, R.shape([b, s]))
others = R.broadcast_to(R.arange(R.prim_value(p + s)), R.shape([b, p + s]))
below = R.greater_equal(R.expand_dims(each, axis=[2]), R.expand_dims(others, axis=[1]))
numbers = R.astype(R.expand_dims(below, axis=[1]), "float32")
mask = R.not_equal(numbers, R.const(0.0, "float32"))
"""
    _, call = after(mask)
    assert 'causal_mask="TopLeft"' in call


def test_positions_are_of_the_axes_of_scores() -> None:
    """An index of 0 that is broadcast is that of no query."""
    first = "one = R.arange(R.prim_value(1))\nfirst = R.broadcast_to(R.expand_dims(one, axis=1), R.shape([s, 1]))\n"
    _, call = after(first + "mask = R.less_equal(keys, first)")
    assert "causal_mask" not in call
