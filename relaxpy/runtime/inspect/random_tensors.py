"""Random tensors on a device, made from a small block: the same numbers in every process, of any version of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK = 1 << 22
"""Different numbers; larger weights repeat them."""


@dataclass(frozen=True)
class Weight:
    """A tensor of random numbers that is made where the program runs."""

    shape: tuple[int, ...]
    dtype: str
    scale: float
    """The largest absolute value of its floats."""


def random_weight(weight: Weight) -> np.ndarray:
    """A weight's numbers: codes of any bits (uint8, int8, …), 0 and 1 for other integers, which are valid as most
    indices, floats within its scale. bfloat16 is given as uint16."""
    count = int(np.prod(weight.shape))
    size = min(count, BLOCK)
    raw = np.random.PCG64(size).random_raw(size)
    if weight.dtype.startswith("uint") or weight.dtype == "int8":
        block = (raw >> np.uint64(20)).astype(weight.dtype)
    elif weight.dtype.startswith(("int", "bool")):
        block = (raw >> np.uint64(63)).astype(weight.dtype)
    else:
        unit = (raw >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)
        values = unit * np.float32(weight.scale)
        if weight.dtype == "bfloat16":
            block = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        else:
            block = values.astype(weight.dtype)
    return np.resize(block, weight.shape)


def on_device(vm: Any, weights: Sequence[Weight]) -> list[Any]:
    """Weights in the memory of a machine's device, each in memory of its own: one of a kind is copied from the host,
    the others on the device."""
    made: dict[Weight, Any] = {}
    found: list[Any] = []
    for weight in weights:
        if weight in made:
            found.append(made[weight].copy())
            continue
        tensor = vm.upload(random_weight(weight))
        if weight.dtype == "bfloat16":
            tensor = tensor.view(weight.shape, weight.dtype)
        made[weight] = tensor
        found.append(tensor)
    return found
