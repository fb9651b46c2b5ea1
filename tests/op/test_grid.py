"""The slopes of grid_sample are torch's, in data and in coordinates, also at and beyond the borders."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import relaxpy
from relaxpy.testing.interpret import interpret
from relaxpy.transform.gradient import Gradient
from tests.sweeps import part

RNG = np.random.default_rng(5)
METHODS = "nearest", "bilinear", "bicubic"
CASES = part(list(product(METHODS, ("zeros", "border", "reflection"), (0, 1))), 5)


@pytest.mark.parametrize(("method", "padding", "corners"), CASES)
def test_slopes_are_torchs(method: str, padding: str, corners: int) -> None:
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", "c", "h", "w"), "float64"), g: R.Tensor(("n", 2, "i", "j"), "float64")):
    return R.image.grid_sample(
        x, g, method="{method}", padding_mode="{padding}", align_corners={bool(corners)}
    )
""")
    x, grid = RNG.standard_normal((2, 3, 5, 7)), RNG.uniform(-1.7, 1.7, (2, 2, 3, 1))
    grid[0, :, 0] = [[1.0], [-1.0]]  # the edges themselves
    ct = RNG.standard_normal((2, 3, 3, 1))
    found: Any = interpret(Gradient(kind="vjp")(mod), "main_vjp", x, grid, ct)
    theirs = [torch.tensor(each, requires_grad=True) for each in (x, grid)]
    value = torch.nn.functional.grid_sample(
        theirs[0], theirs[1].permute(0, 2, 3, 1), method, padding, bool(corners)
    )
    torch.autograd.backward(value, torch.tensor(ct))
    for got, want in zip(found[1], theirs, strict=True):
        assert want.grad is not None
        np.testing.assert_allclose(got, want.grad.numpy(), rtol=1e-9, atol=1e-9)
