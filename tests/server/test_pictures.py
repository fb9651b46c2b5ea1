"""Vectors of pictures over HTTP, in the forms of Jina's and vLLM's clients, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.models.picture_embedding import PictureEmbedder
from relaxpy.server import pictures
from relaxpy.server.app import create_app
from relaxpy.server.context import Server
from relaxpy.server.embeddings import EmbeddingModel
from relaxpy.server.settings import ServerSettings
from tests.models.picture_checkpoints import write
from tests.sweeps import quick_target

httpx: Any = pytest.importorskip("httpx")
Image: Any = pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> PictureEmbedder:
    place: Path = tmp_path_factory.mktemp("clip")
    write("clip", place)
    return PictureEmbedder.from_checkpoint(place, target=str(quick_target()), cache=False)


@pytest.fixture
def ask(embedder: PictureEmbedder) -> Ask:
    """Sends a body, and gives the answer's status and fields."""

    def send(hosts: Sequence[str] = (), **body: Any) -> tuple[int, Any]:
        async def work() -> tuple[int, Any]:
            settings = ServerSettings(image_hosts=(*hosts,))
            server = Server(settings, {}, {"clip": EmbeddingModel("clip", embedder)})
            transport = httpx.ASGITransport(create_app(server))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                answer = await client.post("/v1/embeddings", json={"model": "clip", **body})
                return answer.status_code, answer.json()

        return asyncio.run(work())

    return send


def picture(shade: int, size: tuple[int, int] = (30, 20)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (shade, 9, 200)).save(file, "PNG")
    return file.getvalue()


def uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def vectors(answer: tuple[int, Any]) -> np.ndarray:
    status, fields = answer
    assert status == 200, fields
    return np.array([each["embedding"] for each in fields["data"]], np.float32)


def test_pictures_and_texts_in_any_order(ask: Ask, embedder: PictureEmbedder) -> None:
    files = [picture(10), picture(240)]
    bare = base64.b64encode(files[1]).decode()
    answer = ask(input=[{"image": uri(files[0])}, "a red star", {"image": bare}, {"text": "star"}])
    shown = embedder.embed_pictures(files)
    said = embedder.embed(["a red star", "star"]).vectors
    wanted = np.stack([shown[0], said[0], shown[1], said[1]])
    np.testing.assert_allclose(vectors(answer), wanted, atol=1e-6)
    assert answer[1]["usage"]["prompt_tokens"] == 9 + 9 + 4 + 2  # patches, words and their ends
    parts = [{"type": "image_url", "image_url": {"url": uri(files[0])}}]
    answer = ask(messages=[{"role": "user", "content": parts}])
    np.testing.assert_allclose(vectors(answer), wanted[:1], atol=1e-6)
    for content in ("star", [{"type": "text", "text": "star"}]):
        answer = ask(messages=[{"role": "user", "content": content}])
        np.testing.assert_allclose(vectors(answer), wanted[3:], atol=1e-6)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({}, "input: the field is required, or messages"),
        ({"input": "a", "messages": [{"content": "a"}]}, "input: the field is required, or messages"),
        ({"input": [{"image": "http://localhost/a.png"}]}, "input.0.image: nothing is fetched from localhost"),
        ({"input": [{"image": "file:///etc/passwd"}]}, "input.0.image: pictures are data URIs"),
        ({"input": [{"image": "FILE:/etc/passwd"}]}, "a file: is not read, and no file of the server is"),
        ({"input": [{"image": "/etc/hostname.png"}]}, "input.0.image: it is not base64: pictures are data URIs"),
        ({"input": [{"image": "data:text/html;base64,AAAA"}]}, "input.0.image: text/html is no picture"),
        ({"input": [{"image": "data:image/png,abc"}]}, "has ;base64"),
        ({"input": ["a", {"image": "@@@@"}]}, "input.1.image: it is not base64"),
        ({"input": [{"image": uri(b"<svg/>")}]}, "input.0.image is no picture"),
        ({"input": [{"image": uri(picture(1)[:-30])}]}, "input.0.image cannot be decoded"),
        ({"input": [{"image": uri(picture(1, (4200, 4000)))}]}, "4200 × 4000 pixels, at most 16777216"),
        ({"input": [{"image": uri(picture(1))}] * 65}, "at most 64 pictures"),
        ({"input": [{"image": uri(picture(1)), "text": "a"}]}, "input.0: write text or image"),
        ({"input": [{"audio": "a"}]}, "audio"),
        ({"messages": [{"content": [{"type": "text", "text": "a"}] * 2}]}, "messages.0.content"),
        (
            {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "a", "detail": "low"}}]}]},
            "detail",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(ask: Ask, body: dict[str, Any], match: str) -> None:
    status, fields = ask(**body)
    assert status == 400, fields
    assert match in fields["error"]["message"]


def test_models_of_one_kind(
    ask: Ask, embedder: PictureEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without texts says so."""
    monkeypatch.setattr(embedder, "tokenizer", None)
    status, fields = ask(input="a star")
    assert status == 400
    assert fields["error"]["message"] == "clip reads pictures, and no texts"


def test_addresses_of_listed_hosts(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are fetched together, in the order of the body, each with its share of the bytes."""
    seen: list[tuple[str, int]] = []

    async def fetched(address: Any, most: int) -> bytes:
        seen.append((address.target, most))
        if address.target == "/gone":
            raise UsageError("bad-address", "example.org answers 404")
        return picture(int(address.target[1:]))

    monkeypatch.setattr(pictures, "fetched", fetched)
    links = [{"image": f"https://example.org/{shade}"} for shade in (10, 240)]
    answer = ask(hosts=["example.org"], input=[*links, {"image": uri(picture(10))}])
    found = vectors(answer)
    np.testing.assert_array_equal(found[0], found[2])
    assert not np.allclose(found[0], found[1], atol=1e-3)
    assert sorted(seen) == [("/10", 1 << 24), ("/240", 1 << 24)]
    seen.clear()
    status, fields = ask(
        hosts=["example.org"], input=[{"image": "https://example.org/gone"}, *links]
    )
    assert status == 400
    assert fields["error"]["message"] == "input.0.image: example.org answers 404"
    assert fields["error"]["param"] == "input.0.image"
    status, _ = ask(hosts=["example.org"], input=links * 32)
    assert status == 200
    assert {most for _, most in seen[-64:]} == {1 << 19}
