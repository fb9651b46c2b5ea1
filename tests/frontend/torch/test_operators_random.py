"""Random operators: their distribution, and what the seed decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import relaxpy
from tests.sweeps import part, sweep

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
    "uniform": (lambda x: torch.empty_like(x).uniform_(1, 4), 2.5, 0.75),
    "normal": (lambda x: torch.normal(x, 2.0), 0.25, 4.0),
    "normal_": (lambda x: torch.empty_like(x).normal_(3, 0.5), 3.0, 0.25),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "two": (lambda x: torch.rand_like(x) - torch.rand_like(x), 0.0, 1 / 6),
}


@sweep
@pytest.mark.parametrize("name", part([*CASES], 3))
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


@sweep(2)
@pytest.mark.parametrize("replace", [True, False])
def test_multinomial(replace: bool) -> None:
    """Each class as often as its weight says, none of weight 0; without replacement each at most once in a row."""
    weights = torch.tensor([0.5, 0.0, 2.5, 1.0]).expand(9973, 4)
    for found in drawn(lambda x: torch.multinomial(x, 3, replacement=replace), weights):
        assert found.shape == (9973, 3)
        share = np.bincount(found[:, 0], minlength=4) / 9973
        assert abs(share - np.array([0.125, 0, 0.625, 0.25])).max() < 0.025
        counts = [(found == i).sum(1) for i in range(4)]
        assert (max(c.max() for c in counts) > 1) == replace
    (one, *_) = drawn(lambda x: torch.multinomial(x, 2, replacement=replace), weights[0].clone())
    assert one.shape == (2,)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_dropout(causal: bool) -> None:
    """The mean over many heads is attention without dropout; a masked row gives 0."""
    torch.manual_seed(0)
    q, k = torch.randn(3, 8), torch.randn(5, 8)
    v = torch.eye(5)
    many = [x.expand(4001, *x.shape).contiguous() for x in (q, k, v)]
    mask = None if causal else torch.tensor([[True] * 5, [False] * 5, [True, False] * 2 + [True]])
    call = lambda *given: F.scaled_dot_product_attention(
        *given, attn_mask=mask, dropout_p=0.3, is_causal=causal
    )
    first, again, other = drawn(call, *many)
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.1
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal).numpy()
    np.testing.assert_allclose(first.mean(0), want, atol=0.04)
    kept = first[:, 0, 0] != 0
    assert abs(kept.mean() - 0.7) < 0.04
    np.testing.assert_allclose(first[kept][0, 0, 0], want[0, 0] / 0.7, rtol=1e-5)
