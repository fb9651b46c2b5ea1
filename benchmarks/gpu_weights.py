"""Random weights on a device, made from a small block: the same numbers in every process, of any version of numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu_plan import Weight

BLOCK = 1 << 22
"""Different numbers; larger weights repeat them."""


def random_weight(weight: Weight) -> np.ndarray:
    """A weight's numbers: codes of any bits, floats within its scale. bfloat16 is given as uint16."""
    count = int(np.prod(weight.shape))
    size = min(count, BLOCK)
    raw = np.random.PCG64(size).random_raw(size)
    if weight.dtype.startswith("uint"):
        block = (raw >> np.uint64(20)).astype(weight.dtype)
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
