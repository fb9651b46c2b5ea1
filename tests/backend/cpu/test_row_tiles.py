"""Weights in tiles of rows: where each element goes, and that what is filled up is zeros."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.backend.cpu.row_tiles import RowTiles, tile_height
from relaxpy.target import Target


@pytest.mark.parametrize(
    ("axis", "shape", "lead"),
    [
        (0, (13, 3, 2, 2), 0), (3, (2, 2, 3, 13), 0), (0, (16, 5), 0), (1, (4, 1, 3), 0), (1, (3, 13, 2), 1),
        (3, (2, 3, 2, 9), 2),
    ],
)  # fmt: skip
def test_every_element(axis: int, shape: tuple[int, ...], lead: int) -> None:
    """Row r is number r % height of tile r // height; the other dimensions keep their order, the first ones outside."""
    tiles = RowTiles(param=1, axis=axis, height=8, lead=lead)
    weight = np.arange(1, np.prod(shape) + 1, dtype="float32").reshape(shape)
    packed = tiles.pack(weight)
    assert packed.shape == tiles.packed_shape(shape)
    for index in np.ndindex(*shape):
        others = index[lead:axis] + index[axis + 1 :]
        at = (*index[:lead], index[axis] // 8, *others, index[axis] % 8)
        assert tiles.place([*index]) == [*at]  # type: ignore[comparison-overlap]
        assert packed[at] == weight[index]
    assert np.count_nonzero(packed) == weight.size


def test_height() -> None:
    """With 32 registers 16 sums leave room, with 16 registers 12 do."""
    assert tile_height(Target.parse("llvm -mcpu=x86-64-v4")) == 8
    assert tile_height(Target.parse("llvm -mcpu=x86-64-v3")) == 6


@pytest.mark.parametrize("shape", [(13, 3, 2, 5), (16, 1, 1, 8), (5, 2)])
def test_groups(shape: tuple[int, ...]) -> None:
    """Groups along the last dimension are contiguous inside of a row; what is filled up is zeros."""
    tiles = RowTiles(param=1, axis=0, height=8, group=4)
    weight = np.arange(1, np.prod(shape) + 1, dtype="int32").reshape(shape)
    packed = tiles.pack(weight)
    assert packed.shape == tiles.packed_shape(shape)
    for index in np.ndindex(*shape):
        row, *others, last = index
        at = (row // 8, *others, last // 4, row % 8, last % 4)
        assert tiles.place([*index]) == [*at]  # type: ignore[comparison-overlap]
        assert packed[at] == weight[index]
    assert np.count_nonzero(packed) == weight.size
