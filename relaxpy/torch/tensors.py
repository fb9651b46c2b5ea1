"""Tensors of torch and of the runtime, in each other's memory, on the CPU.

As DLPack exchanges them, in a fraction of the time: a call of a small graph would spend most of its time there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from relaxpy.frontend.torch.arrays import tensor_of
from relaxpy.ir import DType
from relaxpy.runtime.tensor import Tensor, address_of, tensor_at


def entered(tensor: torch.Tensor, dtype: str) -> Tensor:
    """A tensor of torch as one of the runtime; a copy if it is not contiguous."""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor_at(tensor.data_ptr(), tuple(tensor.shape), dtype, tensor)


def left(tensor: Tensor) -> torch.Tensor:
    """A result of the runtime as a tensor of torch."""
    memory = tensor.owner
    if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8:
        return tensor_of(tensor.numpy())
    begin = tensor.pointer - address_of(memory)
    part = memory[begin : begin + tensor.nbytes]
    return tensor_of(part.view(DType(tensor.dtype).numpy).reshape(tensor.shape))


def left_apart(results: Sequence[Any], given: Iterable[Any] = ()) -> list[Any]:
    """Results as tensors of torch, each in memory of its own; numbers as they are. If two results are the same values,
    or one is an argument, the program gives the same memory, where torch has copies. `given` are the arguments."""
    seen: set[int] = set()
    taken = {each.data_ptr() for each in given if isinstance(each, torch.Tensor)}
    found: list[Any] = []
    for each in results:
        if each.__class__ is not Tensor:  # a number, or on a device
            found.append(torch.from_dlpack(each) if hasattr(each, "__dlpack__") else each)
            continue
        tensor = left(each)
        owner = each.owner
        if owner.__class__ is not np.ndarray or id(owner) in seen or each.pointer in taken:
            tensor = tensor.clone()
        seen.add(id(owner))
        found.append(tensor)
    return found
