"""Parts whose sizes are values: those that mixtures of experts have."""

from __future__ import annotations

import pytest
import torch

import relaxpy
from relaxpy.errors import RelaxError


def split(parts: int):
    """Doubles the first part, trebles the second, and so on; the sizes of the parts are given."""

    def function(x, sizes):
        each = x.split(sizes.tolist())
        return torch.cat([part * (at + 2) for at, part in enumerate(each)])

    example = torch.randn(2 * parts, 3), torch.full((parts,), 2)
    return function, example, {"x": {0: "n"}, "sizes": None}


@pytest.mark.parametrize("parts", [1, 5])
def test_parts_of_any_sizes(parts: int) -> None:
    function, example, shapes = split(parts)
    compiled = relaxpy.compile(
        function, *example, dynamic_shapes=shapes, target="llvm -opt-level=0"
    )
    for sizes in ([0] * parts, [3, 0, 1, 7, 2][:parts], [0] * (parts - 1) + [5]):
        x = torch.randn(sum(sizes), 3)
        torch.testing.assert_close(
            compiled(x, torch.tensor(sizes)), function(x, torch.tensor(sizes))
        )
    for wrong in ([4] * parts, [1] * parts, [-1] + [6] * (parts - 1)):
        with pytest.raises(RelaxError):
            compiled(torch.randn(3 * parts, 3), torch.tensor(wrong))


def test_sizes_of_parts_do_not_grow_with_their_number() -> None:
    function, example, shapes = split(16)
    mod, _ = relaxpy.from_torch(function, example, dynamic_shapes=shapes)
    parts = [line for line in mod.script().splitlines() if "split_with_sizes" in line.split(":")[0]]
    assert len(parts) == 16
    for at, line in enumerate(parts):
        assert f": R.Tensor((u{at}, 3)" in line
