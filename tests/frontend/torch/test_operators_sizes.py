"""Values that are sizes: torch forgets that it took one for a size, and gives numbers for others."""

from __future__ import annotations

import pytest
import torch

import relaxpy
from relaxpy.errors import RelaxError


def same(x, k):
    rows = k.item()
    torch._check(rows == x.shape[0])
    return x.reshape(rows, 3) * rows


def known(x, k):
    rows = k.item()
    torch._check(rows == 4)
    return x * rows


def twice(x, k):
    """Of which the decomposed program has `k == k`."""
    torch._check(k.item() == x.shape[0] * 2)
    return x * k.item()


def part(x, k):
    (all_rows,) = x.split(k.reshape(1).tolist())
    return all_rows


@pytest.mark.parametrize("function", [same, known, twice, part])
def test_a_value_that_is_a_size_is_checked(function) -> None:
    x = torch.randn(2 if function is twice else 4, 3)
    compiled = relaxpy.compile(
        function, x, torch.tensor(4), dynamic_shapes={"x": {0: "n"}, "k": None},
        target="llvm -opt-level=0",
    )  # fmt: skip
    torch.testing.assert_close(compiled(x, torch.tensor(4)), function(x, torch.tensor(4)))
    for other in (-4, 0, 3, 8):
        with pytest.raises(RuntimeError):
            function(x, torch.tensor(other))
        with pytest.raises(RelaxError, match=rf" {other}\b"):
            compiled(x, torch.tensor(other))
