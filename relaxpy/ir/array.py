"""Numbers of other packages as numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy.ir.dtype import OF_ML_DTYPES, DType


def as_array(value: Any) -> np.ndarray:
    """What numpy reads, as an array that is not copied where that is possible. torch's tensors among them: those that
    require a gradient, which torch refuses to show, and dtypes that numpy does not have."""
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
    """What numpy makes of numbers in nested lists, but that integers from 2**63 on beside smaller ones from 0 up remain
    integers: numpy makes floats of them."""
    array = np.asarray(value)
    if array.dtype != np.float64 or not array.size or not np.max(np.abs(array)) >= 2.0**63:
        return array
    whole = np.asarray(value, object)
    exact = all(isinstance(each, (int, np.integer)) and each >= 0 for each in whole.flat)
    return whole.astype(np.uint64) if exact else array
