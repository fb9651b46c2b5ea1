"""`POST /v1/embeddings`: sentences and pictures as vectors, by a model of the BERT family, or of pictures."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from relaxpy.errors import UsageError
from relaxpy.models.embedders import load_embedder
from relaxpy.models.sentence_embedding import SentenceEmbedder
from relaxpy.server import known_fields
from relaxpy.server.bodies import Body, Token
from relaxpy.server.body_reader import MOST_VALUES
from relaxpy.server.context import Server, answer, in_thread, unless_gone
from relaxpy.server.errors import ApiError
from relaxpy.server.pictures import ImagePart, PictureFile, Source, most_pixels

if TYPE_CHECKING:
    from relaxpy.models.picture_embedding import PictureEmbedder

_MOST_TEXTS = 2048
_TEXTS = 64
"""Texts that are computed before those of another request have their turn."""
_PICTURES = 8
"""Pictures that are computed before those of another request have their turn."""
_CHARACTERS = 64
"""The most characters of a text for each token that it may have: longer ones are not tokenized."""
Item = str | list[int] | PictureFile
"""A text, its tokens, or the file of a picture."""
Given = str | list[int] | Source
"""The same as a body has it."""


class EmbeddingModel:
    """A model of sentences, or of pictures."""

    def __init__(self, name: str, embedder: SentenceEmbedder) -> None:
        self.name, self.embedder = name, embedder
        self._lock = asyncio.Lock()

    @classmethod
    async def start(
        cls, name: str, place: str | None, target: str = "llvm", precision: str = "float32"
    ) -> EmbeddingModel:
        """Load a checkpoint. Raises: UsageError like `load_embedder`."""
        embedder = await asyncio.to_thread(load_embedder, place, target=target, precision=precision)
        return cls(name, embedder)

    async def embed(self, items: Sequence[Item]) -> tuple[np.ndarray, int]:
        """The vectors of texts, of tokens as the model has them, and of pictures, float32 (items, hidden), and the
        number of their tokens, which patches of pictures are, too. Raises: UsageError for a text that is too long or
        has a token that is none, and for what is no picture."""
        pictures = [k for k, each in enumerate(items) if isinstance(each, PictureFile)]
        texts = [k for k, each in enumerate(items) if not isinstance(each, PictureFile)]
        found: dict[int, np.ndarray] = {}
        count = 0
        pixels = most_pixels(len(pictures))
        for numbers, size in ((texts, _TEXTS), (pictures, _PICTURES)):
            for start in range(0, len(numbers), size):
                part = numbers[start : start + size]
                async with self._lock:
                    own, tokens = await in_thread(self._embedded, items, part, pixels)
                found |= dict(zip(part, own, strict=True))
                count += tokens
        return np.stack([found[k] for k in range(len(items))]), count

    def _embedded(
        self, items: Sequence[Item], part: Sequence[int], pixels: int
    ) -> tuple[np.ndarray, int]:
        """The vectors of some items, all texts or all pictures."""
        files = {each.place: each.data for k in part if isinstance(each := items[k], PictureFile)}
        if files:
            return self._of_pictures(files, pixels)
        rows = [
            self._tokens(each, k) for k in part if not isinstance(each := items[k], PictureFile)
        ]
        return self.embedder.embed_rows(rows), sum(map(len, rows))

    def _of_pictures(self, files: Mapping[str, bytes], pixels: int) -> tuple[np.ndarray, int]:
        embedder = self.check_pictures()
        return embedder.embed_files(files, most_pixels=pixels), embedder.patches * len(files)

    def check_pictures(self) -> PictureEmbedder:
        """The model, if it reads pictures. Raises: ApiError if not."""
        from relaxpy.models.picture_embedding import PictureEmbedder

        if not isinstance(self.embedder, PictureEmbedder):
            raise ApiError(f"{self.name} reads texts, and no pictures", param="input")
        return self.embedder

    def _tokens(self, text: str | list[int], number: int) -> np.ndarray:
        if self.embedder.tokenizer is None:
            raise UsageError("bad-arguments", f"{self.name} reads pictures, and no texts")
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


class TextOrImage(Body):
    """An input as Jina's interface has it: a text, or a picture as a data URI or in base64."""

    text: _Input | None = None
    image: _Input | None = None

    def item(self, place: str) -> Given:
        """What it is. Raises: ApiError if it is both or neither."""
        if (self.text is None) == (self.image is None):
            raise ApiError(f"{place}: write text or image, one of them", param=place)
        return self.text if self.text is not None else Source(self.image or "", f"{place}.image")


class TextPart(Body):
    """A text of a message."""

    type: Literal["text"]
    text: _Input


class EmbeddedMessage(Body):
    """A message as vLLM's interface has it, of which there is one, with one part."""

    role: Annotated[str, Field(max_length=100)] = "user"
    content: _Input | Annotated[list[TextPart | ImagePart], Field(min_length=1, max_length=1)]

    def item(self) -> Given:
        """What it has."""
        if isinstance(self.content, str):
            return self.content
        (part,) = self.content
        if isinstance(part, TextPart):
            return part.text
        return Source(part.image_url.url, "messages.0.content.0.image_url.url")


class EmbeddingsBody(Body):
    """The body of a request for vectors."""

    others = known_fields.EMBEDDINGS
    model: Annotated[str, Field(max_length=1000)] = ""
    input: (
        _Input
        | Annotated[list[_Input | TextOrImage], Field(min_length=1, max_length=_MOST_TEXTS)]
        | _Tokens
        | Annotated[list[_Tokens], Field(min_length=1, max_length=_MOST_TEXTS)]
        | None
    ) = None
    messages: Annotated[list[EmbeddedMessage], Field(min_length=1, max_length=1)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """The first so many numbers of each vector, which has length 1 again."""

    def items(self) -> list[Given]:
        """Each text, its tokens, or a picture. Raises: ApiError."""
        if (self.input is None) == (self.messages is None):
            raise ApiError("input: the field is required, or messages in its place", param="input")
        if self.input is None:
            return [each.item() for each in self.messages or ()]
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [[token for token in self.input if isinstance(token, int)]]
        return [
            each.item(f"input.{k}") if isinstance(each, TextOrImage) else each
            for k, each in enumerate(self.input)
            if not isinstance(each, int)
        ]


async def embeddings(server: Server, request: Request) -> Response:
    """Answers a request."""
    body = await server.body(request, EmbeddingsBody)
    model = server.embedder_of(body.model)
    given = await in_thread(body.items)
    sources = [each for each in given if isinstance(each, Source)]
    if sources:
        model.check_pictures()
    files = iter(await unless_gone(request, server.pictures.read(sources)))
    items = [next(files) if isinstance(each, Source) else each for each in given]
    vectors, tokens = await unless_gone(request, model.embed(items))
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
