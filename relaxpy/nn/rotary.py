"""Rotary position embeddings (Su et al., 2021): pairs of a head's elements are rotated by an angle proportional to the
token's position.

Elements i and i + width / 2 are a pair, as in transformers and its checkpoints. At position p the pair is rotated by p
· frequency[i]. Angles are float32 whatever the dtype of the model: bfloat16 cannot represent all integer positions
above 256.

For longer contexts the frequencies are scaled. What depends on the length of the sequence (dynamic NTK, LongRoPE) is
computed in the program, from the last position of the call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir import Dim
from relaxpy.ir.dim import DimLike
from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import options
from relaxpy.nn.module import Module
from relaxpy.nn.tensor import Tensor


@dataclass(frozen=True)
class Scaling:
    """A change of the frequencies for longer contexts."""

    @property
    def by_length(self) -> bool:
        """Whether the frequencies depend on the length of the sequence."""
        return False

    def fixed(self, _context: int) -> Scaling:
        """The same frequencies for all sequences, if there are such: those of sequences as long as the context."""
        return self

    @property
    def magnitude(self) -> float:
        """A factor of cosines and sines, and so of queries and keys."""
        return 1.0

    def static(self, theta: float, width: int) -> np.ndarray:
        """The frequencies of a width, float64; for sequences of the original length where they depend on it."""
        return default_frequencies(theta, width)

    def dynamic(self, theta: float, width: int, length: Tensor) -> Tensor:
        """The frequencies (width / 2,) float32 in a program, for a length (1,) float32."""
        raise NotImplementedError


def default_frequencies(theta: float, width: int) -> np.ndarray:
    """The frequency of each pair without scaling, float64."""
    return theta ** -(np.arange(0, width, 2) / width)


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Linear scaling: every frequency is divided by `factor`."""

    factor: float

    def static(self, theta: float, width: int) -> np.ndarray:
        return default_frequencies(theta, width) / self.factor


