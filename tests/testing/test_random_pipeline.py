"""Pipelines that are put together at random."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.testing.differential import Call, Ways, check
from relaxpy.testing.random_pipeline import ANYWHERE, random_order, random_pipeline

PROGRAM = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n", "m"), "float32"):
    a = R.exp(x)
    b = R.exp(x)
    c = R.add(a, b)
    d = R.add(c, R.add(R.const(1.0, "float32"), R.const(2.0, "float32")))
    return d
""")


def test_the_same_seed_gives_the_same_pipeline() -> None:
    assert random_pipeline(3) == random_pipeline(3)
    assert len({tuple(step.name for step in random_pipeline(s).passes) for s in range(20)}) > 15


def test_every_optional_pass_has_its_turn() -> None:
    names = {step.name for seed in range(60) for step in random_pipeline(seed).passes}
    assert {step.name for step in ANYWHERE} < names


@pytest.mark.parametrize("seed", range(3))
def test_the_numbers_stay(seed: int) -> None:
    call = Call(PROGRAM, "main", [np.ones((2, 3), np.float32)])
    assert check([call], Ways(pipeline=random_pipeline(seed), fresh_process=False)) == []


@pytest.mark.parametrize("seed", range(4))
def test_orders_keep_prerequisites(seed: int) -> None:
    """All passes, each after those that it needs, in an order of its own."""
    order = random_order(seed)
    names = [step.name for step in order.passes]
    assert sorted(names) == sorted(step.name for step in default_pipeline().passes)
    for i, step in enumerate(order.passes):
        assert all(before in names[:i] for before in step.prerequisites)
    assert names != [step.name for step in random_order(seed + 100).passes]
    assert random_order(seed) == order
