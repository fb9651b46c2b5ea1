"""Conversion of other packages' arrays and numbers to numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy.ir.dtype import OF_ML_DTYPES, DType
from relaxpy.narrow import is_ndarray


def as_array(value: Any) -> np.ndarray:
    """Convert an array-like to a numpy array, without a copy if possible. Handles torch tensors that require a gradient
    or have dtypes that numpy lacks."""
    if is_ndarray(value):
        return value
    if type(value).__module__.partition(".")[0] == "torch":
        value = value.detach()
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype in OF_ML_DTYPES:
            import torch  # already imported: the value is a torch tensor

            bits = torch.int16 if dtype == "bfloat16" else torch.uint8
            return value.cpu().view(bits).numpy().view(DType(dtype).numpy)
        return value.numpy(force=True)
    numpy = getattr(value, "numpy", None)
    return np.asarray(numpy() if callable(numpy) else value)


def of_numbers(value: Any) -> np.ndarray:
    """Convert nested lists of numbers to an array. Non-negative integers with one of at least 2**63 become uint64,
    where numpy would make them floats."""
    array = np.asarray(value)
    if array.dtype != np.float64 or not array.size or not np.max(np.abs(array)) >= 2.0**63:
        return array
    whole = np.asarray(value, object)
    exact = all(isinstance(each, (int, np.integer)) and each >= 0 for each in whole.flat)
    return whole.astype(np.uint64) if exact else array
