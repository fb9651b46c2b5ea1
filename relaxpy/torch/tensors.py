"""Tensors of torch and of the runtime, in each other's memory, on the CPU.

As DLPack exchanges them, in a fraction of the time: a call of a small graph would spend most of its time there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from relaxpy.frontend.torch.arrays import as_stored, dtype_of
from relaxpy.ir import DType
from relaxpy.runtime.pool import Block
from relaxpy.runtime.tensor import Tensor, address_of, tensor_at

_BYTES = np.dtype(np.uint8)


def entered(tensor: torch.Tensor, dtype: str) -> Tensor:
    """A tensor of torch as one of the runtime; a copy if it is not contiguous."""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor_at(tensor.data_ptr(), tuple(tensor.shape), dtype, tensor)


def argument(value: Any) -> Any:
    """An argument of a call: a plain tensor in the memory of the CPU as one of the runtime, others as they are."""
    if (
        value.__class__ in _PLAIN
        and value.is_cpu
        and value.layout is torch.strided
        and not value.is_neg()
        and not value.is_complex()
        and value.numel()
    ):
        return entered(value, _name(value.dtype))
    return value


_PLAIN = (torch.Tensor, torch.nn.Parameter)


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype_of(dtype))


@cache
def _stored(dtype: str) -> tuple[np.dtype[Any], torch.dtype | None]:
    """The dtype of the array that torch takes, and the one that it is a view as."""
    stored = as_stored(DType(dtype))
    return stored, None if stored == DType(dtype).numpy else getattr(torch, dtype)


def left(tensor: Tensor) -> torch.Tensor:
    """A result of the runtime as a tensor of torch."""
    memory = tensor.owner
    stored, dtype = _stored(tensor.dtype)
    if isinstance(memory, np.ndarray) and memory.dtype is _BYTES:
        array: Any = np.ndarray(tensor.shape, stored, memory, tensor.pointer - address_of(memory))
    else:
        array = tensor.numpy()
        array = array if dtype is None else array.view(stored)
    found = torch.from_numpy(array)
    return found if dtype is None else found.view(dtype)


def left_apart(results: Sequence[Any], given: Iterable[Any] = ()) -> list[Any]:
    """Results as tensors of torch, each in memory of its own; numbers as they are. If two results are the same values,
    or one is an argument, the program gives the same memory, where torch has copies. `given` are the arguments that
    are no `argument` yet."""
    seen: set[int] = set()
    taken = {each.data_ptr() for each in given if isinstance(each, torch.Tensor)}
    found: list[Any] = []
    for each in results:
        if each.__class__ is not Tensor:  # a number, or on a device
            found.append(torch.from_dlpack(each) if hasattr(each, "__dlpack__") else each)
            continue
        tensor = left(each)
        owner = each.owner
        if owner.__class__ not in _OWNERS or id(owner) in seen or each.pointer in taken:
            tensor = tensor.clone()
        seen.add(id(owner))
        found.append(tensor)
    return found


_OWNERS = (np.ndarray, Block)
"""The owners of memory that a call allocates."""
