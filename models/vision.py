"""What a decoder sees pictures by: a tower, and a projector that makes rows of its states, each of which stands for a
token in a step (`relaxpy.models.decoder.Decoder.step`).

    rows = vm["encode_picture"](pixels)                           → (tokens of the picture, hidden) float32
    logits = vm["step"](tokens, …, caches, embeds, sources)       sources (tokens,): a row, or -1 for the table

A family subclasses `VisionConfig` (`relaxpy.models.llava`). The decoder is that of any family of language models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from relaxpy import nn
from relaxpy.models.checkpoint import Source
from relaxpy.nn import op
from relaxpy.serve.pictures import PictureShape

if TYPE_CHECKING:
    from relaxpy.models.decoder_config import DecoderConfig


@dataclass(frozen=True)
class VisionConfig(ABC):
    """The configuration of what sees pictures."""

    token: int
    """The number of the token that stands for a picture's places in prompts."""

    @property
    def sections(self) -> tuple[int, ...]:
        """How many pairs of a head each of several positions of a token rotates (M-RoPE); (): its place does."""
        return ()

    @property
    def spans(self) -> bool:
        """Whether a picture's tokens attend to each other, also to later ones."""
        return False

    @abstractmethod
    def module(self, config: DecoderConfig) -> nn.Module:
        """Tower and projector, for the decoder of this configuration. Called with the inputs of `spec` by name, they
        give the rows (tokens of the picture, hidden)."""

    def shape(self, hidden: int) -> PictureShape:
        """What is known of its pictures where the model's code is not: `hidden` are the decoder's numbers of a row."""
        return PictureShape(hidden, self.token)

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """The inputs of `encode_picture`: those of one picture."""

    def step_spec(self, hidden: int) -> dict[str, Any]:
        """The arguments that a step has beside those for texts; `hidden` are the decoder's numbers of a row."""
        found = {
            "embeds": nn.spec.Tensor(("embedded", hidden), "float32"),
            "sources": nn.spec.Tensor(("count",), "int32"),
        }
        if self.sections:
            found["turns"] = nn.spec.Tensor((len(self.sections), "count"), "int64")
        if self.spans:
            found["lasts"] = nn.spec.Tensor(("count",), "int64")
        return found

    @property
    def most_tokens(self) -> int:
        """The most tokens of a picture, for plans of memory; 0: unknown."""
        return 0

    def largest(self) -> dict[str, int]:
        """The values of the symbolic variables of `encode_picture`, by their names, for a picture of the most
        tokens."""
        return {}

    @abstractmethod
    def sources_in(self, names: Iterable[str]) -> dict[str, Source]:
        """The checkpoint tensor of each parameter of the module, in a checkpoint with tensors of these names."""

    @abstractmethod
    def unused(self) -> Collection[str]:
        """Tensors of a checkpoint that it does not need, by all names that they have."""

    def with_decoder(self, layout: Mapping[str, Source]) -> list[dict[str, Source]]:
        """All ways in which checkpoints have the tensors of the decoder, which are in `layout` where it is alone."""
        return [
            {own: renamed(source, place) for own, source in layout.items()} for place in _PLACES
        ]

    def ignored(self, names: Collection[str]) -> set[str]:
        """Tensors that are not needed; `names` are those of the decoder where it is alone."""
        return {place(name) for name in names for place in _PLACES} | {*self.unused()}


class SeeingConfig(ABC):
    """Reads the configuration of a family of decoders that see pictures."""

    model_type: ClassVar[str]

    @classmethod
    @abstractmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str | None = None) -> DecoderConfig:
        """The configuration of the decoder, of whatever family it is, with what sees pictures. Raises: UsageError
        (`bad-config`)."""


def with_rows(x: nn.Tensor, embeds: nn.Tensor, sources: nn.Tensor) -> nn.Tensor:
    """The embeddings (tokens, hidden), where a source is not negative that row of `embeds` instead."""
    sources = op.check_range(sources, embeds.shape[0], "sources", lowest=-1)
    rows = op.astype(op.take(embeds, sources, axis=0), x.dtype)  # zeros, if there are none
    return op.where(op.expand_dims(op.greater_equal(sources, 0), 1), rows, x)


def renamed(source: Source, place: Callable[[str], str]) -> Source:
    """A source with other names of its tensors."""
    return replace(source, name=place(source.name), parts=tuple(map(place, source.parts)))


def _alone(name: str) -> str:
    return name


def _below(name: str) -> str:
    return f"language_model.{name}"


def _within(name: str) -> str:
    rest = name.removeprefix("model.")
    return name if rest == name else f"model.language_model.{rest}"


_PLACES = _alone, _below, _within
