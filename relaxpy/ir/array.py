"""Numbers of other packages as numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy.ir.dtype import OF_ML_DTYPES, DType


def as_array(value: Any) -> np.ndarray:
    """An array-like as a numpy array, without a copy where possible. torch's tensors may require a gradient, and have
    dtypes that numpy lacks."""
    if isinstance(value, np.ndarray):
        return value
    if type(value).__module__.partition(".")[0] == "torch":
        value = value.detach()
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype in OF_ML_DTYPES:
            import torch  # it is there: the value is one of its

            bits = torch.int16 if dtype == "bfloat16" else torch.uint8
            return value.cpu().view(bits).numpy().view(DType(dtype).numpy)
        return value.numpy(force=True)
    numpy = getattr(value, "numpy", None)
    return np.asarray(numpy() if callable(numpy) else value)


def of_numbers(value: Any) -> np.ndarray:
    """Nested lists of numbers as an array. Integers from 2**63 on beside smaller ones, from 0 up, become uint64, where
    numpy makes them floats."""
    array = np.asarray(value)
    if array.dtype != np.float64 or not array.size or not np.max(np.abs(array)) >= 2.0**63:
        return array
    whole = np.asarray(value, object)
    exact = all(isinstance(each, (int, np.integer)) and each >= 0 for each in whole.flat)
    return whole.astype(np.uint64) if exact else array
