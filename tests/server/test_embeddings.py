"""Vectors of sentences, by the client of OpenAI."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from relaxpy.models.sentence_embedding import PACKAGE, default_checkpoint
from tests.server.running import ASKED

pytest.importorskip("fastapi")
openai: Any = pytest.importorskip("openai")


@pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_embeddings(client: Any) -> None:
    texts = ["A tuple is a list.", "A list is a tuple.", "It rains in Bern."]
    found = client.embeddings.create(model="minilm", input=texts)
    vectors = np.array([each.embedding for each in found.data])
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose((vectors**2).sum(1), 1, rtol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    one = client.embeddings.create(model="minilm", input=texts[1], encoding_format="float")
    np.testing.assert_allclose(one.data[0].embedding, vectors[1], atol=1e-5)
    assert found.usage.prompt_tokens > one.usage.prompt_tokens
    with pytest.raises(openai.BadRequestError, match="more than"):
        client.embeddings.create(model="minilm", input="many words " * 1000)
    with pytest.raises(openai.BadRequestError, match="384"):
        client.embeddings.create(model="minilm", input="a", dimensions=385)
    short = client.embeddings.create(model="minilm", input=texts, dimensions=33)
    expected = vectors[:, :33] / np.linalg.norm(vectors[:, :33], axis=1, keepdims=True)
    np.testing.assert_allclose([each.embedding for each in short.data], expected, atol=1e-6)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="relaxpy", input="a")
    with pytest.raises(openai.BadRequestError, match="vectors"):
        client.chat.completions.create(model="minilm", messages=ASKED)


@pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_tokens_of_texts(client: Any) -> None:
    """Tokens are those of the model's tokenizer; others are refused where they are none."""
    from relaxpy.checkpoints.tokenizer_file import read_tokenizer

    own = read_tokenizer(default_checkpoint())
    texts = ["A tuple is a list.", "Rain."]
    rows = [own.encode(text).ids for text in texts]
    expected = client.embeddings.create(model="minilm", input=texts)
    found = client.embeddings.create(model="minilm", input=rows)
    for one, other in zip(found.data, expected.data, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-5)
    assert found.usage.prompt_tokens == expected.usage.prompt_tokens
    one = client.embeddings.create(model="minilm", input=rows[1])
    np.testing.assert_allclose(one.data[0].embedding, found.data[1].embedding, atol=1e-5)
    for wrong, text in (
        ([30522], "30522 of text 0"),
        ([[101], [7] * 600], "text 1"),
        ([[]], "input"),
        ([-1], "input"),
    ):
        with pytest.raises(openai.BadRequestError, match=text):
            client.embeddings.create(model="minilm", input=wrong)


@pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_vectors_of_integers() -> None:
    """`--precision int8`: near those of floats, and not the same."""
    import asyncio

    from relaxpy.server.embeddings import EmbeddingModel

    async def vectors(precision: str) -> np.ndarray:
        model = await EmbeddingModel.start("m", None, precision=precision)
        return (await model.embed(["A tuple is a list.", "It rains in Bern."]))[0]

    floats, integers = (asyncio.run(vectors(each)) for each in ("float32", "int8"))
    assert 0.98 < (floats * integers).sum(1).min() < 1 - 1e-6


def test_a_precision_needs_a_model_for_vectors() -> None:
    from click.testing import CliRunner

    from relaxpy.cli.serve import serve

    result = CliRunner().invoke(serve, ["--precision", "int8"])
    assert "is for models of vectors" in str(result.exception)
