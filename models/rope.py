"""Rotary position embeddings (Su et al., 2021): pairs of a head's elements are rotated by an angle proportional to the
token's position.

Elements i and i + width / 2 are a pair, as in transformers and its checkpoints. At position p the pair is rotated by p
· frequency[i]. Angles are float32 whatever the dtype of the model: bfloat16 cannot represent all integer positions
above 256.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import Dim
from relaxpy.nn import op


@dataclass(frozen=True)
class Llama3Scaling:
    """Frequency scaling of Llama 3.1 for longer contexts: low frequencies are divided by `factor`, high frequencies are
    kept, and frequencies between are interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        band = self.high_freq_factor - self.low_freq_factor
        kept = np.clip((turns - self.low_freq_factor) / band, 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class LinearScaling:
    """Linear scaling: every frequency is divided by `factor`."""

    factor: float

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        return frequencies / self.factor


SCALINGS: Mapping[str, type[Llama3Scaling | LinearScaling] | None] = {
    "default": None,
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
}
"""`rope_type` of a configuration → frequency scaling."""


@dataclass(frozen=True)
class Rope:
    """The base and the scaling of the rotation frequencies."""

    theta: float = 10000.0
    scaling: Llama3Scaling | LinearScaling | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Rope:
        """Read the fields of a `config.json`: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`.
        UsageError for an unknown `rope_type`."""
        given = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        theta = given.get("rope_theta", fields.get("rope_theta", cls.theta))
        kind = given.get("rope_type", given.get("type", "default"))
        if kind not in SCALINGS:
            raise UsageError(
                "bad-config",
                f"unknown type of rotary embeddings {kind!r}",
                help=f"one of {', '.join(SCALINGS)}",
            )
        scaling = SCALINGS[kind]
        if scaling is None:
            return cls(float(theta))
        names = scaling.__dataclass_fields__
        if missing := sorted(names - given.keys()):
            raise UsageError(
                "bad-config", f"rotary embeddings of type {kind!r} lack {', '.join(missing)}"
            )
        return cls(float(theta), scaling(**{name: given[name] for name in names}))

    def frequencies(self, width: int) -> np.ndarray:
        """The frequency of each pair of a head of `width`, in radians per position: (width / 2,) float32."""
        frequencies = self.theta ** -(np.arange(0, width, 2) / width)
        if self.scaling is not None:
            frequencies = self.scaling(frequencies)
        return frequencies.astype(np.float32)

    def angles(
        self, start: Dim, count: Dim, width: int, limit: int | None = None
    ) -> tuple[nn.Tensor, nn.Tensor]:
        """Cosines and sines for the positions from `start` to `start + count - 1`: (count, 1, width / 2) float32 each.
        With a `limit`, a check at run time requires positions below it."""
        positions = op.arange(start, start + count)
        if limit is not None:
            positions = op.check_range(positions, limit, "positions")
        angles = op.reshape(op.astype(positions, "float32"), (count, 1, 1))
        angles = angles * self.frequencies(width)
        return op.cos(angles), op.sin(angles)


def rotate(x: nn.Tensor, cosines: nn.Tensor, sines: nn.Tensor) -> nn.Tensor:
    """Rotate every pair of x (batch, seq, heads, width) by the angles of its token, in the dtype of x."""
    first, second = op.split(op.astype(x, "float32"), 2, axis=-1)
    turned = op.concat(
        (first * cosines - second * sines, second * cosines + first * sines), axis=-1
    )
    return op.astype(turned, x.dtype)
