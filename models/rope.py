"""Rotary position embeddings (Su et al., 2021): pairs of a head's elements turn with the token's position.

Element i and element i + width / 2 are a pair, as in transformers and in its checkpoints; the pair at place p is turned
by p · frequency[i]. Angles are float32 whatever the model computes in: in bfloat16 the positions above 256 would not be
whole.
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
    """Llama 3.1's way to longer texts: slow pairs turn `factor` times slower, fast ones as before, those between by a
    mean of both."""

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
    """Every pair turns `factor` times slower."""

    factor: float

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        return frequencies / self.factor


SCALINGS: Mapping[str, type[Llama3Scaling | LinearScaling] | None] = {
    "default": None,
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
}
"""`rope_type` of a configuration → how its frequencies are scaled."""


@dataclass(frozen=True)
class Rope:
    """How fast the pairs turn."""

    theta: float = 10000.0
    scaling: Llama3Scaling | LinearScaling | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Rope:
        """From the fields of a `config.json`: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`.
        UsageError for a kind that is not known."""
        given = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        theta = given.get("rope_theta", fields.get("rope_theta", cls.theta))
        kind = given.get("rope_type", given.get("type", "default"))
        if kind not in SCALINGS:
            raise UsageError(
                "bad-config",
                f"rotary embeddings of type {kind!r} are not known",
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
        """Radians a position for each pair of a head of `width`: (width / 2,) float32."""
        frequencies = self.theta ** -(np.arange(0, width, 2) / width)
        if self.scaling is not None:
            frequencies = self.scaling(frequencies)
        return frequencies.astype(np.float32)

    def angles(
        self, start: Dim, count: Dim, width: int, limit: int | None = None
    ) -> tuple[nn.Tensor, nn.Tensor]:
        """Cosines and sines of the positions `start`, `start + 1`, …: (count, 1, width / 2) float32 each. The positions
        are checked to be below the `limit`, if there is one."""
        positions = op.arange(start, start + count)
        if limit is not None:
            positions = op.check_range(positions, limit, "positions")
        angles = op.reshape(op.astype(positions, "float32"), (count, 1, 1))
        angles = angles * self.frequencies(width)
        return op.cos(angles), op.sin(angles)


def rotate(x: nn.Tensor, cosines: nn.Tensor, sines: nn.Tensor) -> nn.Tensor:
    """X (batch, seq, heads, width), every pair turned by the angles of its token, in the dtype of x."""
    first, second = op.split(op.astype(x, "float32"), 2, axis=-1)
    turned = op.concat(
        (first * cosines - second * sines, second * cosines + first * sines), axis=-1
    )
    return op.astype(turned, x.dtype)
