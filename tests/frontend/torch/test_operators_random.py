"""Random operators: their distribution, and what the seed decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import relaxpy

COUNT = 20011


def drawn(function, *args):
    """The results for some seeds."""
    mod, params = relaxpy.from_torch(function, args)
    assert mod["main"].params[len(args)].name == "seed"
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, params=params, target="llvm -opt-level=0"))
    return [vm["main"](*args, torch.tensor(seed)).numpy() for seed in (3, 3, 4)]


CASES = {
    "rand": (lambda x: torch.rand_like(x), 0.5, 1 / 12),
    "randn": (lambda x: torch.randn_like(x), 0.0, 1.0),
    "randint": (lambda x: torch.randint(-3, 4, x.shape).float(), 0.0, 4.0),
    "bernoulli": (lambda x: torch.bernoulli(x), 0.25, 0.1875),
    "dropout": (lambda x: F.dropout(x, 0.2, True), 0.25, 0.015625),
    "two": (lambda x: torch.rand_like(x) - torch.rand_like(x), 0.0, 1 / 6),
}


@pytest.mark.parametrize("name", CASES)
def test_mean_and_variance(name: str) -> None:
    """Within five standard errors; the same seed gives the same numbers, another gives others."""
    function, mean, variance = CASES[name]
    first, again, other = drawn(function, torch.full((COUNT,), 0.25))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.1
    for found in (first, other):
        assert abs(found.mean() - mean) < 5 * (variance / COUNT) ** 0.5
        assert abs(found.var() - variance) < 0.06 * variance


def test_a_permutation() -> None:
    first, _, other = drawn(lambda x: torch.randperm(x.shape[0]) + x, torch.zeros(97).long())
    for found in (first, other):
        np.testing.assert_array_equal(np.sort(found), np.arange(97))
    assert (first != other).any()
    assert (first != np.arange(97)).any()


def test_a_model_in_eval_mode_has_no_seed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).eval()
    mod, _ = relaxpy.from_torch(model, (torch.ones(2, 3),))
    assert [p.name for p in mod["main"].params] == ["input", "_0_weight", "_0_bias"]


def test_a_compiled_module_draws_by_torchs_seed() -> None:
    """`torch.manual_seed` decides, as in torch."""
    import relaxpy.torch

    compiled = relaxpy.compile(lambda x: x + torch.rand_like(x), torch.zeros(5))
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(compiled(torch.zeros(5)))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
