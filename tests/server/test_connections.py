"""Connections: as many as there may be, 503 above them, and few words about it."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("uvicorn")
from relaxpy.server import connections
from relaxpy.server.connections import bound, most_connections, note_failure
from tests.server.running import TEMPLATE, scripted_server

httpx: Any = pytest.importorskip("httpx")


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "most", "raised"),
    [
        (1024, 4096, 1024, 1024, 1152),
        (1024, 1024, 1024, 896, 1024),
        (100, 100, 1024, 50, 100),
        (256, resource.RLIM_INFINITY, 1000, 1000, 1128),
        (9000, 9000, 1024, 1024, 9000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 7, 7, resource.RLIM_INFINITY),
    ],
)
def test_there_are_descriptors_for_all_connections(
    soft: int, hard: int, asked: int, most: int, raised: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert most_connections(asked) == most
    assert limits[-1] == (raised, hard)


@pytest.fixture
def few() -> Iterator[str]:
    """A server of three connections."""
    with scripted_server({TEMPLATE: ["Yes."]}, connections=3) as url:
        yield url


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def health(url: str) -> int:
    return httpx.get(f"{url}/health", timeout=20).status_code


def until(url: str, status: int) -> None:
    deadline = time.monotonic() + 20
    while health(url) != status:
        assert time.monotonic() < deadline


def test_connections_above_the_most_are_told_so(few: str) -> None:
    """Idle ones hold no more than their places, and places are free again when they go."""
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(few)) for _ in range(3)]
        until(few, 503)
        found = httpx.get(f"{few}/v1/models", timeout=20)
        assert (found.status_code, found.headers["connection"]) == (503, "close")
        assert found.json()["error"]["message"] == "too many connections"
        idle[0].close()
        until(few, 200)


def test_very_many_are_closed_at_once(few: str) -> None:
    count = 3 + connections._OVER + 20
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(few)) for _ in range(count)]
        last = idle[-1]
        assert last.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
        assert last.recv(1) == b""
        time.sleep(connections._OVER_SECONDS + 0.5)
        until(few, 503)  # who came later is answered, too
    until(few, 200)


def test_a_listener_counts_what_is_open() -> None:
    with bound("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            own, _ = listener.accept()
            assert listener.open == {own.fileno()}
            own.close()
            own.close()
        assert listener.open == set()


def test_no_descriptors_is_one_line_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = kept.append  # type: ignore[method-assign]
    monkeypatch.setattr(logging.getLogger("asyncio"), "handlers", [handler])
    error = OSError(errno.EMFILE, "Too many open files")
    with asyncio.Runner() as runner:
        context = {"message": "socket.accept() out of system resource", "exception": error}
        note_failure(runner.get_loop(), context)
    (record,) = kept
    assert "Too many open files" in record.getMessage()
    assert record.exc_info is None  # no traceback


def test_bodies_of_very_many_parts_are_refused() -> None:
    with scripted_server({TEMPLATE: ["Yes."]}) as url, connect(url) as connection:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        found = b""
        try:
            connection.sendall(b"1\r\n \r\n" * 3000)
            found = connection.recv(1 << 16)
        except ConnectionError:
            pass
        assert found.startswith(b"HTTP/1.1 400 ") or not found
        body = b'{"messages": [{"role": "user", "content": "' + b"a" * 3000 + b'"}]}'
        pieces = (body[n : n + 80] for n in range(0, len(body), 80))
        assert (
            httpx.post(
                f"{url}/v1/chat/completions",
                content=pieces,
                headers={"content-type": "application/json"},
            ).status_code
            == 200
        )
