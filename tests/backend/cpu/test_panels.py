"""The three maps between a factor and its panels say the same, for every number of columns: of the build (`pack`), of
packers (`source`) and of kernels (`place`)."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.backend.cpu.panels import Packing
from relaxpy.tir.programs import loops
from tests.sweeps import sweep

DEPTHS = (1, 6, 7)
COLUMNS = range(1, 401)


def number(value: loops.Expr) -> int:
    found = loops.constant(loops.simplify(value))
    assert found is not None
    return found


@sweep(3)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("width", [4, 8, 16, 32])
def test_every_number_of_columns(width: int, group: int, transposed: bool) -> None:
    packing = Packing(0, width, transposed, group)

    def placed(k: int, j: int) -> list[int]:
        at = (j, k) if transposed else (k, j)
        return [*map(number, packing.place([loops.int64(each) for each in at]))]

    # Neither map has both the place in the depth and the column in an index.
    down = np.array([placed(k, 0) for k in range(max(DEPTHS))])
    along = np.array([placed(0, j) for j in range(max(COLUMNS))])
    for columns in COLUMNS:
        depth = DEPTHS[columns % len(DEPTHS)]
        shape = (columns, depth) if transposed else (depth, columns)
        weight = np.arange(1, 1 + columns * depth, dtype=np.int32).reshape(shape)
        packed = packing.pack(weight)
        assert packed.shape == packing.packed_shape(shape)
        at = down[:depth, None] + along[None, :columns]
        read = packed[tuple(np.moveaxis(at, -1, 0))]
        np.testing.assert_array_equal(read, weight.T if transposed else weight)
        assert np.count_nonzero(packed) == weight.size
        # The last panel, where what exists ends: a seventeenth of them, TVM is slow.
        if columns % 17 != width % 17:
            continue
        for index in np.ndindex(packed.shape[1:]):
            last = (packed.shape[0] - 1, *index)
            if index[0] not in (0, packed.shape[1] - 1):
                continue
            source, inside = packing.source(shape, [loops.int64(each) for each in last])
            exists = all(number(each) for each in inside)
            assert packed[last] == (weight[tuple(map(number, source))] if exists else 0)
