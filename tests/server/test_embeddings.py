"""Vectors of sentences, by the client of OpenAI."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from relaxpy.models.sentence_embedding import PACKAGE
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
        client.embeddings.create(model="minilm", input="a", dimensions=3)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="relaxpy", input="a")
    with pytest.raises(openai.BadRequestError, match="vectors"):
        client.chat.completions.create(model="minilm", messages=ASKED)
