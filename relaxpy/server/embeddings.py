"""`POST /v1/embeddings`: sentences as vectors, by a model of the BERT family."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from relaxpy.errors import UsageError
from relaxpy.models.sentence_embedding import SentenceEmbedder
from relaxpy.server import known_fields
from relaxpy.server.bodies import Body, Token
from relaxpy.server.body_reader import MOST_VALUES
from relaxpy.server.context import Server, answer, in_thread, unless_gone
from relaxpy.server.errors import ApiError

_MOST_TEXTS = 2048
_TEXTS = 64
"""Texts that are computed before those of another request have their turn."""

_CHARACTERS = 64
"""The most characters of a text for each token that it may have: longer ones are not tokenized."""


class EmbeddingModel:
    """A model of sentences."""

    def __init__(self, name: str, embedder: SentenceEmbedder) -> None:
        self.name, self.embedder = name, embedder
        self._lock = asyncio.Lock()

    @classmethod
    async def start(
        cls, name: str, place: str | None, target: str = "llvm", precision: str = "float32"
    ) -> EmbeddingModel:
        """Load a checkpoint. Raises: UsageError like `SentenceEmbedder.from_checkpoint`."""
        folder = None if place is None else Path(place)
        embedder = await asyncio.to_thread(
            SentenceEmbedder.from_checkpoint, folder, target=target, precision=precision
        )
        return cls(name, embedder)

    async def embed(self, texts: Sequence[str | list[int]]) -> tuple[np.ndarray, int]:
        """The vectors of texts, or of tokens as the model has them, float32 (texts, hidden), and the number of their
        tokens. Raises: ApiError for one that is too long, or has a token that is none."""
        vectors: list[np.ndarray] = []
        count = 0
        for start in range(0, len(texts), _TEXTS):
            async with self._lock:
                own, tokens = await in_thread(self._embedded, texts[start : start + _TEXTS], start)
            vectors.append(own)
            count += tokens
        return np.concatenate(vectors), count

    def _embedded(self, texts: Sequence[str | list[int]], start: int) -> tuple[np.ndarray, int]:
        rows = [self._tokens(text, number) for number, text in enumerate(texts, start)]
        return self.embedder.embed_rows(rows), sum(map(len, rows))

    def _tokens(self, text: str | list[int], number: int) -> np.ndarray:
        most, vocab = self.embedder.max_tokens, self.embedder.tokenizer.get_vocab_size()
        if isinstance(text, str):
            if len(text) > most * _CHARACTERS:
                raise UsageError(
                    "bad-length",
                    f"text {number} has {len(text)} characters, more than {most} tokens",
                )
            tokens, cut = self.embedder.tokenize([text])
            if cut:
                raise UsageError("bad-length", f"text {number} has more than {most} tokens")
            return tokens[0]
        if len(text) > most:
            raise UsageError("bad-length", f"text {number} has more than {most} tokens")
        if (largest := max(text)) >= vocab:
            raise UsageError(
                "bad-prompt",
                f"token {largest} of text {number} is none of the model's, which has tokens 0 to {vocab - 1}",
                help="tokens are those of this model's own tokenizer: send the text",
            )
        return np.array(text, np.int64)


_Input = Annotated[str, Field(min_length=1)]
_Tokens = Annotated[list[Token], Field(min_length=1, max_length=MOST_VALUES)]


class EmbeddingsBody(Body):
    """The body of a request for vectors."""

    others = known_fields.EMBEDDINGS
    model: Annotated[str, Field(max_length=1000)] = ""
    input: (
        _Input
        | Annotated[list[_Input], Field(min_length=1, max_length=_MOST_TEXTS)]
        | _Tokens
        | Annotated[list[_Tokens], Field(min_length=1, max_length=_MOST_TEXTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """The first so many numbers of each vector, which has length 1 again."""

    def texts(self) -> list[str | list[int]]:
        """Each text, or its tokens."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [[token for token in self.input if isinstance(token, int)]]
        return [each for each in self.input if not isinstance(each, int)]


async def embeddings(server: Server, request: Request) -> Response:
    """Answers a request."""
    body = await server.body(request, EmbeddingsBody)
    model = server.embedder_of(body.model)
    vectors, tokens = await unless_gone(request, model.embed(body.texts()))
    if body.dimensions is not None:
        if body.dimensions > vectors.shape[1]:
            raise ApiError(f"the vectors have {vectors.shape[1]} dimensions", param="dimensions")
        vectors = vectors[:, : body.dimensions]
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return await in_thread(_answer, vectors, body.encoding_format, model.name, usage)


def _answer(vectors: np.ndarray, form: str, name: str, usage: Mapping[str, int]) -> Response:
    data = [
        {"object": "embedding", "index": number, "embedding": _written(each, form)}
        for number, each in enumerate(vectors)
    ]
    return answer({"object": "list", "data": data, "model": name, "usage": usage})


def _written(vector: np.ndarray, form: str) -> Any:
    data = vector.astype("<f4")
    if form == "base64":
        return base64.b64encode(data.tobytes()).decode()
    return [float(f"{number:.9g}") for number in data]
