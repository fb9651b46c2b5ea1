"""Non-maximum suppression with numpy. The size of its result depends on the data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relaxpy.runtime.tensor import Tensor, from_numpy


def all_class_non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor,
    iou_threshold: Tensor,
    score_threshold: Tensor,
    output_format: str,
) -> tuple[Tensor, ...]:
    """The boxes that are kept for each batch and class (`R.vision.all_class_non_max_suppression`)."""
    corners, values = _wide(boxes.numpy()), _wide(scores.numpy())
    batch, classes, count = values.shape
    most = int(max_output_boxes_per_class.numpy().reshape(-1)[0])
    enough, least = (t.numpy().reshape(-1)[0] for t in (iou_threshold, score_threshold))
    kept = [
        [_selected(corners[b], values[b, c], most, enough, least) for c in range(classes)]
        for b in range(batch)
    ]
    rows = [
        np.concatenate([_rows(places, c) for c, places in enumerate(of)] or [_rows([], 0)])
        for of in kept
    ]
    if output_format == "onnx":
        numbered = [np.insert(places, 0, b, axis=1) for b, places in enumerate(rows)]
        found = np.concatenate([np.zeros((0, 3), np.int64), *numbered])
        return from_numpy(found), from_numpy(np.array([len(found)], np.int64))
    places = np.zeros((batch, classes * count, 2), np.int64)
    best = np.zeros((batch, classes * count), np.float32)
    for b, found in enumerate(rows):
        places[b, : len(found)] = found
        best[b, : len(found)] = values[b, found[:, 0], found[:, 1]]
    counts = np.array([len(found) for found in rows], np.int64)
    return from_numpy(places), from_numpy(best), from_numpy(counts)


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _rows(places: list[int], number: int) -> NDArray[np.int64]:
    """A row (class, box) for each kept box."""
    found = np.array(places, np.int64)
    return np.stack([np.full_like(found, number), found], axis=1)


def _selected(
    boxes: NDArray[Any], scores: NDArray[Any], most: int, enough: float, least: float
) -> list[int]:
    """The kept boxes of one class, highest score first. Boxes with equal scores keep their order."""
    places = np.flatnonzero(scores > least)
    places = places[np.argsort(-scores[places], kind="stable")]
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    areas = (high - low).prod(axis=1)
    kept: list[int] = []
    while len(places) and len(kept) < most:
        first, places = int(places[0]), places[1:]
        kept.append(first)
        sides = np.minimum(high[first], high[places]) - np.maximum(low[first], low[places])
        both = np.maximum(sides, 0).prod(axis=1)
        total = areas[first] + areas[places] - both
        flat = total <= 0
        overlaps = np.where(flat, 0, both / np.where(flat, 1, total))
        places = places[~(overlaps >= enough)]
    return kept
