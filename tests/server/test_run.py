"""`relaxpy serve` as a whole: keys, routes, mistakes, clients that go, its log, and its end."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from relaxpy.cli.main import main
from tests.server.running import KEY, TEMPLATE, Running, scripted_server, server_process

httpx: Any = pytest.importorskip("httpx")
openai: Any = pytest.importorskip("openai")
HEAD = {"Authorization": f"Bearer {KEY}"}
CHAT = {
    "messages": [{"role": "user", "content": "What is a list?"}],
    "max_tokens": 4,
    "temperature": 0,
}


def get(running: Running, path: str, **options: Any) -> Any:
    return httpx.get(
        running.url + path, verify=False, headers=options.pop("headers", HEAD), **options
    )


def post(running: Running, path: str, body: Any, **options: Any) -> Any:
    head = options.pop("headers", HEAD)
    return httpx.post(
        running.url + path, verify=False, json=body, headers=head, timeout=60, **options
    )


def metric(running: Running, name: str) -> float:
    text = get(running, "/metrics").text
    (line,) = [line for line in text.splitlines() if line.startswith(f'{name}{{model="relaxpy"}}')]
    return float(line.split()[-1])


@pytest.fixture(scope="module", autouse=True)
def kept(running: Running) -> Iterator[tuple[HTTPConnection, float]]:
    """A connection that was used once, before all tests of this file, and when that was."""
    port = int(running.url.rpartition(":")[2])
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.connect()
        connection.auto_open = 0  # a closed connection is an error
        ask(connection)
        yield connection, time.monotonic()


def ask(connection: HTTPConnection) -> None:
    connection.request("GET", "/v1/models", headers={"x-api-key": KEY})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200


def test_only_with_a_key(running: Running) -> None:
    for head in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"x-api-key": ""}):
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
            found = get(running, path, headers=head)
            assert found.status_code == 401
            assert found.json()["error"]["code"] == "invalid_api_key"
    assert get(running, "/v1/models", headers={"x-api-key": KEY}).status_code == 200
    assert get(running, "/health", headers={}).json() == {"status": "ok"}
    assert "<html" in get(running, "/", headers={}).text


def test_models_tokens_and_what_is_counted(running: Running, client: Any) -> None:
    assert next(each.id for each in client.models.list()) == "relaxpy"
    assert client.models.retrieve("relaxpy").model_extra["max_model_len"] == 1024
    with pytest.raises(openai.NotFoundError, match="there is relaxpy"):
        client.models.retrieve("../../etc/passwd")
    found = post(running, "/tokenize", {"prompt": "naïve tuples", "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    text = post(running, "/detokenize", {"tokens": found["tokens"]}).json()["prompt"]
    assert text.endswith("naïve tuples")
    chat = post(running, "/tokenize", {"messages": CHAT["messages"]}).json()
    before = metric(running, "relaxpy_prompt_tokens_total")
    assert (
        post(running, "/v1/chat/completions", CHAT).json()["usage"]["prompt_tokens"]
        == chat["count"]
    )
    assert metric(running, "relaxpy_prompt_tokens_total") - before == chat["count"]
    text = get(running, "/metrics").text
    assert 'relaxpy_requests_total{route="/v1/chat/completions",status="200"}' in text
    assert "relaxpy_time_to_first_token_seconds_bucket" in text


def test_texts_after_prompts(client: Any) -> None:
    def write(**options: Any) -> Any:
        return client.completions.create(
            **{
                "model": "relaxpy",
                "prompt": "A list is",
                "max_tokens": 8,
                "temperature": 0,
                **options,
            }
        )

    whole = write()
    assert whole.usage.completion_tokens == 8
    one = whole.choices[0].text
    two = write(prompt=["A list is", "def f(x):"], n=2, temperature=0, echo=True)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in two.choices[:2]] == [f"A list is{one}"] * 2
    assert two.choices[2].text.startswith("def f(x):")
    streamed = ["", ""]
    for chunk in write(prompt=["A list is", "def f(x):"], stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [one, two.choices[2].text.removeprefix("def f(x):")]
    found = write(logprobs=2).choices[0]
    assert "".join(found.logprobs.tokens) == found.text
    assert all(len(each) == 2 for each in found.logprobs.top_logprobs)
    assert found.logprobs.text_offset[1] == len(found.logprobs.tokens[0])
    assert write(prompt=[5, 6, 7]).usage.prompt_tokens == 3
    searched = write(n=2, extra_body={"use_beam_search": True, "best_of": 3, "length_penalty": 0.5})
    assert [choice.index for choice in searched.choices] == [0, 1]
    assert len({choice.text for choice in searched.choices}) == 2
    assert write(extra_body={"use_beam_search": True}).choices[0].text == one
    beams: dict[str, Any] = {"use_beam_search": True, "best_of": 2}
    for wrong, name in (
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 9}, "best_of"),
        ({"extra_body": {"length_penalty": 2}}, "length_penalty"),
        ({"extra_body": {"early_stopping": "never"}}, "early_stopping"),
        ({"extra_body": {**beams, "best_of": 5}}, "best_of is at most 4"),
        ({"extra_body": beams, "n": 3}, "best_of is 2"),
        ({"extra_body": beams, "temperature": 0.5}, "temperature"),
        ({"extra_body": beams, "stop": "x"}, "does not follow stop"),
        ({"extra_body": {**beams, "guided_regex": "a"}}, "no grammar"),
        ({"extra_body": beams, "logprobs": 2}, "logprobs"),
        ({"prompt": []}, "prompt"),
    ):
        with pytest.raises(openai.BadRequestError, match=name):
            write(**wrong)


def test_clients_that_go_end_their_texts(running: Running, client: Any) -> None:
    streams = []
    for seed in range(3):
        stream = client.chat.completions.create(
            model="relaxpy", messages=CHAT["messages"], max_tokens=900, stream=True, seed=seed, temperature=1,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(stream))
        streams.append(stream)
    for stream in streams:
        stream.close()
    body = {**CHAT, "max_tokens": 900, "ignore_eos": True, "n": 4, "temperature": 1}
    soon = httpx.Timeout(30, read=0.05)  # 3600 tokens take longer on any machine
    with pytest.raises(httpx.TimeoutException):
        httpx.post(running.url + "/v1/chat/completions", json=body, headers=HEAD, timeout=soon)
    assert post(running, "/v1/chat/completions", CHAT).status_code == 200
    deadline = time.monotonic() + 20
    while metric(running, "relaxpy_running"):  # nobody asks for a step any more
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_too_many_requests_are_refused(running: Running) -> None:
    """Those that fit the queue are answered."""
    body = {**CHAT, "max_tokens": 200, "ignore_eos": True}
    url, found = running.url + "/v1/chat/completions", list[int]()
    # A client of its own for each thread takes longer to make than an answer.
    with httpx.Client(verify=False, headers=HEAD, timeout=60) as client:

        def ask() -> None:
            found.append(client.post(url, json=body).status_code)

        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(found) == {200, 429}
    assert found.count(200) >= 8


def test_several_keys_and_what_is_other_than_asked(tmp_path: Path) -> None:
    """What one key asked, another one does not learn from the cache. Limits that the model does not have are told."""
    keys = ("first", "second")
    options = [each for key in keys for each in ("--api-key", key)]
    with server_process(
        tmp_path,
        *options,
        "--context",
        "99999",
        "--cache-tokens",
        "16",
        "--waiting",
        "0",
        "--running",
        "2",
    ) as own:

        def cached(key: str, **more: Any) -> int:
            body = {"prompt": "def f(x):\n    return x\n" * 20, "max_tokens": 1, **more}
            found = post(own, "/v1/completions", body, headers={"x-api-key": key}).json()
            return found["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached("first") == 0
        assert cached("second") == 0
        assert cached("first") == cached("second") > 0
        assert cached("first", cache_salt="a") == 0
        said = own.log.read_text() if own.log is not None else ""
        assert "relaxpy: texts have at most 1024 tokens, not 99999" in said
        assert "relaxpy: the cache has room for 1024 tokens, not 16" in said
        statuses: list[int] = []

        def ask() -> None:
            body = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
            found = post(own, "/v1/completions", body, headers={"x-api-key": "first"})
            statuses.append(found.status_code)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses.count(200) >= 2
        assert set(statuses) == {200, 429}


def test_texts_that_are_too_long_are_refused_before_they_are_tokenized(running: Running) -> None:
    long = "a b " * 200_000
    for path, body in (
        ("/v1/completions", {"prompt": long}),
        ("/v1/completions", {"prompt": ["a", long]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 2000}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": long}]}], "max_tokens": 1}),
        ("/v1/responses", {"input": "a", "instructions": long}),
        ("/tokenize", {"prompt": long}),
    ):  # fmt: skip
        found = post(running, path, body)
        assert found.status_code == 400
        error = found.json()["error"]
        assert path == "/v1/messages" or error["code"] == "context_length_exceeded"
        assert "1024" in error["message"]
        assert "characters" in error["message"] or "messages" in error["message"]


def test_mistakes_have_their_own_codes(running: Running) -> None:
    found = post(running, "/v1/chat/completions", {**CHAT, "n": 5}).json()["error"]
    assert (found["param"], found["code"]) == ("n", None)
    assert "n is at most 4" in found["message"]
    found = post(running, "/detokenize", {"tokens": [5, 99_999]}).json()["error"]
    assert found["message"] == "token 99999 is none of the model's"
    for name in ("guided_regex", "guided_grammar", "grammar", "user", "cache_salt"):
        data = json.dumps({**CHAT, name: "a\ud800"})
        head = {**HEAD, "content-type": "application/json"}
        found = httpx.post(f"{running.url}/v1/chat/completions", content=data, headers=head)
        assert found.status_code == 400
    assert get(running, "/v1/models/").status_code == 404
    empty = {"messages": [{"role": "user", "content": []}], "max_tokens": 1}
    assert post(running, "/v1/messages", empty).status_code == 400


REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<|im_start|>{{ m.role }}{{ m.content }}{% endfor %}<|im_start|>assistant"
)


def test_messages_of_the_system_for_a_template_that_refuses_them() -> None:
    """Their text is before that of the user; it is nothing that is dropped."""
    with scripted_server({REFUSES: ["Yes."]}) as url:

        def tokens(*messages: tuple[str, str]) -> Any:
            body = {"messages": [{"role": role, "content": text} for role, text in messages]}
            return httpx.post(f"{url}/tokenize", json=body).json().get("tokens")

        joined = tokens(("user", "Be brief.\n\nWhat?"))
        assert joined is not None
        assert tokens(("system", "Be brief."), ("user", "What?")) == joined
        assert tokens(("developer", "Be brief."), ("user", "What?")) == joined
        assert tokens(("user", "Be brief."), ("system", "What?")) == joined
        assert tokens(("user", "a"), ("assistant", "b"), ("system", "c")) == tokens(
            ("user", "a"), ("assistant", "b"), ("user", "c")
        )
        assert tokens(("system", "a")) is None


def test_messages_of_the_system_anywhere(running: Running) -> None:
    """The template that ships takes one at the beginning."""

    def tokens(messages: Any) -> Any:
        return post(running, "/tokenize", {"messages": messages}).json()["tokens"]

    asked = {"role": "user", "content": "What is a list?"}
    system = {"role": "system", "content": "Be brief."}
    joined = {"role": "user", "content": "Be brief.\n\nWhat is a list?"}
    assert tokens([system, asked]) == tokens([joined])
    assert tokens([{**system, "role": "developer"}, asked]) == tokens([joined])
    assert tokens([asked, system]) == tokens(
        [{"role": "user", "content": "What is a list?\n\nBe brief."}]
    )
    assert tokens([system, asked, system]) == tokens(
        [{"role": "user", "content": "Be brief.\n\nWhat is a list?\n\nBe brief."}]
    )
    assert (
        post(running, "/v1/chat/completions", {**CHAT, "messages": [system, asked]}).status_code
        == 200
    )


def test_forced_calls_end(running: Running) -> None:
    """Though the schema, as most do, allows any other fields, and the model would go on writing them."""
    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    schema = {"type": "object", "properties": numbers, "required": ["a", "b"]}
    tool = {"type": "function", "function": {"name": "add", "parameters": schema}}
    body = {
        **CHAT,
        "tools": [tool],
        "tool_choice": "required",
        "max_tokens": 500,
        "parallel_tool_calls": False,
    }
    (choice,) = post(running, "/v1/chat/completions", body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]).keys() == {"a", "b"}


def test_requests_have_ids_which_the_log_has_too(running: Running) -> None:
    name = "my-request:1"
    found = post(running, "/v1/chat/completions", CHAT, headers={**HEAD, "x-request-id": name})
    assert found.headers["x-request-id"] == name
    odd = get(running, "/health", headers={"x-request-id": "a b\tc" * 99})
    assert odd.headers["x-request-id"].startswith("req_")
    (line,) = [line for line in running.lines() if line.get("id") == name]
    assert line["path"] == "/v1/chat/completions"
    assert line["status"] == 200
    assert line["completion_tokens"] == 4
    assert KEY not in str(running.lines())


def test_bodies_that_are_none(running: Running) -> None:
    def status(data: bytes, kind: str = "application/json") -> int:
        head = {**HEAD, "content-type": kind}
        found = httpx.post(f"{running.url}/v1/chat/completions", content=data, headers=head)
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}
        return found.status_code

    assert status(b"{}", "text/plain") == 415
    assert (
        status(b"")
        == status(b"[]")
        == status(b"{")
        == status(b"\xff")
        == status(b"[" * 100_000)
        == 400
    )
    assert status(b'{"messages": [{"role": "user", "content": "\\ud800"}]}') == 400
    assert status(b'{"x": "' + b"a" * (1 << 20) + b'"}') == 413
    assert get(running, "/v1/chat/completions").status_code == 405
    found = get(running, "/v1/nothing")
    assert found.status_code == 404
    assert "/v1/chat/completions" in found.json()["error"]["message"]


def test_it_ends_when_what_runs_has_ended(tmp_path: Path) -> None:
    """After SIGTERM: no new connections, and the stream goes on to its end. Without a key only local names are served."""
    with server_process(
        tmp_path, "small=" + str(_embedded()), "--origin", "https://a.example"
    ) as own:
        assert own.process is not None
        port = int(own.url.rpartition(":")[2])
        assert get(own, "/health", headers={"host": "evil.example"}).status_code == 403
        assert (
            get(own, "/v1/models", headers={"host": f"localhost:{port}"}).json()["data"][0]["id"]
            == "small"
        )
        asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
        allowed = httpx.options(f"{own.url}/v1/models", headers=asked).headers
        assert allowed["access-control-allow-origin"] == "https://a.example"
        slow = socket.create_connection(("127.0.0.1", port))
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: appl")
        body = {**CHAT, "max_tokens": 60, "ignore_eos": True, "stream": True}
        with httpx.stream(
            "POST", f"{own.url}/v1/chat/completions", json=body, timeout=60
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            own.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert '"finish_reason":"length"' in rest[-2]
        slow.close()
        assert own.process.wait(20) == 0
        with pytest.raises(httpx.ConnectError):
            get(own, "/health")


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """A small packet is sent while an earlier one is under way: a client on a kept connection acknowledges the head of an
    answer 40 ms late, and would get the body after that."""
    from relaxpy.server.connections import bound

    async def accepted() -> int:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[int] = loop.create_future()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                peer = transport.get_extra_info("socket")
                found.set_result(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        server = await loop.create_server(Protocol, sock=bound("127.0.0.1", 0))
        async with server:
            with socket.create_connection(server.sockets[0].getsockname()):
                return await found

    assert asyncio.run(accepted())


def test_a_connection_is_kept_between_requests(
    running: Running, kept: tuple[HTTPConnection, float]
) -> None:
    """Longer than clients keep theirs; a head that does not arrive in time ends it."""
    from relaxpy.server import connections

    assert connections.IDLE_SECONDS > connections.HEAD_SECONDS > 5
    connection, since = kept
    time.sleep(max(since + 6 - time.monotonic(), 0))
    ask(connection)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_https(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    pair = {"certificate": str(certificate), "private_key": str(key)}
    with scripted_server({TEMPLATE: ["Yes."]}, **pair) as url:
        assert url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        body = {"messages": [{"role": "user", "content": "?"}]}
        found = httpx.post(f"{url}/v1/chat/completions", json=body, verify=trusted).json()
        assert found["choices"][0]["message"]["content"] == "Yes."
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{url}/health")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--certificate", "a.pem"], "--certificate and --private-key"),
        (["--certificate", "a.pem", "--private-key", "b.pem"], "a.pem or its key cannot be used"),
        (["--port", "TAKEN"], "cannot be used"),
        (["nowhere=./nothing"], "there is no checkpoint"),
        (["--api-key", " "], "at least one character"),
        (["--api-key", "sk-é"], "visible ones of ASCII"),
        (["EMBEDDED", "EMBEDDED"], "two models have the name"),
        (["--context", "1024", "--adapter", "a=EMPTY"], "adapter_config.json"),
    ],
)
def test_mistakes_before_the_start(
    arguments: list[str], message: str, tmp_path: Path, capsys: Any, running: Running
) -> None:
    (tmp_path / "empty").mkdir()
    places = {
        "TAKEN": running.url.rpartition(":")[2], "EMBEDDED": str(_embedded()), "a=EMPTY": f"a={tmp_path / 'empty'}",
    }  # fmt: skip
    given = [places.get(each, each) for each in arguments]
    with pytest.raises(SystemExit) as ended:
        main(["serve", *([] if "--port" in given else ["--port", "0"]), "--threads", "1", *given])
    assert ended.value.code == 1
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def _embedded() -> Path:
    from relaxpy.embedded import embedded_model

    return embedded_model()
