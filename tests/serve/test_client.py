"""The engine as a process: many requests at once, cancelled ones, and what is left when the process ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from relaxpy.errors import RelaxError, UsageError
from relaxpy.serve.client import EngineClient
from relaxpy.serve.messages import frame, piece_fields, piece_of, request_fields, request_of
from relaxpy.serve.request import Piece, Request
from relaxpy.serve.sampling import Sampling
from tests.serve.fake_model import EXITS, SLEEPS, expected

FAKE = "tests.serve.fake_model:fake_engine"


def with_client(
    work: Callable[[EngineClient], Awaitable[None]], patience: float = 60, **options: Any
) -> None:
    async def run() -> None:
        client = await EngineClient.start(FAKE, {"pages": 64, **options}, patience)
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(run(), 120))


async def written(client: EngineClient, request: Request) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in range(request.n)]
    async for piece in client.submit(request):
        texts[piece.choice] += piece.tokens
    return texts


def request(seed: int, prompt: tuple[int, ...] = (1, 2, 3), count: int = 12, n: int = 1) -> Request:
    return Request(0, prompt, count, Sampling(seed=seed), n=n)


def alone(one: Request) -> list[list[int]]:
    return [expected(one, choice) for choice in range(one.n)]


def test_many_at_once_and_cancelled_ones() -> None:
    async def work(client: EngineClient) -> None:
        assert client.facts == {"pages": 64}
        requests = [request(seed, n=1 + seed % 3) for seed in range(40)]
        cancelled = [request(100 + seed, count=200) for seed in range(5)]

        async def leave(one: Request) -> None:
            stream: Any = client.submit(one)
            await anext(stream)
            await stream.aclose()

        found = await asyncio.gather(
            *(written(client, each) for each in requests), *(leave(each) for each in cancelled)
        )
        assert found[:40] == [alone(each) for each in requests]
        assert client.active == 0
        await written(client, request(1, count=1))
        assert client.state["running"] == client.state["waiting"] == 0
        assert client.state["pages_available"] == 64

    with_client(work)


def test_numbers_are_those_of_the_moment() -> None:
    """Before the first step, and when the last text is cancelled, after which no step follows."""

    async def work(client: EngineClient) -> None:
        assert client.state["pages_available"] == 64
        stream: Any = client.submit(request(3, count=200, n=3))
        await anext(stream)
        assert client.state["running"] == 3
        await stream.aclose()
        while client.state["running"]:
            await asyncio.sleep(0.005)
        assert client.state["pages_available"] == 64
        assert client.state["generated_tokens"] > 0

    with_client(work)


def test_numbers_of_an_engine_that_has_ended() -> None:
    async def work(client: EngineClient) -> None:
        with pytest.raises(UsageError, match="the engine has ended"):
            await written(client, request(1, (3, EXITS), 200))
        if not client.is_ready:
            assert client.state["running"] == 0
        while not client.is_ready:
            await asyncio.sleep(0.005)
        assert client.state["running"] == 0
        assert client.state["pages_available"] == 64

    with_client(work)


def test_a_refused_request_is_an_error_of_its_own() -> None:
    async def work(client: EngineClient) -> None:
        with pytest.raises(UsageError, match="together more than the 256") as caught:
            await written(client, request(1, count=300))
        assert caught.value.code == "bad-length"
        assert caught.value.help is not None
        assert await written(client, request(2)) == alone(request(2))

    with_client(work)


def test_a_request_that_takes_too_long_is_cancelled() -> None:
    async def work(client: EngineClient) -> None:
        with pytest.raises(UsageError, match=r"more than 0\.001 seconds"):
            async for _ in client.submit(request(1, count=200), seconds=0.001):
                pass
        await written(client, request(2))
        assert client.state["pages_available"] == 64

    with_client(work)


@pytest.mark.parametrize("way", ["exits", "killed", "silent"])
def test_an_engine_that_ends_gives_errors_and_comes_again(way: str) -> None:
    async def work(client: EngineClient) -> None:
        deadly = {"exits": (3, EXITS), "silent": (3, SLEEPS), "killed": (1, 2, 3)}[way]
        others = [asyncio.create_task(written(client, request(s, count=200))) for s in range(3)]
        await asyncio.sleep(0.01)
        others.append(asyncio.create_task(written(client, request(9, deadly, 200))))
        if way == "killed":
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
        for seed, each in enumerate(await asyncio.gather(*others, return_exceptions=True)):
            if isinstance(each, UsageError):
                assert each.code == "engine"
            else:
                assert each == alone(request(seed, count=200))
        assert client.active == 0
        while not client.is_ready:
            await asyncio.sleep(0.02)
        assert await written(client, request(5)) == alone(request(5))
        assert client.restarts == 1

    with_client(work, patience=0.4 if way == "silent" else 60)


def test_an_engine_that_does_not_start_says_why() -> None:
    async def start(factory: str, **options: Any) -> None:
        await EngineClient.start(factory, options)

    with pytest.raises(UsageError, match="a cache needs pages"):
        asyncio.run(start(FAKE, pages=0))
    with pytest.raises(UsageError, match="TypeError"):
        asyncio.run(start(FAKE, wrong=0))
    with pytest.raises(UsageError, match="ended while it started"):
        asyncio.run(start("os:_exit", status=3))


def test_messages_are_what_they_were() -> None:
    sampling = Sampling(
        bias={3: -1.5, 70: float("-inf")},
        seed=-5,
        top_k=3,
        bad_words_ids=((1, 2), (3,)),
        sequence_bias=(((4, 5), float("-inf")),),
    )
    one = Request(
        4, (1, 2), 9, sampling, frozenset({7}), 2, 5, 1, "salt", "client", -3, '{"grammar": 1}'
    )
    assert request_of(json.loads(json.dumps(request_fields(one)))) == one
    for piece in (
        Piece(1, 0, (5,)),
        Piece(1, 2, (5, 6), (-0.5, -1.0), ({5: -0.5}, {6: -1.0, 1: -2.0}), 0, "length"),
    ):
        assert piece_of(piece_fields(piece)) == piece
    for error, code, text in (
        (UsageError("sampling", "no", help="so"), "sampling", "no"),
        (RelaxError("not-a-number", "no"), "not-a-number", "no"),
        (RelaxError("out-of-memory", "no"), "engine", "RelaxError: "),
        (MemoryError("no"), "engine", "MemoryError: no"),
    ):
        found = piece_of(piece_fields(Piece(1, 0, (), finish="error", error=error)))
        assert isinstance(found.error, UsageError)
        assert found.error.code == code
        assert found.error.message.startswith(text)
        assert found.error.help == getattr(error, "help", None)
    with pytest.raises(UsageError, match="at most 64 MiB, and this one has 65 MiB") as caught:
        frame({"text": "x" * (65 << 20)})
    assert caught.value.code == "bad-length"
