"""Log-probabilities: of prompts beside transformers, and their tokens, bytes and places, for every kind of vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.serve.request import Score
from relaxpy.serve.sampling import Sampling
from relaxpy.server.logprobs import ChatLogprobs, CompletionLogprobs, prompt_logprobs
from relaxpy.server.served_model import Delta, TextRequest
from tests.llm.checkpoints import KINDS, write_model, write_tokenizer
from tests.server.running import Running, server_process

httpx: Any = pytest.importorskip("httpx")
TEXT = "Compile once, and run it for every shape. "
PROMPTS = [TEXT * 5, "run", "naïve café 🎉"]


class Model:
    """The part of a served model that is needed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    return Model(Tokenizer.from_checkpoint(write_tokenizer(folder, KINDS[request.param]())))


def order(model: Any, prompt: list[int], top: int, begins: bool = False) -> TextRequest:
    return TextRequest(
        0,
        tuple(prompt),
        9,
        Sampling(),
        model.tokenizer.end_tokens,
        top=top,
        begins=begins,
        scored=top,
    )


def deltas(tokens: list[int], others: dict[int, float], size: int) -> list[Delta]:
    """A text in parts of so many tokens, with these alternatives everywhere."""
    return [
        Delta(0, "", tuple(part), (-0.5,) * len(part), ({part[0]: -0.5, **others},) * len(part))
        for part in (tokens[n : n + size] for n in range(0, len(tokens), size))
    ]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_tokens_of_completions_are_the_text(model: Any, size: int) -> None:
    """With the prompt before it: tokens joined are the whole text, and each begins at its offset."""
    tokens = model.tokenizer.encode("run it once.\n\n\tfor é 🎉 shape", special=False)
    whole = model.tokenizer.decode(tokens, special=True)
    for cut in (1, 3, len(tokens) - 1):
        prompt, answer = tokens[:cut], tokens[cut:]
        own = CompletionLogprobs(model, order(model, prompt, 1), echo=True)
        scores = [Score(-1.0, 2, {3: -0.5})] * (cut - 1)
        parts = [own.of([each], scores) for each in deltas(answer, {}, size)]
        joined: dict[str, list[Any]] = {
            name: [each for part in parts if part is not None for each in part[name]]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
        assert {len(each) for each in joined.values()} == {len(tokens)}
        assert joined["token_logprobs"] == [None] + [-1.0] * (cut - 1) + [-0.5] * len(answer)
        assert joined["top_logprobs"][0] is None
        for name, place, top in zip(
            joined["tokens"], joined["text_offset"], joined["top_logprobs"]
        ):
            if not name.startswith("bytes:"):
                assert whole[place:].startswith(name)
            assert top is None or name in top


def test_bytes_of_chats_are_the_text(model: Any) -> None:
    tokens = model.tokenizer.encode("run it é 🎉 once", special=False)
    own = ChatLogprobs(model, order(model, [1], 1, begins=True))
    found = [
        each for d in deltas(tokens, {}, 2) if (part := own.of([d])) for each in part["content"]
    ]
    data = b"".join(bytes(each["bytes"] or b"") for each in found)
    assert data.decode() == model.tokenizer.decode(tokens)


def test_alternatives_of_one_name_stay_apart(tmp_path: Path) -> None:
    """The byte 0x61 and the letter a; bytes that are parts of characters; tokens that are no text."""
    own = Model(Tokenizer.from_checkpoint(write_tokenizer(tmp_path, KINDS["byte fallback"]())))
    number: Any = own.tokenizer.number
    names = ["<0x61>", "a", "<0xF0>", "<0x9F>", "</s>"]
    others = {number(name): -float(n) for n, name in enumerate(names)}
    own_order = order(own, [1], 5)
    made: Any = CompletionLogprobs(own, own_order, echo=False)
    (top,) = made.of([Delta(0, "", (number("a"),), (-1.0,), (others,))])["top_logprobs"]
    assert top == {
        f"token_id:{number('<0x61>')}": 0.0, "a": -1.0, "bytes:\\xf0": -2.0, "bytes:\\x9f": -3.0, "</s>": -4.0,
    }  # fmt: skip
    chat: Any = ChatLogprobs(own, own_order)
    (found,) = chat.of([Delta(0, "", (number("a"),), (-1.0,), (others,))])["content"]
    assert [each["bytes"] for each in found["top_logprobs"]] == [
        [0x61],
        [0x61],
        [0xF0],
        [0x9F],
        None,
    ]
    (first, second) = prompt_logprobs(
        own, order(own, [number("a"), number("<0xF0>")], 5), [Score(-2.0, 7, others)], 2
    )
    assert first is None
    assert second == {
        str(number("<0x61>")): {"logprob": 0.0, "rank": 1, "decoded_token": "a"},
        str(number("a")): {"logprob": -1.0, "rank": 2, "decoded_token": "a"},
        str(number("<0xF0>")): {"logprob": -2.0, "rank": 7, "decoded_token": "�"},
    }


# A model of random weights, beside transformers


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("scored") / "model")


