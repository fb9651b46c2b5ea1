"""Requests to replicas: sent again when one ends before the first token, else ended with an error; nothing is lost.

Most of it runs against a handle without Ray's processes. `make test-replicas` runs the server with two replicas, and
kills one under load: it takes some minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relaxpy.cli.main import main
from relaxpy.errors import UsageError
from relaxpy.serve.messages import piece_fields
from relaxpy.serve.request import Piece, Request
from relaxpy.serve.sampling import Sampling
from relaxpy.serve.scale import Scale
from tests.sweeps import full

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.exceptions import ActorDiedError, ActorUnavailableError
        from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
        from ray.serve.exceptions import BackPressureError

        from relaxpy.serve.prefix_router import PrefixRouter
        from relaxpy.serve.replicas import Asked, Cluster, ReplicaClient
except ImportError:
    needs_ray = pytest.mark.skip(reason="needs Ray Serve: pip install 'relaxpy[replicas]'")
    minutes = needs_ray
else:
    needs_ray = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
    minutes = full("make test-replicas")


class Handle:
    """A handle whose calls follow scripts: pieces, errors to raise, seconds to wait."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.asked: list[Any] = []
        self.cancelled = 0

    def options(self, **given: Any) -> Handle:
        assert given == {"method_name": "submit", "stream": True}
        return self

    def remote(self, asked: Any) -> Any:
        self.asked.append(asked)
        return Stream(self, self.scripts.pop(0)).items()


class Stream:
    def __init__(self, handle: Handle, script: list[Any]) -> None:
        self.handle, self.script = handle, script

    def items(self) -> Any:
        handle = self.handle

        class Items:
            def __init__(self, source: AsyncIterator[Any]) -> None:
                self.source = source

            def __anext__(self) -> Any:
                return anext(self.source)

            def cancel(self) -> None:
                handle.cancelled += 1

        return Items(self._items())

    async def _items(self) -> AsyncIterator[Any]:
        for each in self.script:
            if isinstance(each, Exception):
                raise each
            if isinstance(each, float):
                await asyncio.sleep(each)
            else:
                yield each


def piece(*tokens: int, finish: Any = None) -> list[Any]:
    return piece_fields(Piece(0, 0, tokens, finish=finish))


def refused(code: str) -> dict[str, str]:
    return {"code": code, "message": "no", "help": ""}


REQUEST = Request(0, (5, 7), 4, Sampling(seed=3))


def written(handle: Handle, seconds: float | None = None) -> list[int]:
    async def run() -> list[int]:
        client = ReplicaClient(handle, {})
        return [token async for each in client.submit(REQUEST, seconds) for token in each.tokens]

    return asyncio.run(run())


@needs_ray
@pytest.mark.parametrize(
    "first",
    [
        lambda: [ActorDiedError()],
        lambda: [ActorUnavailableError("gone", b"0" * 16)],
        lambda: [refused("engine")],
        lambda: [],
    ],
    ids=["died", "unavailable", "engine ended", "nothing"],
)
def test_a_request_is_sent_again_before_its_first_piece(first: Callable[[], list[Any]]) -> None:
    handle = Handle(first(), first(), [piece(1), piece(2, finish="stop")])
    assert written(handle) == [1, 2]
    assert len(handle.asked) == 3
    assert handle.asked[0].fields == handle.asked[2].fields
    assert handle.cancelled == 2


@needs_ray
def test_later_it_ends_with_an_error() -> None:
    handle = Handle([piece(1), ActorDiedError()], [piece(9, finish="stop")])
    with pytest.raises(UsageError, match="has ended while it computed") as found:
        written(handle)
    assert found.value.code == "engine"
    assert len(handle.asked) == 1


@needs_ray
def test_a_request_that_ends_engines_is_not_sent_for_ever() -> None:
    handle = Handle(*([ActorDiedError()] for _ in range(10)))
    with pytest.raises(UsageError, match="has ended"):
        written(handle)
    assert len(handle.asked) == 3


@needs_ray
def test_errors_of_requests_are_theirs() -> None:
    for script, code in (
        ([refused("bad-length")], "bad-length"),
        ([BackPressureError(num_queued_requests=9, max_queued_requests=8)], "queue-full"),
        ([piece_fields(Piece(0, 0, (), finish="error", error="sampling: none"))], "sampling"),
    ):
        handle = Handle(script, [piece(1, finish="stop")])
        with pytest.raises(UsageError) as found:
            written(handle)
        assert found.value.code == code
        assert len(handle.asked) == 1


