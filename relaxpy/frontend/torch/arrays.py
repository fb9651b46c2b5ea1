"""Torch's tensors and dtypes as numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy.errors import Span
from relaxpy.frontend.dtypes import taken
from relaxpy.ir import DType


def dtype_of(value: Any, span: Span | None = None) -> DType:
    """The dtype of a torch tensor, or of a torch dtype. UsageError (`torch-dtype`) for complex numbers and others that
    there are no tensors of."""
    name = str(getattr(value, "dtype", value)).removeprefix("torch.")
    return taken(name, "torch-dtype", "tensors", "convert it with .to(torch.float32)", span)


def array_of(tensor: Any) -> np.ndarray:
    """A torch tensor as an array, in the same memory if it is contiguous and on the CPU."""
    import torch

    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    dtype = dtype_of(tensor)
    stored = as_stored(dtype)
    if stored == dtype.numpy:
        return tensor.numpy()
    return tensor.view(getattr(torch, str(stored))).numpy().view(dtype.numpy)


def tensor_of(array: np.ndarray) -> Any:
    """An array as a torch tensor, in the same memory."""
    import torch

    dtype = DType(array.dtype)
    stored = as_stored(dtype)
    if stored == dtype.numpy:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(stored)).view(getattr(torch, dtype))


def as_stored(dtype: DType) -> np.dtype[Any]:
    """The dtype that torch exchanges with numpy for one: numpy's own, or for a float that numpy itself does not have an
    integer of its width."""
    if dtype.numpy.kind in "biuf" and not dtype.startswith(("bfloat", "float8")):
        return dtype.numpy
    return np.dtype(np.uint8 if dtype.itemsize == 1 else np.uint16)
