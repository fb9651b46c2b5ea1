"""Copies of data with contiguous pixels: few channels one by one, many in squares of vectors, at every edge."""

from __future__ import annotations

import pytest

from relaxpy.op.conv import Conv2d
from relaxpy.testing.kernels import Kernels
from tests.backend.cpu.rules.test_convolution import numbers, program, run


@pytest.mark.parametrize("channels", [1, 3, 8, 9, 16, 37])
def test_transposed_copies(channels: int) -> None:
    """Rows shorter than a vector, of whole vectors and of a part of one, with zeros around them."""
    op = Conv2d(padding=2, data_layout="NCHW", kernel_layout="HWIO", out_layout="NHWC")
    weight = (3, 3, channels, 16)
    compiled = Kernels({"k": program(op, ("n", channels, "h", "w"), weight)})
    for size in ((2, channels, 1, 3), (1, channels, 5, 12), (1, channels, 3, 31)):
        run(compiled, "k", op, numbers(*size), numbers(*weight, seed=1))
