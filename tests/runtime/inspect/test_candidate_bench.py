"""What counts as equal results, and how they are read."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relaxpy.runtime.inspect.candidate_bench import agree, results_of
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.devices.cuda.emulation import emulated, needs_emulation
from tests.runtime.devices.cuda.kernels import runtime


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        ([1.0, 2.0], [1.0, 2.001], True),
        ([1.0, 2.0], [1.0, 2.01], False),
        ([1e-6, 0.0], [0.0, 1e-6], False),  # small results are compared with each other
        ([np.nan, np.inf], [np.nan, np.inf], True),
        ([np.nan, 1.0], [1.0, 1.0], False),
        ([], [], True),
        ([0.0], [0.0], True),
        ([1.0], [1.0, 1.0], False),
    ],
)
def test_floats(found: list[float], expected: list[float], equal: bool) -> None:
    assert agree([np.array(found, np.float32)], [np.array(expected, np.float32)]) == equal


def test_others_are_exact() -> None:
    numbers = np.array([1, 2], np.int8)
    assert agree([numbers], [numbers.copy()])
    assert not agree([numbers], [numbers + 1])
    assert not agree([numbers], [numbers.astype(np.int32)])
    assert not agree([numbers], [numbers, numbers])


@needs_emulation
def test_results_from_a_device() -> None:
    """bfloat16 may differ in its last bit, float32 may not in the same."""
    exact = np.array([1, 200, -3], ml_dtypes.bfloat16)
    near = (exact.view(np.uint16) + np.uint16(1)).view(ml_dtypes.bfloat16)
    with emulated():
        queue = runtime().queue()
        (one,), (wide,) = results_of(queue.upload(from_numpy(exact)))
        (other,), _ = results_of(queue.upload(from_numpy(near)))
        floats, (narrow,) = results_of(queue.upload(from_numpy(exact.astype(np.float32))))
        several, _ = results_of((queue.upload(from_numpy(exact)),) * 2)
    np.testing.assert_array_equal(one, exact.astype(np.float32))
    assert agree([other], [one], [wide])
    assert not agree([other], floats, [narrow])
    assert len(several) == 2
