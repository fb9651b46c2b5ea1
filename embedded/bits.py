"""Bits per byte of held-out texts: of a checkpoint as relaxpy runs it, and of xz."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedded.sources import Document
from embedded.tokenizer import encode_texts
from relaxpy.models.loaded import LoadedDecoder
from relaxpy.serve import PageBook

SAMPLE = Path(__file__).parent / "held_out.jsonl"
"""Some of the files that are held out, kept in the repository."""


def tokenizer_of(directory: Path) -> Any:
    """The `tokenizers.Tokenizer` of a checkpoint."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def read_documents(path: Path) -> list[Document]:
    """The texts of a file of JSON lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Document(**json.loads(line)) for line in lines]


def bits_per_byte(
    decoder: LoadedDecoder, tokenizer: Any, found: Sequence[Document], context: int = 1024
) -> float:
    """What a compressor that codes each token by its probability would need. A text is read in windows of `context`
    tokens, each of which knows only the last token of the one before."""
    caches = decoder.vm["alloc_pages"](context // decoder.page_size + 1)
    book = PageBook(context // decoder.page_size + 1, decoder.page_size, decoder.windows)
    nats = 0.0
    for tokens in encode_texts(tokenizer, [each.text for each in found]):
        for begin in range(0, len(tokens) - 1, context):
            window = tokens[begin : begin + context + 1]
            own = book.add(window[:-1])
            batch = book.batch({own: len(window) - 1})
            rows = np.arange(len(window) - 1, dtype=np.int32)
            logits = decoder.vm["step"](
                *batch.arguments[:-1], rows, caches, *decoder.weights
            ).numpy()
            nats -= _log_probabilities(logits, window[1:])
            book.free(own)
            book.evict()
    return nats / np.log(2) / byte_count(found)


def _log_probabilities(logits: np.ndarray, tokens: Sequence[int]) -> float:
    shifted = logits - logits.max(-1, keepdims=True)
    found = shifted[range(len(tokens)), tokens] - np.log(np.exp(shifted).sum(-1))
    return float(found.sum(dtype=np.float64))


def xz_bits_per_byte(found: Sequence[Document]) -> float:
    """Of all texts in one archive, at the highest preset."""
    joined = "".join(each.text for each in found).encode()
    return 8 * len(lzma.compress(joined, preset=9 | lzma.PRESET_EXTREME)) / len(joined)


def byte_count(found: Sequence[Document]) -> int:
    return sum(len(each.text.encode()) for each in found)
