"""Numbers of other packages as numpy's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relaxpy.ir.array import as_array


def test_tensors_of_torch() -> None:
    """Not copied; a gradient and bfloat16 are in nobody's way."""
    torch = pytest.importorskip("torch")
    for source in (
        torch.zeros(3),
        torch.zeros(3, requires_grad=True),
        torch.zeros(3, dtype=torch.int8),
    ):
        array = as_array(source)
        assert array.__array_interface__["data"][0] == source.data_ptr()
    narrow = torch.arange(6).reshape(2, 3).to(torch.bfloat16).T.requires_grad_()
    assert as_array(narrow).dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(as_array(narrow).astype(np.float32), [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(as_array(torch.nn.Parameter(torch.ones(2))), [1, 1])


def test_arrays_and_what_numpy_reads() -> None:
    array = np.zeros(2)
    assert as_array(array) is array
    np.testing.assert_array_equal(as_array([1, 2]), [1, 2])
