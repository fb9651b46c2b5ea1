"""Pictures in chats over HTTP: a LLaVA behind all routes of chats, and what is refused."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
from relaxpy.llm import LanguageModel, load
from relaxpy.server.contents import after_text, before_text, content_of
from relaxpy.server.errors import ApiError
from relaxpy.server.pictures import Source
from tests.models.llava_checkpoints import SCHEME, TARGET, write, write_tokenizer
from tests.server.running import Running, server_process

httpx: Any = pytest.importorskip("httpx")
Image: Any = pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")
GREEDY = {"model": "llava", "temperature": 0, "seed": 1}


def test_contents() -> None:
    """A text, unless there are pictures, which are the user's."""
    one = Source("data:", "messages.0.content.1")
    part = {"type": "image", "image": one}
    assert content_of(["a", "b"], "system") == "ab"
    assert content_of([], "user") == ""
    assert content_of(["a", one, "b"], "user") == [
        {"type": "text", "text": "a"}, part, {"type": "text", "text": "b"},
    ]  # fmt: skip
    with pytest.raises(
        ApiError,
        match=r"messages\.0\.content\.1: pictures are in messages of the user, not in those of assistant",
    ):
        content_of(["a", one], "assistant")
    assert after_text("a", "b") == "a\n\nb"
    assert after_text("a", None) == "a\n\n"
    assert after_text("a", [part]) == [{"type": "text", "text": "a\n\n"}, part]
    assert before_text("a", "b") == "a\n\nb"
    assert before_text([part], "b") == [part, {"type": "text", "text": "\n\nb"}]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("server") / "llava"
    folder.mkdir()
    write("llava", folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def model(place: Path) -> LanguageModel:
    return load(place, scheme=SCHEME, target=TARGET, batch=4)


@pytest.fixture(scope="module")
def http(place: Path, model: LanguageModel) -> Iterator[Any]:
    arguments = "--bits", "none", "--target", TARGET, "--running", "8"
    with (
        server_process(place.parent, str(place), *arguments) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        yield client


def colors(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (30, 41, 3), dtype=np.uint8)


def coded(seed: int) -> str:
    file = io.BytesIO()
    Image.fromarray(colors(seed)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def uri(seed: int) -> str:
    return f"data:image/png;base64,{coded(seed)}"


def shown(*contents: str | int) -> list[dict[str, Any]]:
    """Parts in the shape of `relaxpy.llm`; a number is a picture."""
    return [
        {"type": "text", "text": each}
        if isinstance(each, str)
        else {"type": "image", "image": colors(each)}
        for each in contents
    ]


def openai(*contents: str | int) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": each}
        if isinstance(each, str)
        else {"type": "image_url", "image_url": {"url": uri(each)}}
        for each in contents
    ]


def expected(model: LanguageModel, *contents: str | int) -> tuple[str, int]:
    """The answer, and the tokens of the prompt."""
    found = model.chat([{"role": "user", "content": shown(*contents)}], max_tokens=8, temperature=0)
    return "".join(found), len(found.prompt)


def test_all_routes_see(http: Any, model: LanguageModel) -> None:
    """The same answer, and `usage` counts the tokens of pictures."""
    text, count = expected(model, "What is it?", 1)
    own = {**GREEDY, "max_tokens": 8}
    found = http.post(
        "/v1/chat/completions",
        json={**own, "messages": [{"role": "user", "content": openai("What is it?", 1)}]},
    ).json()
    assert found["choices"][0]["message"]["content"] == text
    assert found["usage"]["prompt_tokens"] == count
    blocks = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": coded(1)}}]  # fmt: skip
    body = {**own, "messages": [{"role": "user", "content": blocks}]}
    found = http.post("/v1/messages", json=body).json()
    assert found["content"][0]["text"] == text
    assert (
        found["usage"]["input_tokens"] + found["usage"].get("cache_read_input_tokens", 0) == count
    )
    counted = http.post(
        "/v1/messages/count_tokens", json={"model": "llava", "messages": body["messages"]}
    ).json()
    assert counted["input_tokens"] == count
    parts = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": uri(1)},
    ]
    response = {
        "model": "llava",
        "temperature": 0,
        "max_output_tokens": 8,
        "input": [{"role": "user", "content": parts}],
    }
    found = http.post("/v1/responses", json=response).json()
    assert found["output"][0]["content"][0]["text"] == text
    assert found["usage"]["input_tokens"] == count
    after = {**response, "input": "Sure?", "previous_response_id": found["id"]}
    again = http.post("/v1/responses", json=after).json()
    assert again["usage"]["input_tokens"] > count
    tokens = http.post(
        "/tokenize",
        json={
            "model": "llava",
            "messages": [{"role": "user", "content": openai("What is it?", 1)}],
        },
    ).json()
    assert tokens["count"] == count


def test_texts_and_pictures_at_once(http: Any, model: LanguageModel) -> None:
    """Many clients, each with its own: nobody gets another's answer."""
    cases: list[tuple[str | int, ...]] = [
        ("a", 1), ("a", 2), (1, "b", 2), ("a",), (3,), ("a", 1), (2, "b", 1), ("Compile", 4, 4),
    ]  # fmt: skip
    right = [expected(model, *each) for each in cases]

    def ask(number: int) -> Any:
        content = openai(*cases[number % len(cases)])
        body = {**GREEDY, "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
        return http.post("/v1/chat/completions", json=body).json()

    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(ask, range(24))]
    for number, each in enumerate(found):
        text, count = right[number % len(cases)]
        assert (each["choices"][0]["message"]["content"], each["usage"]["prompt_tokens"]) == (
            text,
            count,
        )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", "messages.0.content.1.image_url.url"),
        ("/etc/passwd", "messages.0.content.1.image_url.url"),
        ("http://127.0.0.1/a.png", "messages.0.content.1.image_url.url"),
        ("data:image/png;base64,AAAA", "messages.0.content.1.image_url.url"),
        ("data:text/plain;base64,AAAA", "messages.0.content.1.image_url.url"),
    ],
)
def test_pictures_that_are_refused(http: Any, url: str, message: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
    found = http.post(
        "/v1/chat/completions", json={**GREEDY, "messages": [{"role": "user", "content": parts}]}
    )
    assert found.status_code == 400
    assert message in found.json()["error"]["message"]


def test_prompts_that_are_refused(http: Any) -> None:
    def refused(content: Any, role: str = "user", **more: Any) -> str:
        messages = [{"role": role, "content": content}, {"role": "user", "content": "a"}]
        found = http.post("/v1/chat/completions", json={**GREEDY, "messages": messages, **more})
        assert found.status_code == 400
        return found.json()["error"]["message"]

    assert "pictures are in messages of the user" in refused(openai(1), "system")
    assert "would cut pictures" in refused(openai(1), truncate_prompt_tokens=5)
    assert "with its 30 pictures, and the context 256" in refused(openai(*[1] * 30))
    assert "should be 'auto'" in refused(
        [{"type": "image_url", "image_url": {"url": uri(1), "detail": "high"}}]
    )


def test_a_model_that_reads_texts(client: Any, running: Running) -> None:
    """It says so by its name."""
    import openai as package

    with pytest.raises(package.BadRequestError, match="relaxpy reads texts, and no pictures"):
        client.chat.completions.create(
            model="relaxpy", messages=[{"role": "user", "content": openai(1)}]
        )