@dataclass(frozen=True)
class FactorScaling(Scaling):
    """Every frequency is divided by a factor of its own: how GGUF files have that of Llama 3."""

    factors: tuple[float, ...]

    def static(self, theta: float, width: int) -> np.ndarray:
        return default_frequencies(theta, width) / by_pair(self.factors, width)


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Frequency scaling of Llama 3.1 for longer contexts: low frequencies are divided by `factor`, high frequencies are
    kept, and frequencies between are interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def static(self, theta: float, width: int) -> np.ndarray:
        frequencies = default_frequencies(theta, width)
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        band = self.high_freq_factor - self.low_freq_factor
        kept = np.clip((turns - self.low_freq_factor) / band, 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class DynamicScaling(Scaling):
    """Dynamic NTK scaling: beyond `max_position_embeddings` the base grows with the length of the sequence."""

    factor: float
    max_position_embeddings: int

    @property
    def by_length(self) -> bool:
        return True

    def dynamic(self, theta: float, width: int, length: Tensor) -> Tensor:
        longest = float(self.max_position_embeddings)
        stretch = op.maximum(length, longest) * (self.factor / longest) - (self.factor - 1)
        # theta and the stretch apart: the exponents of both are exact in float32
        power = -(np.arange(0, width, 2) / (width - 2)).astype(np.float32)
        return op.exp(op.log(stretch) * power) * default_frequencies(theta, width).astype(
            np.float32
        )


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """YaRN (Peng et al., 2023): high frequencies are kept, low ones divided by `factor`, with a ramp between, and
    queries and keys grow with the factor."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._grown(self.mscale) / self._grown(self.mscale_all_dim)
        return self._grown(1.0)

    def _grown(self, scale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * scale * math.log(self.factor) + 1.0

    def static(self, theta: float, width: int) -> np.ndarray:
        def pair_of(turns: float) -> float:
            """The pair, as a real number, that turns so often within the original context."""
            length = self.original_max_position_embeddings
            return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = pair_of(self.beta_fast or 32), pair_of(self.beta_slow or 1)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        high = high + 0.001 if low == high else high
        divided = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
        frequencies = default_frequencies(theta, width)
        return frequencies * (1 - divided) + frequencies / self.factor * divided


@dataclass(frozen=True)
class LongRopeScaling(Scaling):
    """LongRoPE (Ding et al., 2024): every frequency is divided by a factor of its own, of `long_factor` if the sequence
    is longer than the original context, else of `short_factor`; by the length of each call, or by a context that is
    fixed."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float
    attention_factor: float | None = None
    context: int | None = None
    """The length that decides for all sequences; None: that of each call."""

    @property
    def by_length(self) -> bool:
        return self.context is None

    def fixed(self, context: int) -> Scaling:
        return replace(self, context=context)

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        original = math.log(self.original_max_position_embeddings)
        return 1.0 if self.factor <= 1 else math.sqrt(1 + math.log(self.factor) / original)

    def static(self, theta: float, width: int) -> np.ndarray:
        is_long = (self.context or 0) > self.original_max_position_embeddings
        factors = self.long_factor if is_long else self.short_factor
        return default_frequencies(theta, width) / by_pair(factors, width)

    def dynamic(self, theta: float, width: int, length: Tensor) -> Tensor:
        default = default_frequencies(theta, width)
        short, long = (
            (default / by_pair(each, width)).astype(np.float32)
            for each in (self.short_factor, self.long_factor)
        )
        return op.where(length > float(self.original_max_position_embeddings), long, short)


def by_pair(factors: tuple[float, ...], width: int) -> np.ndarray:
    """The factors of the pairs of a head. Raises: UsageError (`bad-config`) if there are more or less of them."""
    if len(factors) != width // 2:
        raise UsageError(
            "bad-config",
            f"the rotary embeddings have {len(factors)} factors, and a head of width {width} {width // 2} pairs",
        )
    return np.array(factors)


SCALINGS: Mapping[str, type[Scaling] | None] = {
    "default": None,
    "linear": LinearScaling,
    "dynamic": DynamicScaling,
    "yarn": YarnScaling,
    "longrope": LongRopeScaling,
    "su": LongRopeScaling,
    "llama3": Llama3Scaling,
    "factors": FactorScaling,
}
"""`rope_type` of a configuration → scaling ("su" is the older name of LongRoPE)."""


@dataclass(frozen=True)
class Rope:
    """The base and the scaling of the rotation frequencies, and the part of a head that is rotated."""

    theta: float = 10000.0
    scaling: Scaling | None = None
    partial: float = 1.0
    """The share of a head's elements, from its first on, that are rotated."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Rope:
        """Read the fields of a `config.json`: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`.
        UsageError (`bad-config`) for an unknown `rope_type`, or one whose fields are missing."""
        given = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(given, Mapping):
            raise UsageError("bad-config", f"the rotary embeddings have no fields: {given!r}")
        theta = _number("rope_theta", given.get("rope_theta", config.get("rope_theta", cls.theta)))
        share = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        partial = _number("partial_rotary_factor", share)
        if theta <= 0 or not 0 < partial <= 1:
            raise UsageError(
                "bad-config",
                f"rope_theta must be above 0, and partial_rotary_factor from 0 to 1, got {theta} and {partial}",
            )
        kind = given.get("rope_type", given.get("type", "default"))
        if not isinstance(kind, str) or kind not in SCALINGS:
            raise UsageError(
                "bad-config",
                f"unknown type of rotary embeddings {kind!r}",
                help=f"one of {', '.join(SCALINGS)}",
            )
        scaling = SCALINGS[kind]
        if scaling is None:
            return cls(theta, None, partial)
        return cls(theta, scaling(**_fields(scaling, kind, given, config)), partial)

    def fixed(self, context: int) -> Rope:
        """The same with frequencies that do not depend on the length of a sequence, where the scaling has such: those
        of sequences as long as the context."""
        return self if self.scaling is None else replace(self, scaling=self.scaling.fixed(context))

    def rotated(self, width: int) -> int:
        """The number of elements of a head of `width` that are rotated."""
        return int(width * self.partial)

    def frequencies(self, width: int) -> np.ndarray:
        """The frequency of each pair of a head of `width`, in radians per position: (pairs,) float32. Where they
        depend on the length of the sequence: those of sequences within the original context."""
        found = (self.scaling or Scaling()).static(self.theta, self.rotated(width))
        return found.astype(np.float32)

    def angles(
        self, start: DimLike, count: DimLike, width: int, limit: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines for the positions from `start` to `start + count - 1`: (count, 1, pairs) float32 each. With
        a `limit`, a check at run time requires positions below it."""
        start, count = Dim.of(start), Dim.of(count)
        positions = op.arange(start, start + count)
        if limit is not None:
            positions = op.check_range(positions, limit, "positions")
        return self._turned(op.reshape(positions, (count, 1)), width, start + count)

    def angles_at(self, positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines for any positions, integers (tokens,) or (batch, tokens): (..., tokens, 1, pairs) float32
        each."""
        length = None
        if self.scaling is not None and self.scaling.by_length:
            length = op.reshape(op.max(positions), (1,)) + 1
        return self._turned(op.expand_dims(positions, -1), width, length)

    def _turned(self, positions: Tensor, width: int, length: Any) -> tuple[Tensor, Tensor]:
        """Angles for positions (..., 1) in sequences of a length, a dimension or a tensor (1,)."""
        scaling = self.scaling or Scaling()
        frequencies: Any = self.frequencies(width)
        if scaling.by_length:
            if isinstance(length, Dim):
                length = op.arange(length, length + 1)
            frequencies = scaling.dynamic(
                self.theta, self.rotated(width), op.astype(length, "float32")
            )
        angles = op.expand_dims(op.astype(positions, "float32"), -1) * frequencies
        cosines, sines = op.cos(angles), op.sin(angles)
        if scaling.magnitude == 1.0:
            return cosines, sines
        return cosines * scaling.magnitude, sines * scaling.magnitude


def _fields(
    scaling: type[Scaling], kind: str, given: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a scaling from a configuration. Some are the model's. Raises UsageError (`bad-config`)."""
    values = {name: x for name, x in given.items() if x is not None and name != "context"}
    longest = config.get("max_position_embeddings")
    # The model's own goes first, as in transformers.
    original = config.get("original_max_position_embeddings")
    if original is None:
        original = values.get("original_max_position_embeddings", longest)
    if scaling in (LongRopeScaling, YarnScaling) and original and longest:
        values.setdefault("factor", longest / original)
    if scaling is LongRopeScaling:
        values.setdefault("factor", 1.0)
    if original is not None:
        values["original_max_position_embeddings"] = original
    if longest is not None:
        values["max_position_embeddings"] = longest
    known = {field.name: field for field in fields(scaling)}
    required = {name for name, field in known.items() if field.default is MISSING}
    if missing := sorted(required - values.keys()):
        raise UsageError(
            "bad-config", f"rotary embeddings of type {kind!r} lack {', '.join(missing)}"
        )
    return {name: _checked(name, values[name]) for name in known if name in values}


def _checked(name: str, value: Any) -> Any:
    """A field of a scaling: a number, a bool, or several numbers. Raises: UsageError (`bad-config`)."""
    if isinstance(value, list | tuple):
        return tuple(_number(name, each) for each in value)
    if isinstance(value, bool):
        return value
    number = _number(name, value)
    if number < 0 or (number == 0 and not name.startswith("mscale")):  # an mscale of 0 is none
        raise UsageError("bad-config", f"{name} must be above 0, got {value!r}")
    return value


def _number(name: str, value: Any) -> float:
    """The number. Raises: UsageError (`bad-config`) for anything else."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_one or not abs(value) < 1e38:
        raise UsageError("bad-config", f"{name} must be a number, got {value!r}")
    return float(value)


def by_section(cosines: Tensor, sines: Tensor, sections: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The angles (tokens, 1, pairs) of tokens that have several positions, of the angles of each position (positions,
    tokens, 1, pairs): the first sections[0] pairs are rotated by the first position, and so on (M-RoPE, Wang et al.,
    2024)."""
    count, ends = len(sections), np.cumsum(sections)[:-1].tolist()

    def chosen(angles: Tensor) -> Tensor:
        parts = op.split(angles, ends, axis=-1)
        own = [op.split(part, count, axis=0)[i] for i, part in enumerate(parts)]
        return op.squeeze(op.concat(own, axis=-1), 0)

    return chosen(cosines), chosen(sines)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate every pair of x (batch, seq, heads, width) by the angles of its token, in the dtype of x. If there are
    fewer angles than pairs, the last elements of a head stay. Pairs are i and i + half, or neighbours if
    `interleaved`."""
    dtype, width = x.dtype, x.shape[-1]
    turned = 2 * cosines.shape[-1]
    rest: list[Tensor] = []
    if turned != width:
        assert turned.value is not None, "the number of angles is known when exporting"
        x, kept = op.split(x, [turned.value], axis=-1)
        rest.append(kept)
    x = op.astype(x, "float32")
    if interleaved:
        pairs = op.reshape(x, (*x.shape[:-1], cosines.shape[-1], 2))
        first, second = (op.squeeze(part, -1) for part in op.split(pairs, 2, axis=-1))
    else:
        first, second = op.split(x, 2, axis=-1)
    parts = (first * cosines - second * sines, second * cosines + first * sines)
    if interleaved:
        y = op.reshape(op.stack(parts, axis=-1), x.shape)
    else:
        y = op.concat(parts, axis=-1)
    y = op.astype(y, dtype)
    return op.concat((y, *rest), axis=-1) if rest else y


class RotaryEmbedding(Module):
    """Rotates queries or keys by their positions. `rope` has the frequencies: `nn.Rope(theta, scaling, partial)`, or
    `nn.Rope.from_dict(config)`."""

    def __init__(self, width: int, rope: Rope | None = None, interleaved: bool = False) -> None:
        rope = rope or Rope()
        if rope.rotated(width) % 2 or not rope.rotated(width):
            raise mistake(
                "bad-spec",
                f"the number of rotated elements must be even, got {rope.rotated(width)} of {width}",
            )
        self.width, self.rope, self.interleaved = width, rope, interleaved

    def extra_repr(self) -> str:
        return options(width=self.width, theta=self.rope.theta)

    def forward(self, x: Tensor, positions: Any = 0) -> Tensor:
        """(batch, tokens, heads, width) → the same shape. `positions` is the position of the first token, a number or a
        dimension, or a tensor of all, (tokens,) or (batch, tokens)."""
        if isinstance(positions, Tensor):
            angles = self.rope.angles_at(positions, self.width)
        else:
            angles = self.rope.angles(positions, x.shape[1], self.width)
        return rotate(x, *angles, interleaved=self.interleaved)
