"""The gate: it goes by the path that is routed, and says a thing once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.sweeps import sweep

pytest.importorskip("fastapi")
from starlette.requests import Request

from relaxpy.server.app import create_app
from relaxpy.server.context import Server
from relaxpy.server.gate import Once
from relaxpy.server.settings import ServerSettings


def status(
    path: str,
    method: str = "GET",
    headers: tuple[tuple[bytes, bytes], ...] = ((b"host", b"localhost"),),
    keys: tuple[str, ...] = ("secret",),
) -> tuple[int, dict[bytes, bytes]]:
    """What is answered to a request, by the application alone."""
    app = create_app(Server(ServerSettings(api_keys=keys), {}))
    found: list[Any] = []
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": list(headers), "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1), "scheme": "http", "root_path": "", "state": {},
    }  # fmt: skip

    body = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if not body:
            await asyncio.Event().wait()  # nothing comes any more
        return body.pop()

    async def send(message: Any) -> None:
        found.append(message)

    asyncio.run(app(scope, receive, send))
    return found[0]["status"], dict(found[0]["headers"])


@sweep(2)
@pytest.mark.parametrize("host", [b"x/health?", b"x/health#", b"localhost/", b"a/ping?b", b""])
def test_the_header_host_opens_nothing(host: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def url(_: Any) -> Any:
        raise AssertionError("some versions of Starlette make the URL from the header Host")

    monkeypatch.setattr(Request, "url", property(url))
    for path in ("/v1/models", "/metrics", "/v1/messages", "/nothing"):
        assert status(path, headers=((b"host", host),))[0] == 401
    key = (b"authorization", b"Bearer secret")
    assert status("/v1/models", headers=((b"host", host), key))[0] == 200
    assert status("/nothing", headers=((b"host", host), key))[0] == 404
    assert status("/health", headers=((b"host", host),))[0] == 200


def test_a_target_may_be_an_address() -> None:
    """The host in it counts, not that of the header."""
    assert status("http://localhost/v1/models")[0] == 401
    assert status("http://localhost:80/v1/models", keys=())[0] == 200
    assert status("HTTPS://localhost", keys=())[0] == 200
    assert status("http://evil.example/v1/models", keys=())[0] == 403


def test_methods() -> None:
    assert status("/health", "HEAD")[0] == 200
    assert status("/v1/models", "HEAD")[0] == 401
    for path, allowed in (
        ("/health", b"GET, HEAD, OPTIONS"),
        ("/v1/chat/completions", b"OPTIONS, POST"),
        ("/v1/responses/a", b"DELETE, GET, HEAD, OPTIONS"),
    ):
        found, headers = status(path, "OPTIONS", keys=())
        assert (found, headers[b"allow"]) == (204, allowed)
        found, headers = status(path, "PATCH", keys=())
        assert (found, headers[b"allow"]) == (405, allowed)
    assert status("/nothing", "OPTIONS", keys=())[0] == 404
    assert status("*", "OPTIONS", keys=())[0] == 204


def test_where_a_body_ends_is_clear() -> None:
    host = (b"host", b"localhost")
    both = (host, (b"content-length", b"2"), (b"transfer-encoding", b"chunked"))
    found, headers = status("/health", "POST", both)
    assert (found, headers[b"connection"]) == (400, b"close")
    long = (host, *((b"x-%d" % n, b"a" * 1000) for n in range(70)))
    found, headers = status("/health", headers=long)
    assert (found, headers[b"connection"]) == (431, b"close")


def test_a_message_is_said_once_in_a_while() -> None:
    own = logging.getLogger("tests.once")
    kept: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append(record.getMessage())
    own.addHandler(handler)
    own.addFilter(once := Once(60))
    for _ in range(300):
        own.warning("too many %s", "clients")
    own.warning("another")
    assert kept == ["too many clients", "another"]
    once.seconds = 0
    own.warning("too many %s", "clients")
    assert kept[-1] == "too many clients (299 times more before)"
