"""The embedder of a checkpoint, whatever it embeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaxpy.checkpoints.config_file import config_of
from relaxpy.checkpoints.hub import local_checkpoint
from relaxpy.errors import UsageError
from relaxpy.models.sentence_embedding import SentenceEmbedder
from relaxpy.vision.processor import FAMILIES


def load_embedder(
    place: str | Path | None, *, pooling: str | None = None, **options: Any
) -> SentenceEmbedder:
    """The embedder of a checkpoint, of pictures (a `PictureEmbedder`) or of sentences, by its configuration; None: the
    installed model of sentences. `options` are those of `from_checkpoint`. Raises: UsageError."""
    if place is not None:
        place = local_checkpoint(place)
        kind = (config_of(place) or {}).get("model_type")
        if kind in FAMILIES or _talks(kind):  # of which it says what they do
            from relaxpy.models.picture_embedding import PictureEmbedder

            return PictureEmbedder.from_checkpoint(place, pooling=pooling, **options)
    if pooling is not None:
        raise UsageError("bad-arguments", "pooling is for models of pictures without texts")
    return SentenceEmbedder.from_checkpoint(place, **options)


def _talks(kind: Any) -> bool:
    """Is it a type of models that talk about pictures?"""
    if kind in (None, "bert"):
        return False
    from relaxpy.models.families import SEEING  # loads all families

    return kind in SEEING