@needs_ray
def test_time_is_limited_over_all_tries() -> None:
    handle = Handle([0.05, ActorDiedError()], [60.0])
    with pytest.raises(UsageError, match=r"more than 0.3 seconds") as found:
        written(handle, 0.3)
    assert found.value.code == "time-limit"
    assert handle.asked[1].seconds < handle.asked[0].seconds <= 0.3
    assert handle.cancelled == 2


@needs_ray
def test_a_request_that_is_left_is_cancelled() -> None:
    handle = Handle([piece(1), 60.0])

    async def run() -> None:
        stream = ReplicaClient(handle, {}).submit(REQUEST)
        await anext(stream)
        await stream.aclose()

    asyncio.run(run())
    assert handle.cancelled == 1


@needs_ray
def test_prompts_are_compared_by_tokens_adapter_and_salt() -> None:
    fields = {"prompt": [0, 55_296, 99_999], "adapter": -1, "salt": ""}
    plain = Asked(fields, None).prompt
    assert len(plain) == 4
    assert plain[1:] == "\0\ud800" + chr(99_999)
    assert Asked({**fields, "adapter": 0}, None).prompt[0] != plain[0]
    assert not Asked({**fields, "salt": "a"}, None).prompt.startswith(plain[:2])


@needs_ray
def test_numbers_of_replicas_are_added_up() -> None:
    client = ReplicaClient(Handle(), {})
    client.reports = {
        name: {"state": {"running": 2, "steps": 10, "seconds": 1.5}, "restarts": restarts}
        for name, restarts in (("a", 0), ("b", 1))
    }
    client.present = frozenset({"b"})
    assert client.state == {"running": 2, "steps": 20, "seconds": 3.0}
    assert client.engines == 1
    assert client.is_ready
    assert client.restarts == 2


@pytest.mark.parametrize(
    "text", ["0", "", "-1", "4-2", "0-3", "two", "1-", "²", "1e3", "99999999999"]
)
def test_replicas_that_are_no_number(text: str) -> None:
    with pytest.raises(UsageError, match="--replicas is a number from 1"):
        Scale.of(text)
    assert Scale.of("3") == Scale(3, 3)
    assert Scale.of("2-8", "head:6379") == Scale(2, 8, "head:6379")


def test_options_that_cannot_be_met(capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        (["--replicas", "0"], "--replicas is a number from 1"),
        (["--ray", "auto"], "--ray says where replicas run, and needs --replicas"),
    ):
        with pytest.raises(SystemExit):
            main(["serve", *options])
        assert said in capsys.readouterr().err


@needs_ray
@pytest.mark.parametrize("address", ["head", "ray://head:1", "head:99999999", ":x"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(UsageError, match="--ray is the address of a cluster"):
        asyncio.run(Cluster.connect(Scale(1, 1, address)))


@needs_ray
def test_a_cluster_that_does_not_answer() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"no cluster of Ray answers at {address}"):
            asyncio.run(Cluster.connect(Scale(1, 1, address)))


class Candidate:
    """A replica, and its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replica_id = self

    def to_full_id_str(self) -> str:
        return self.name


@needs_ray
def test_requests_go_where_their_beginning_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the replicas are about equally busy; in any case another one follows, for a replica that is full."""
    replicas = [Candidate("a"), Candidate("b")]

    async def two(*_: Any) -> list[list[Any]]:
        return [replicas]

    monkeypatch.setattr(PowerOfTwoChoicesRequestRouter, "choose_replicas", two)
    router: Any = object.__new__(PrefixRouter)
    router.initialize_state(difference=2, most=100)
    router._replicas = {each: each for each in replicas}
    router._replica_queue_len_cache = busy = {replicas[0]: 2, replicas[1]: 0}
    router._tree.add_tenants(["a", "b"], 0.0)

    def chosen(prompt: str) -> list[list[str]]:
        request = SimpleNamespace(args=[SimpleNamespace(prompt=prompt)])
        return [
            [e.name for e in rank]
            for rank in asyncio.run(router.choose_replicas(replicas, request))
        ]

    asked = SimpleNamespace(args=[SimpleNamespace(prompt="x" * 40)])
    router.on_request_routed(asked, replicas[0], None)
    assert chosen("x" * 30 + "y") == [["a"], ["a", "b"]]
    assert chosen("z" * 30) == [["b"], ["a", "b"]]
    busy[replicas[0]] = 3
    assert chosen("x" * 30 + "y") == [["a", "b"]]
    busy[replicas[0]] = 0
    for letter in "pq":  # more than a cache has
        asked = SimpleNamespace(args=[SimpleNamespace(prompt=letter * 80)])
        router.on_request_routed(asked, replicas[0], None)
    assert router._tree.tenant_to_char_count["a"] <= 100
    assert chosen("x" * 30) == [["b"], ["a", "b"]]
    monkeypatch.setattr(router._tree, "prefix_match", lambda *_: 1 / 0)
    assert chosen("x" * 30) == [["a", "b"]]


def test_without_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "relaxpy.serve.replicas", None)
    with pytest.raises(SystemExit):
        main(["serve", "--replicas", "2", "--port", "0"])
    assert "pip install 'relaxpy[replicas]'" in capsys.readouterr().err


