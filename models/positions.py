"""How models with an encoder know positions without a table that is learned: by sines that are added to embeddings, or
by a number for each head and distance that is added to the scores of attention."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from relaxpy import nn
from relaxpy.ir.dim import Dim
from relaxpy.nn import op

Sinusoids = Literal["", "marian", "m2m_100"]


def sinusoids(kind: Sinusoids, hidden: int, count: int) -> np.ndarray:
    """The computed positions (count, hidden) float32: sines and then cosines of the positions at geometric frequencies
    (Vaswani et al., 2017), as the two families have them."""
    half = (hidden + 1) // 2
    if kind == "marian":
        angles = np.arange(count)[:, None] / 10000 ** (2 * np.arange(half) / hidden)
        found = np.concatenate([np.sin(angles), np.cos(angles[:, : hidden // 2])], 1)
        return found.astype(np.float32)
    half = hidden // 2
    falling = -np.float32(math.log(10000) / max(half - 1, 1))
    step = np.exp(np.arange(half, dtype=np.float32) * falling)
    angles = (np.arange(count, dtype=np.float32) + 2)[:, None] * step
    found = np.concatenate(
        [np.sin(angles), np.cos(angles), np.zeros((count, hidden % 2), np.float32)], 1
    )
    return found.astype(np.float32)


def buckets_of(distances: np.ndarray, count: int, most: int) -> np.ndarray:
    """The bucket of distances that are not negative, of so many: half of them have a distance each, the others grow
    geometrically up to a distance `most` (Raffel et al., 2019)."""
    exact = count // 2
    far = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    far = far / np.float32(math.log(most / exact)) * np.float32(count - exact)
    return np.where(
        distances < exact, distances, np.minimum(exact + far.astype(np.int64), count - 1)
    )


class DistanceBias(nn.Module):
    """The biases of T5: for each head, a number for each bucket of distances."""

    def __init__(self, buckets: int, most: int, heads: int, dtype: str) -> None:
        """`most`: from which distance on all are in one bucket."""
        self.most, self.dtype = most, dtype
        self.weight = nn.Parameter((buckets, heads), dtype)

    def after(self) -> nn.Tensor:
        """Those of the keys up to a query's own, as `nn.paged_attention` takes them: (heads, reach)."""
        count = self.weight.shape[0]
        found = buckets_of(np.arange(self.most + 1), count, self.most)
        reach = int(np.flatnonzero(found < count - 1)[-1]) + 2
        return self._of(found[reach - 1 :: -1].copy())

    def among(self, count: Dim) -> nn.Tensor:
        """Those of all of so many positions for each of them: (1, heads, count, count)."""
        half = self.weight.shape[0] // 2
        before = buckets_of(np.arange(self.most, 0, -1), half, self.most)
        behind = half + buckets_of(np.arange(1, self.most + 1), half, self.most)
        table = self._of(np.concatenate([before, [0], behind]))
        at = op.arange(count)
        far = op.expand_dims(at, 0) - op.expand_dims(at, 1)
        far = op.maximum(op.minimum(far, self.most), -self.most) + self.most
        heads = table.shape[0]
        found = op.take(table, op.reshape(far, (count * count,)), axis=1)
        return op.reshape(found, (1, heads, count, count))

    def _of(self, buckets: np.ndarray) -> nn.Tensor:
        """(heads, buckets that are given)."""
        return op.permute_dims(op.take(self.weight, buckets.astype(np.int64), axis=0), (1, 0))
