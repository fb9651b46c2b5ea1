"""Encoders of sound that are trained with connectionist temporal classification (Graves et al., 2006): the logits of a
token for each frame, one of which is the blank. What the families share.

A family is a file that reads its `config.json` into a `CtcConfig`, builds its modules, and says where its weights are
(`relaxpy.models.wav2vec2`). Its program has the function

    logits(samples, lengths)        (batch, samples) float32, (batch,) int64  →  (batch, frames, vocabulary) float32

for any number of recordings of any lengths. A text is that of the most probable tokens, without repetitions and blanks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import config_fields, read_config, whole
from relaxpy.models.source_attention import MASKED
from relaxpy.nn import op
from relaxpy.runtime.safetensors import Source


@dataclass(frozen=True)
class CtcConfig:
    """The fields of a checkpoint's `config.json` that all families have."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    pad_token_id: int
    """The token of the blank."""

    model_type: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]]
    """What transformers takes where `config.json` has no field."""
    rate: ClassVar[int] = 16_000
    """Samples a second."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UsageError(
                "bad-config",
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}",
            )
        if self.pad_token_id >= self.vocab_size:
            raise UsageError(
                "bad-config",
                f"pad_token_id {self.pad_token_id}, the blank, is not below vocab_size {self.vocab_size}",
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Read the fields of a `config.json`. Raises: UsageError (`bad-config`) for what is not supported."""
        given = {name: value for name, value in fields.items() if value is not None}
        read = cls.settings({**cls.defaults, **given})
        return cls(**config_fields(cls, {name: v for name, v in read.items() if v is not None}))

    @classmethod
    def from_checkpoint(cls, directory: Path) -> Self:
        """Read `config.json` of a checkpoint directory."""
        return cls.from_dict(read_config(directory, cls.model_type))

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What a family reads."""
        sizes = (
            "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
        )  # fmt: skip
        found = {name: whole(fields, name, most=1 << 20) for name in sizes}
        return {**found, "pad_token_id": whole(fields, "pad_token_id", least=0)}

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        raise NotImplementedError

    @property
    def reach(self) -> int:
        """The fewest samples that have a frame."""
        raise NotImplementedError

    def frames(self, samples: Any) -> Any:
        """The frames of so many samples: of numbers, dimensions or tensors."""
        raise NotImplementedError

    def module(self) -> nn.Module:
        """The model, whose functions are those of `spec`."""
        raise NotImplementedError

    def spec(self) -> dict[str, dict[str, Any]]:
        """The arguments of the functions."""
        return {
            "logits": {
                "samples": nn.spec.Tensor(("batch", "length")),
                "lengths": nn.spec.Tensor(("batch",), "int64"),
            }
        }

    def sources(self, names: Mapping[str, Any]) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names; `names` are those of the checkpoint."""
        raise NotImplementedError

    def unused(self) -> set[str]:
        """Tensors of checkpoints that no text needs."""
        return set()


def both(own: str, theirs: str, bias: bool = True) -> dict[str, Source]:
    """The checkpoint tensors of a weight and a bias."""
    parts = ("weight", "bias") if bias else ("weight",)
    return {f"{own}.{part}": Source(f"{theirs}.{part}") for part in parts}


def mask(lengths: nn.Tensor, count: Any) -> nn.Tensor:
    """(batch,) → (batch, count) bool: the positions below the lengths."""
    found = op.less(op.expand_dims(op.arange(count), 0), op.expand_dims(lengths, 1))
    return op.match_cast(found, (lengths.shape[0], count))


def score_bias(there: nn.Tensor) -> nn.Tensor:
    """What is added to the scores (batch, heads, queries, keys), so that keys (batch, keys) that are not there count
    nothing."""
    batch, keys = there.shape
    return op.reshape((op.astype(there, "float32") - 1.0) * -MASKED, (batch, 1, 1, keys))
