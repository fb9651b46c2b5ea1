"""Library functions and functions of the runtime for random programs, in Python. Importing this module registers them.
It needs only the runtime."""

from __future__ import annotations

import numpy as np

from relaxpy.runtime.library import register_function, register_library
from relaxpy.runtime.tensor import Tensor, from_numpy


def _halved(x: Tensor, out: Tensor) -> None:
    out.numpy()[...] = (x.numpy() / 2).astype(out.numpy().dtype)


def _parts(x: Tensor, low: Tensor, high: Tensor) -> None:
    low.numpy()[...] = np.minimum(x.numpy(), 0)
    high.numpy()[...] = np.maximum(x.numpy(), 0)


def _reversed(x: Tensor) -> Tensor:
    return from_numpy(np.ascontiguousarray(x.numpy()[::-1]))


def _positive(x: Tensor) -> Tensor:
    array = x.numpy().reshape(-1)
    return from_numpy(np.ascontiguousarray(array[array > 0]))


register_library("relaxpy.testing.halved", _halved)
register_library("relaxpy.testing.parts", _parts)
register_function("relaxpy.testing.reversed", _reversed)
register_function("relaxpy.testing.positive", _positive)