@pytest.fixture(scope="module")
def http(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("server")
    with server_process(
        folder, str(place), "--bits", "none", "--context", "256", "--target", "llvm -opt-level=0"
    ) as running:
        own: Running = running
        with httpx.Client(base_url=own.url, timeout=120) as found:
            yield found


def their_logprobs(place: Path, tokens: list[int]) -> np.ndarray:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1).numpy()


def complete(http: Any, **body: Any) -> Any:
    found = http.post("/v1/completions", json={"temperature": 0, **body})
    assert found.status_code == 200, found.text
    return found.json()


def test_log_probabilities_of_prompts(http: Any, place: Path) -> None:
    """They are those of a full forward; after the prompt is in the cache, among others, in a stream, and as vLLM has
    them."""
    tokenizer = Tokenizer.from_checkpoint(place)
    rows = [tokenizer.encode(text, special=False) for text in PROMPTS]
    assert max(map(len, rows)) > 2 * 16 + 1
    body = {"prompt": rows, "echo": True, "logprobs": 2, "max_tokens": 0, "prompt_logprobs": 1}
    complete(http, prompt=rows[0], max_tokens=1)
    for found in (complete(http, **body), complete(http, **body)):
        assert found["usage"]["prompt_tokens"] == sum(map(len, rows))
        assert found["usage"]["completion_tokens"] == 0
        for choice, tokens in zip(found["choices"], rows, strict=True):
            assert choice["finish_reason"] == "length"
            assert choice["text"] == tokenizer.decode(tokens)
            theirs, own = their_logprobs(place, tokens), choice["logprobs"]
            expected = [theirs[n, token] for n, token in enumerate(tokens[1:])]
            assert own["token_logprobs"][0] is None
            np.testing.assert_allclose(own["token_logprobs"][1:], expected, atol=2e-4)
            for n, top in enumerate(own["top_logprobs"][1:]):
                assert max(top.values()) == pytest.approx(theirs[n].max(), abs=2e-4)
            ranked: list[Any] = choice["prompt_logprobs"]
            assert ranked[0] is None
            for n, (each, token) in enumerate(zip(ranked[1:], tokens[1:], strict=True)):
                assert each[str(token)]["logprob"] == pytest.approx(theirs[n, token], abs=2e-4)
                assert each[str(token)]["rank"] == 1 + (theirs[n] > theirs[n, token] + 1e-6).sum()
    streamed = http.post(
        "/v1/completions", json={**body, "prompt_logprobs": None, "prompt": rows[0], "stream": True}
    )
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line[:7] == "data: {"]
    values = [
        v
        for e in events
        for c in e["choices"]
        if c["logprobs"]
        for v in c["logprobs"]["token_logprobs"]
    ]
    np.testing.assert_allclose(
        values[1:], found["choices"][0]["logprobs"]["token_logprobs"][1:], atol=1e-5
    )