PROMPTS = {
    seed: " ".join(
        random.Random(seed).choices("a list of sets and tuples is what returns".split(), k=6)
    )
    for seed in range(12)
}


class Outcomes:
    """Streams of a server, and how each ended."""

    def __init__(self, http: Any) -> None:
        self.http = http
        self.texts: dict[int, str] = {}
        self.ends: Counter[str] = Counter()

    async def ask(self, seed: int) -> None:
        body = {"prompt": PROMPTS[seed], "seed": seed, "temperature": 0.9, "max_tokens": 30}
        text, end = "", "silent"
        async with self.http.stream(
            "POST", "/v1/completions", json={**body, "ignore_eos": True, "stream": True}
        ) as lines:
            async for line in lines.aiter_lines():
                data = json.loads(line[6:]) if line.startswith("data: {") else {}
                if "error" in data:
                    assert "has ended" in data["error"]["message"]
                    end = "error"
                for choice in data.get("choices", ()):
                    text += choice["text"]
                    end = "whole" if choice["finish_reason"] == "length" else end
        self.ends[end] += 1
        if end == "whole":
            assert self.texts.setdefault(seed, text) == text


def processes(word: str) -> list[int]:
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    return [int(line.split()[0]) for line in lines.stdout.splitlines() if word in line]


@minutes
def test_a_replica_is_killed_under_load(tmp_path: Path) -> None:
    """Each stream is the one that a server alone writes, or ends with an error; Ray starts another replica."""
    httpx = pytest.importorskip("httpx")
    from tests.server.running import server_process

    assert not processes("ray::ServeReplica:relaxpy-"), "another server runs replicas here"

    async def attack(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=300) as http:

            async def engines() -> int:
                lines = (await http.get("/metrics")).text.splitlines()
                (line,) = [line for line in lines if line.startswith("relaxpy_engines{")]
                return int(float(line.split()[1]))

            assert await engines() == 2
            found = Outcomes(http)
            for seed in PROMPTS:
                await found.ask(seed)
            assert found.ends == {"whole": len(PROMPTS)}
            # The beginning of a prompt is in the cache of the replica that had it.
            long = {"prompt": "the list of all sets " * 40, "max_tokens": 1}
            cached = [
                (await http.post("/v1/completions", json=long)).json()["usage"]
                for _ in range(4)
            ]  # fmt: skip
            assert all(each["prompt_tokens_details"]["cached_tokens"] > 100 for each in cached[1:])
            asked = [asyncio.create_task(found.ask(seed % len(PROMPTS))) for seed in range(48)]
            while found.ends.total() < len(PROMPTS) + 4:
                await asyncio.sleep(0.01)
            os.kill(processes("ray::ServeReplica:relaxpy-")[0], signal.SIGKILL)
            await asyncio.gather(*asked)
            assert found.ends.total() == len(PROMPTS) + 48
            assert set(found.ends) <= {"whole", "error"}
            assert found.ends["whole"] >= len(PROMPTS) + 12
            assert (await http.get("/health")).status_code == 200
            for _ in range(300):
                if await engines() == 2:
                    break
                await asyncio.sleep(1)
            assert await engines() == 2
            await found.ask(0)

    with server_process(tmp_path, "--replicas", "2", "--threads", "1", seconds=1200) as running:
        asyncio.run(attack(running.url))
        assert running.process is not None
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(120) == 0
    assert not processes("ray::ServeReplica:relaxpy-")
