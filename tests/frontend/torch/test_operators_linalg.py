"""Norms of vectors."""

from __future__ import annotations

import math

import pytest
import torch

import relaxpy
from tests.sweeps import sweep


@sweep(2)
@pytest.mark.parametrize("order", [0, 1, 2, 3.5, math.inf, -math.inf])
def test_norms_are_torchs(order: float) -> None:
    def program(x):
        return torch.linalg.vector_norm(x, order), torch.linalg.vector_norm(
            x, order, dim=-1, keepdim=True
        )

    compiled = relaxpy.compile(program, torch.randn(3, 5))
    for x in (torch.randn(4, 7), torch.tensor([[0.0, -2.0]]), torch.randn(3, 1)):
        torch.testing.assert_close(compiled(x), program(x))
