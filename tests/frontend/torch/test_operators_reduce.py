"""Histograms; variance and mean."""

from __future__ import annotations

import pytest
import torch

import relaxpy


@pytest.mark.parametrize("limits", [(0, 4), (0.0, 0.0), (-1, 2.5)])
def test_counts_are_torchs(limits: tuple[float, float]) -> None:
    """Elements outside, at the limits, and all equal."""
    compiled = relaxpy.compile(lambda x: torch.histc(x, 5, *limits), torch.randn(7) * 3)
    for x in (torch.randn(31) * 3, torch.arange(-1, 6).float(), torch.full((3,), 2.0)):
        torch.testing.assert_close(compiled(x), torch.histc(x, 5, *limits))


def test_variance_and_mean_at_once() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*torch.var_mean(x, dim=1), *torch.var_mean(x, dim=None, correction=0))

    compiled = relaxpy.compile(both, torch.rand(3, 5))
    for x in (torch.rand(3, 5), torch.rand(7, 2)):
        torch.testing.assert_close(compiled(x), both(x))


def test_are_all_or_any_true() -> None:
    """As `torch._check_tensor_all` asks."""

    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch._is_all_true(x > 0), torch._is_any_true(x > 0)

    compiled = relaxpy.compile(both, torch.rand(3, 5))
    for x in (torch.rand(2, 7) + 1, -torch.rand(3, 1), torch.tensor([[1.0, -1.0]])):
        torch.testing.assert_close(compiled(x), both(x))