def test_as_harnesses_read_them(http: Any, place: Path) -> None:
    """lm-eval asks for one more token, and takes the values of the continuation without it; a value that is the largest
    of its place is the most probable token."""
    tokenizer = Tokenizer.from_checkpoint(place)
    context = tokenizer.encode(TEXT, special=False)
    theirs = their_logprobs(place, context)
    best = int(theirs[-1].argmax())
    for continuation, is_greedy in (([best], True), ([(best + 1) % 300, best], False)):
        found = complete(
            http, prompt=[[*context, *continuation]], echo=True, logprobs=1, max_tokens=1, seed=1234
        )
        own = found["choices"][0]["logprobs"]
        values = own["token_logprobs"][len(context) : -1]
        top = own["top_logprobs"][len(context) : -1]
        assert len(values) == len(continuation)
        assert values[0] == pytest.approx(theirs[-1, continuation[0]], abs=2e-4)
        greedy = all(value == max(each.values()) for value, each in zip(values, top, strict=True))
        assert greedy is is_greedy


def test_the_token_that_ends_a_text_has_a_value(http: Any, place: Path) -> None:
    """So that one value less than there are is that of the last token of the prompt."""
    tokenizer = Tokenizer.from_checkpoint(place)
    (end,) = tokenizer.end_tokens
    found = complete(
        http, prompt="run", echo=True, logprobs=1, max_tokens=3, logit_bias={str(end): 100}
    )["choices"][0]
    assert (found["text"], found["finish_reason"]) == ("run", "stop")
    assert found["logprobs"]["tokens"][-1] == "</s>"
    assert found["logprobs"]["text_offset"][-1] == 3


def test_a_chats_prompt_has_them_too(http: Any) -> None:
    body = {"messages": [{"role": "user", "content": "run"}], "max_tokens": 1, "prompt_logprobs": 0}
    found = http.post("/v1/chat/completions", json=body).json()
    assert len(found["prompt_logprobs"]) == found["usage"]["prompt_tokens"]
    refused = http.post("/v1/chat/completions", json={**body, "stream": True})
    assert refused.status_code == 400
    assert "prompt_logprobs" in refused.json()["error"]["message"]


def test_fields_that_end_texts(http: Any, place: Path) -> None:
    """Of tokens, of least lengths, and of lengths of prompts."""
    tokenizer = Tokenizer.from_checkpoint(place)
    plain = complete(http, prompt="run it", max_tokens=20, logprobs=0)["choices"][0]
    names = plain["logprobs"]["tokens"]
    single = [n for n, name in enumerate(names) if n > 2 and name.isascii() and name.isalnum()]
    name = names[single[0]]
    (token,) = tokenizer.encode(name, special=False)
    first = names.index(name)
    found = complete(http, prompt="run it", max_tokens=20, stop_token_ids=[token])
    assert found["choices"][0]["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] == first + 1
    assert plain["text"].startswith(found["choices"][0]["text"])
    found = complete(http, prompt="run it", max_tokens=20, stop_token_ids=[token], min_tokens=15)
    assert found["usage"]["completion_tokens"] >= 15
    stop = plain["text"][3:5]
    found = complete(http, prompt="run it", max_tokens=20, stop=stop, min_tokens=19)
    assert found["usage"]["completion_tokens"] >= 19
    assert stop in found["choices"][0]["text"]
    whole = complete(http, prompt=TEXT, max_tokens=1, truncate_prompt_tokens=7, echo=True)
    tokens = tokenizer.encode(TEXT)[-7:]
    assert whole["usage"]["prompt_tokens"] == 7
    assert whole["choices"][0]["text"].startswith(tokenizer.decode(tokens))
    full = complete(http, prompt="run it", max_tokens=-1, ignore_eos=True)
    assert full["usage"]["total_tokens"] == 256
    banned = complete(http, prompt="run it", max_tokens=20, bad_words=[name])["choices"][0]
    assert banned["text"] != plain["text"]
    wrong = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "min_tokens": 3})
    assert wrong.status_code == 400
