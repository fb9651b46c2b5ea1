"""Histograms."""

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
