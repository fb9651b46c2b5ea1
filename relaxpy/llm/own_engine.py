"""The engine of a model that writes in this process."""

from __future__ import annotations

from relaxpy.models.loaded import LoadedDecoder
from relaxpy.serve import Engine, Limits
from relaxpy.serve.decoder_model import DecoderModel


def own_engine(decoder: LoadedDecoder, *, tokens: int, batch: int) -> tuple[DecoderModel, Engine]:
    """A decoder in steps, and its engine, with pages for `batch` texts of so many tokens, each with an input of its own
    for a model that encodes.

    Raises: UsageError (`out-of-memory`) if there is no memory for the pages.
    """
    source, size = decoder.source, decoder.page_size
    pages = -(-tokens // size) * batch
    sources = 0 if source is None else -(-source.positions // size) * batch
    model = DecoderModel(decoder, pages, source_pages=sources)
    limits = Limits(running=pages, encoded=min(batch, Limits.encoded))
    return model, Engine(model, pages=pages, limits=limits, drafts=False, source_pages=sources)
