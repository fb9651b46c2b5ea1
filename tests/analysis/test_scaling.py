"""The table of scales: each equation holds for the samples of its operators, by the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from relaxpy.analysis.scaling import RULES, Scale, Site
from relaxpy.ir.known import KnownTensor
from relaxpy.narrow import is_ndarray
from relaxpy.op.base import OPS, Op, Sample

RNG = np.random.default_rng(3)


def signed(shape: Sequence[int]) -> np.ndarray:
    return RNG.uniform(0.3, 2, shape) * RNG.choice([-1, 1], shape)


def wide(sample: Sample) -> Sequence[Any]:
    """The operands in float64, with no NaN, infinity or zero."""
    inputs: Any = sample.inputs
    (first, *_) = inputs
    flat: Any = first if type(first) is tuple else inputs
    return [signed(v.shape) if is_ndarray(v) else v for v in flat]


def value(sample: Sample, operands: Sequence[Any]) -> np.ndarray:
    joined = type(sample.inputs[0]) is tuple
    with np.errstate(all="ignore"):
        return np.asarray(sample.op.reference(*((tuple(operands),) if joined else operands)))


def scales(shape: tuple[int, ...], positive: bool) -> Iterator[Scale]:
    """A number, one for each index of each axis, and one for each element."""
    for along in ((), *((axis,) for axis in range(len(shape))), tuple(range(len(shape)))):
        sizes = [size if axis in along else 1 for axis, size in enumerate(shape)]
        yield RNG.uniform(0.5, 2, sizes) * (1 if positive else RNG.choice([-1, 1], sizes))


def usable(cls: type[Op]) -> Iterator[Sample]:
    for sample in cls.samples():
        arrays: list[np.ndarray] = [v for v in sample.inputs if is_ndarray(v)]
        if (
            not sample.code
            and all(a.dtype.kind == "f" for a in arrays)
            and getattr(sample.op, "out_dtype", None) is None
        ):
            yield sample


def equations(cls: type[Op]) -> int:
    """Check both readings for all samples; return how many equations there were."""
    rule, count = RULES[cls], 0
    for sample in usable(cls):
        given = wide(sample)
        result = value(sample, given)
        kinds = [KnownTensor(v.shape, "float64") if is_ndarray(v) else None for v in given]
        site = Site(sample.op, kinds, KnownTensor(result.shape, "float64"))
        for scale in scales(result.shape, rule.positive):
            for way in rule.backward(site, scale):
                new = [v * way[i] if i in way else v for i, v in enumerate(given)]
                np.testing.assert_allclose(value(sample, new), result * scale, rtol=1e-9, atol=1e-9)
                count += 1
        for index, operand in enumerate(given):
            if not is_ndarray(operand):
                continue
            for scale in scales(operand.shape, rule.positive):
                left = value(sample, [v * scale if i == index else v for i, v in enumerate(given)])
                for own, others in rule.forward(site, index, scale):
                    new = [v * others[i] if i in others else v for i, v in enumerate(given)]
                    right = value(sample, new) * (1 if own is None else own)
                    np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)
                    count += 1
    return count


@pytest.mark.parametrize("cls", RULES, ids=lambda cls: cls.name)
def test_equations_hold(cls: type[Op]) -> None:
    assert equations(cls) > 5


def test_operators_without_a_rule() -> None:
    """A scale passes neither through what is not linear nor through what only resembles a product, as the operators
    that derive from those in the table do."""
    for name in (
        "exp",
        "nn.softmax",
        "nn.relu6",
        "nn.gelu",
        "sign",
        "prod",
        "nn.max_pool2d_indices",
        "astype",
    ):
        assert OPS[name] not in RULES
