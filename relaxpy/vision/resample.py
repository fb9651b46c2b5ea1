"""A part of a picture that is resized, without the rest: for pictures that are long and thin, whose shorter side is
enlarged, and which are cropped then. Equal to Pillow's `resize`, pixel for pixel.

Pillow resizes the rows first and then the columns, each rounded to bytes, with weights that are integers of 22 bits
after the point.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_BITS = 32 - 8 - 2
"""Bits after the point: a sum of 8 bits more, and of weights that add up to less than 4, is an int32."""


def _bicubic(x: np.ndarray) -> np.ndarray:
    a = -0.5
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _bilinear(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    return np.where(x < 1.0, 1.0 - x, 0.0)


def _sinc(x: np.ndarray) -> np.ndarray:
    angle = np.where(x == 0.0, 1.0, x * math.pi)
    return np.where(x == 0.0, 1.0, np.sin(angle) / angle)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where((x >= -3.0) & (x < 3.0), _sinc(x) * _sinc(x / 3), 0.0)


def _box(x: np.ndarray) -> np.ndarray:
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _hamming(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    angle = np.where(x == 0.0, 1.0, x * math.pi)
    near = (
        np.sin(angle) / angle * (float(np.float32(0.54)) + float(np.float32(0.46)) * np.cos(angle))
    )
    return np.where(x == 0.0, 1.0, np.where(x >= 1.0, 0.0, near))


FILTERS: dict[int, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    1: (_lanczos, 3.0), 2: (_bilinear, 1.0), 3: (_bicubic, 2.0), 4: (_box, 0.5), 5: (_hamming, 1.0),
}  # fmt: skip
"""Pillow's number of a filter → its function and support. Number 0, the nearest pixel, is none."""


def resized_part(
    pixels: np.ndarray, size: tuple[int, int], filter: int, top: int, left: int, shape: tuple[int, int]
) -> np.ndarray:  # fmt: skip
    """The part from row `top` and column `left`, of a shape (height, width), of pixels (height, width, channels) uint8
    that are resized to `size` (height, width)."""
    across = _one_axis(pixels, 1, size[1], filter, left, shape[1])
    return _one_axis(across, 0, size[0], filter, top, shape[0])


def _one_axis(
    pixels: np.ndarray, axis: int, size: int, filter: int, start: int, count: int
) -> np.ndarray:
    """Resize one axis to `size`, of which `count` places from `start` are wanted."""
    have = pixels.shape[axis]
    places = np.arange(start, start + count)
    if size == have:
        return pixels.take(places, axis=axis)
    function, support = FILTERS[filter]
    scale = have / size
    wide = max(scale, 1.0)
    support *= wide
    centers = (places + 0.5) * scale
    first = np.maximum((centers - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centers + support + 0.5).astype(np.int64), have)
    taps = np.arange(int((last - first).max()))
    weights = function((taps + first[:, None] - centers[:, None] + 0.5) * (1.0 / wide))
    weights = np.where(taps < (last - first)[:, None], weights, 0.0)
    total = np.zeros(count)
    for tap in taps:  # in Pillow's order
        total += weights[:, tap]
    weights = weights / np.where(total != 0.0, total, 1.0)[:, None]
    fixed = np.trunc(np.where(weights < 0, -0.5, 0.5) + weights * (1 << _BITS)).astype(np.int64)
    along = np.moveaxis(pixels, axis, 0)
    found = np.full((count, *along.shape[1:]), 1 << (_BITS - 1), np.int64)
    for tap in taps:
        read = along[np.minimum(first + tap, have - 1)].astype(np.int64)
        found += read * fixed[:, tap].reshape(-1, *([1] * (along.ndim - 1)))
    return np.moveaxis(np.clip(found >> _BITS, 0, 255).astype(np.uint8), 0, axis)
