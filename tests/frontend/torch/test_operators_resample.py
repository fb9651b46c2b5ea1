"""Interpolation that torch decomposes into nothing, at sizes beside those that were traced."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.testing.interpret import interpret
from tests.sweeps import full

# Eager torch has no column of width 1 with antialias: it repeats the first row's weights.
SHAPES = ((2, 3, 9, 11), (1, 3, 4, 5), (3, 3, 17, 2), (1, 3, 1, 6))


def check(program) -> None:
    mod, _ = relaxpy.from_torch(program, (torch.rand(SHAPES[0]),), dynamic_shapes="auto")
    for shape in SHAPES:
        x = torch.rand(shape)
        for found, wanted in zip(interpret(mod, "main", x.numpy()), program(x), strict=True):
            torch.testing.assert_close(
                torch.from_numpy(np.asarray(found)), wanted, rtol=1e-4, atol=1e-5
            )


def test_antialias() -> None:
    """Filters as wide as an element of the result, where that is larger than one of x."""

    def program(x):
        resize = F.interpolate
        return [
            resize(x, (5, 7), mode="bilinear", antialias=True),
            resize(x, (3, 23), mode="bicubic", antialias=True),
            resize(x, (4, 6), mode="bilinear", antialias=True, align_corners=True),
            resize(x, (x.shape[2] + 2, 3), mode="bicubic", antialias=True, align_corners=True),
            resize(x, scale_factor=1.7, mode="bilinear", antialias=True),
        ]

    check(program)


def test_factors_that_floats_do_not_hold() -> None:
    def program(x):
        return [
            F.interpolate(x, scale_factor=1.7, mode="bilinear"),
            F.interpolate(x, scale_factor=(1.3, 2.1), mode="nearest"),
            F.interpolate(x, scale_factor=1.1, mode="area"),
            F.adaptive_avg_pool2d(x, (3, x.shape[3] + 1)),
        ]

    check(program)


@full
def test_what_a_window_does_not_reach_is_not_in_it() -> None:
    """A NaN is where its window is."""

    def program(x):
        return [
            F.interpolate(x, (4, 5), mode="bilinear", antialias=True),
            F.interpolate(x, scale_factor=0.6, mode="area"),
        ]

    x = torch.rand(SHAPES[0])
    compiled = relaxpy.compile(program, x, target="llvm -opt-level=0")
    x[0, 1, 4, 5], x[1, 2, 0, 0] = float("nan"), float("inf")
    torch.testing.assert_close(compiled(x), program(x), equal_nan=True)


def test_antialias_of_integers_is_refused() -> None:
    def program(x):
        return F.interpolate(x, (2, 2), mode="bilinear", antialias=True)

    with pytest.raises(RelaxError, match="antialias of integers"):
        relaxpy.compile(program, torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
