"""Malformed bodies and headers, and attacks: each is refused with 4xx, and the server lives on."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relaxpy.server.app import ROUTES
from tests.server.hostile_bodies import SETTINGS, hostile_request, measured
from tests.server.running import KEY, Running, server_process
from tests.sweeps import part, sweep

httpx: Any = pytest.importorskip("httpx")
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **CHAT, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 1, "stop": ["x"], "seed": 1,
        "logprobs": True, "top_logprobs": 1, "logit_bias": {"5": 1}, "stream": False, "priority": 0,
        "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "parallel_tool_calls": True,
        "response_format": {"type": "text"}, "stream_options": {"include_usage": True}, "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
    },
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2, "logprobs": 1, "echo": False, "best_of": 1, "n": 1},
    "/v1/messages": {
        **CHAT, "system": "x", "stop_sequences": ["a"], "tool_choice": {"type": "auto"},
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "thinking": {"type": "disabled"},
    },
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
    "/v1/responses": {
        "input": "Hi", "max_output_tokens": 2, "store": False, "instructions": "x", "metadata": {"a": "b"},
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "tool_choice": "auto",
    },
    "/tokenize": {"prompt": "Hi", "add_special_tokens": True},
    "/detokenize": {"tokens": [1, 2]},
}  # fmt: skip
WRONG: list[Any] = [
    {"a": [1]}, [[[]]], "\ud800", "wrong" * 500, -1e308, 1e308, 1 << 70, -(1 << 70), [None], [{"type": "x"}],
    [1, "a", {}],
]  # fmt: skip
"""Values that no field takes, but those of `LENIENT`."""
LENIENT = {
    # Fields that take some of these values: any text, any object.
    "stream_options", "text", "reasoning", "stop", "prompt", "instructions", "system", "input", "metadata", "stop_sequences", "logit_bias", "user",
}  # fmt: skip


def malformed() -> Iterator[tuple[str, dict[str, Any]]]:
    """300 bodies, each with one wrong field."""
    pick = random.Random(0)
    places = [(path, name) for path, body in VALID.items() for name in body if name not in LENIENT]
    for n in range(300):
        path, name = places[n % len(places)]
        yield path, {**VALID[path], name: pick.choice(WRONG)}


@pytest.fixture(scope="module")
def http(running: Running) -> Iterator[Any]:
    with httpx.Client(base_url=running.url, headers={"x-api-key": KEY}, timeout=60) as found:
        yield found


def alive(http: Any) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_bodies_with_a_wrong_field(http: Any) -> None:
    head = {"content-type": "application/json"}
    for path, body in malformed():
        found = http.post(path, content=json.dumps(body), headers=head)
        wrong = [name for name in body if body[name] != VALID[path].get(name)]
        assert found.status_code == 400, (path, wrong, [body[name] for name in wrong])
        assert found.json()["error"]["message"]
    alive(http)


def raw(running: Running, data: bytes, seconds: float = 5) -> bytes:
    """What the server answers to these bytes; b"" if it only closes."""
    host, _, port = running.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(data)
        found = b""
        try:
            while part := connection.recv(1 << 16):
                found += part
                if b"\r\n\r\n" in found:
                    break
        except (TimeoutError, ConnectionError):
            pass
        return found


POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nx-api-key: " + KEY.encode() + b"\r\n"
)
JSON = b"Content-Type: application/json\r\n"
HEADS = {
    "no version": b"GET /v1/models\r\n\r\n",
    "other protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "two lengths": POST + JSON + b"Content-Length: 2\r\nContent-Length: 5\r\n\r\n{}",
    "length and chunks": POST
    + JSON
    + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}\r\n",
    "negative length": POST + JSON + b"Content-Length: -1\r\n\r\n",
    "length of letters": POST + JSON + b"Content-Length: many\r\n\r\n",
    "huge length": POST + JSON + b"Content-Length: 99999999999999999999\r\n\r\n",
    "broken chunk": POST + JSON + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
    "huge head": POST + b"X-Long: " + b"a" * (80 << 10) + b"\r\n\r\n",
    "many headers": POST + b"".join(b"X-%d: 1\r\n" % n for n in range(9000)) + b"\r\n",
    "null in a name": POST + b"X\x00Y: 1\r\n\r\n",
    "folded header": POST + JSON + b"X-A: 1\r\n  more\r\nContent-Length: 2\r\n\r\n{}",
    "method": b"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: sk-test\r\n\r\n",
    "no host": b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "null in a path": b"GET /v1/models/%00 HTTP/1.1\r\nHost: a\r\nx-api-key: sk-test\r\n\r\n",
    "websocket": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nx-api-key: sk-test\r\n\r\n",
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_that_are_none(running: Running, name: str) -> None:
    answer = raw(running, HEADS[name], 3)
    if name == "websocket":  # the page, which is not upgraded
        assert b" 200 " in answer.partition(b"\r\n")[0]
    else:
        assert answer.startswith(b"HTTP/1.1 4"), answer[:200]


TEMPLATE = "{{ cycler.__init__.__globals__.os.popen('touch hacked').read() }}{% for x in range(10**9) %}{% endfor %}"
DEEP: Any = {}
for _ in range(200):
    DEEP = {"properties": {"a": DEEP}}
ATTACKS: dict[str, tuple[str, Any]] = {
    "path in a model's name": ("/v1/chat/completions", {**CHAT, "model": "../../../etc/passwd"}),
    "address in a model's name": ("/v1/chat/completions", {**CHAT, "model": "http://169.254.169.254/latest"}),
    "long model's name": ("/v1/chat/completions", {**CHAT, "model": "a" * 5000}),
    "template in variables": ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"messages": TEMPLATE}}),
    "tools of a template": ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"tools": []}}),
    "control of a template": ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"control": True}}),
    "deep variables": ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"a": DEEP}}),
    "role as a template": ("/v1/chat/completions", {**CHAT, "messages": [{"role": TEMPLATE, "content": "x"}]}),
    "deep schema": ("/v1/chat/completions", {**CHAT, "guided_json": DEEP}),
    "endless references": ("/v1/chat/completions", {**CHAT, "guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}),
    "foreign references": ("/v1/chat/completions", {**CHAT, "guided_json": {"$ref": "file:///etc/passwd"}}),
    "long pattern": ("/v1/chat/completions", {**CHAT, "guided_regex": "(a|b)" * 50_000}),
    "left recursion": ("/v1/chat/completions", {**CHAT, "guided_grammar": 'start: a\na: missing "x"'}),
    "many choices": ("/v1/chat/completions", {**CHAT, "guided_choice": ["a" * 1000] * 500}),
    "x-guidance": ("/v1/chat/completions", {**CHAT, "guided_json": {"type": "object", "x-guidance": {"lenient": True}}}),
    "many texts": ("/v1/chat/completions", {**CHAT, "n": 10_000}),
    "many stops": ("/v1/chat/completions", {**CHAT, "stop": ["a"] * 1000}),
    "many biases": ("/v1/chat/completions", {**CHAT, "logit_bias": {str(n): 1 for n in range(4000)}}),
    "bias of a huge token": ("/v1/chat/completions", {**CHAT, "logit_bias": {"9" * 5000: 1}}),
    "bias in other digits": ("/v1/chat/completions", {**CHAT, "logit_bias": {"٣" * 9: 1}}),
    "many tools": ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}] * 1000}),
    "equal tools": ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}] * 2}),
    "tool's name with an end": ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": {"name": "f</tool_call>"}}]}),
    "long prompt": ("/v1/completions", {"prompt": "a b " * 200_000, "max_tokens": 1}),
    "tokens that are none": ("/v1/completions", {"prompt": [1 << 30]}),
    "negative tokens": ("/v1/completions", {"prompt": [-1]}),
    "many prompts": ("/v1/completions", {"prompt": ["a"] * 5000}),
    "response of another": ("/v1/responses", {"input": "a", "previous_response_id": "resp_" + "0" * 32}),
    "path in a response's name": ("/v1/responses", {"input": "a", "previous_response_id": "../../x"}),
    "many numbers": ("/detokenize", {"tokens": [1 << 40] * 10}),
}  # fmt: skip


HEAVY = {
    "huge repetition": {"guided_regex": "((a{1,1000}){1,1000}){1,1000}"},
    "huge items": {"guided_json": {"type": "array", "minItems": 10**9}},
    "ambiguous": {"guided_grammar": 'start: a+\na: "x" | a a | a a a'},
    "large classes": {"guided_regex": r"(\p{L}|\p{N}){1,500}(\p{L}\p{N}){1,500}"},
}


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_grammars_are_bounded(http: Any, name: str) -> None:
    """They are followed or refused, in a bounded time; the server lives on."""
    begin = time.monotonic()
    found = http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 20, **HEAVY[name]})
    assert found.status_code in (200, 400)
    assert time.monotonic() - begin < 10
    alive(http)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(http: Any, name: str) -> None:
    path, body = ATTACKS[name]
    begin = time.monotonic()
    found = http.post(path, json=body)
    assert 400 <= found.status_code < 500, found.text
    assert time.monotonic() - begin < 10
    assert set(found.json()["error"]) >= {"message", "type"}


def test_hostile_requests_are_the_same_in_each_run() -> None:
    found = [hostile_request(number) for number in range(3 * len(ROUTES))]
    assert found == [hostile_request(number) for number in range(3 * len(ROUTES))]
    routes = {path for _, path, _, body in ROUTES if body is not None}
    assert {body.path for body in found} >= routes


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts memory so")
@sweep
def test_hostile_requests_cost_little(tmp_path: Path) -> None:
    """For every route: none is an error of the server, and none takes long or much memory."""
    with server_process(tmp_path, *SETTINGS) as own:
        measured(own, range(1_000_000, 1_000_120))  # whatever is made once
        report = measured(own, part(range(20_000), 101))
    assert report.failures == []
    assert report.excesses == []
    assert {status for _, status in report.statuses} >= {200, 400, 404}


def test_slow_bodies_and_heads_hold_nobody_up(running: Running, http: Any) -> None:
    host, _, port = running.url.removeprefix("http://").partition(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(60)]
    for n, each in enumerate(slow):
        each.sendall(POST[: 40 + n] if n % 2 else POST + JSON + b"Content-Length: 1000\r\n\r\n{")
    alive(http)
    for each in slow:
        each.close()
    alive(http)


def test_nothing_was_written(http: Any) -> None:
    """No template ran."""
    assert not Path("hacked").exists()
    alive(http)
