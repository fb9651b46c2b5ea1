"""Files from addresses of listed hosts: what is fetched, by which connection, and what is refused before there is one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

from relaxpy.errors import UsageError
from relaxpy.server import fetch
from relaxpy.server.fetch import Address, Hosts, fetched, is_public

HOSTS = Hosts.of(["example.org", "Other.example:8443", "[2606:4700::1]", "10.0.0.1"])
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://example.org", Address("https", "example.org", 443, "/")),
        (
            "HTTP://EXAMPLE.org./a%20b.png?c=d#e",
            Address("http", "example.org", 80, "/a%20b.png?c=d"),
        ),
        ("https://example.org:443/a", Address("https", "example.org", 443, "/a")),
        ("http://other.example:8443/", Address("http", "other.example", 8443, "/")),
        ("https://[2606:4700::1]/a", Address("https", "2606:4700::1", 443, "/a")),
    ],
)
def test_addresses(text: str, found: Address) -> None:
    assert HOSTS.address(text) == found


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("https://example.com/", "nothing is fetched from example.com\n"),
        ("https://sub.example.org/", "nothing is fetched from sub.example.org"),
        ("https://example.org.evil.net/", "nothing is fetched from example.org.evil.net"),
        ("https://example.org:8443/", "nothing is fetched from example.org:8443"),
        ("http://example.org:443/", "nothing is fetched from example.org:443"),
        ("https://other.example/", "nothing is fetched from other.example\n"),
        ("https://example.org@evil.net/", "a name or a password"),
        ("https://evil.net@example.org/", "a name or a password"),
        ("https://example.org\\@evil.net/", "only visible characters"),
        ("https://example.org/a b", "only visible characters"),
        ("https://example.org/\r\nHost: evil.net", "only visible characters"),
        ("https://ex\u00e4mple.org/", "only visible characters"),
        ("ftp://example.org/", "begins with https:// or http://"),
        ("file:///etc/passwd", "begins with https:// or http://"),
        ("https:///a", "and a host"),
        ("https://[::1", "is no address"),
        ("https://example.org:99999/", "is no address"),
        ("https://example.org/" + "a" * 3000, "at most 2048 characters"),
    ],
)
def test_addresses_that_are_refused(text: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        HOSTS.address(text)
    assert caught.value.code == "bad-address"


@pytest.mark.parametrize(
    "text",
    ["", "https://example.org", "example.org/", "*.example.org", "a b", "example.org:0", "example.org:70000", "-a", "a@b"],
)  # fmt: skip
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no host"):
        Hosts.of([text])


@pytest.mark.parametrize(
    ("number", "public"),
    [
        ("93.184.216.34", True), ("2606:4700::1", True), ("127.0.0.1", False), ("10.1.2.3", False), ("192.168.0.1", False),
        ("172.16.0.1", False), ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False),
        ("255.255.255.255", False), ("240.0.0.1", False), ("::1", False), ("::", False), ("fe80::1%eth0", False),
        ("fc00::1", False), ("ff02::1", False), ("::ffff:127.0.0.1", False), ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False), ("64:ff9b::5db8:d822", True), ("2002:7f00:1::", False), ("2001:0:4136:e378::", False),
    ],
)  # fmt: skip
def test_public_numbers(number: str, public: bool) -> None:
    assert is_public(number) is public


# Connections

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def host(answer: bytes | Answer, **options: Any) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A host on this machine: its port, and the heads of requests that came."""
    heads: list[bytes] = []
    open: list[asyncio.StreamWriter] = []

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            if isinstance(answer, bytes):
                writer.write(answer)
            else:
                await answer(reader, writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(work, "127.0.0.1", 0, **options)
    async with server:
        try:
            yield server.sockets[0].getsockname()[1], heads
        finally:
            for each in open:
                each.transport.abort()
            await asyncio.sleep(0.01)


def here(monkeypatch: pytest.MonkeyPatch, *numbers: str, public: bool = True) -> list[str]:
    """Every name means these numbers, one after the other, and is public. Returns the names that were asked for."""
    asked: list[str] = []

    async def getaddrinfo(self: Any, name: str, port: int, **_: Any) -> list[Any]:
        # The names of connections are numbers: anyio asks again.
        number = name
        if not name.replace(".", "").isdigit():
            asked.append(name)
            number = numbers[min(len(asked), len(numbers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port))]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo)
    if public:
        monkeypatch.setattr(fetch, "is_public", lambda number: number == "127.0.0.1")
    return asked


async def get(port: int, scheme: str = "http", most: int = 1000) -> bytes:
    return await fetched(Address(scheme, "pictures.example", port, "/a.png?b"), most)


def test_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked, and that proxies of the environment are not."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    asked = here(monkeypatch, "127.0.0.1", "10.0.0.1")

    async def work() -> tuple[bytes, list[bytes], int]:
        async with host(HEAD + b"abcd") as (port, heads):
            return await get(port), heads, port

    data, (head,), port = asyncio.run(work())
    assert data == b"abcd"
    assert asked == ["pictures.example"]  # once: a second time it would mean another machine
    lines = head.decode().split("\r\n")
    assert lines[0] == "GET /a.png?b HTTP/1.1"
    assert f"Host: pictures.example:{port}" in lines
    assert not [each for each in lines if each.lower().startswith(("cookie", "authorization"))]


async def _dripping(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"40\r\n" + b"a" * 64 + b"\r\n")
        await writer.drain()


async def _endless_head(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nA: ")
    while not writer.is_closing():
        writer.write(b"a" * 4096)
        await writer.drain()


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", "is not followed"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answers 404"),
        (b"HTTP/1.1 206 Partial\r\nContent-Length: 0\r\n\r\n", "answers 206"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9" + b"9" * 5000 + b"\r\n\r\n", "pictures.example"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab", "sends gzip"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "cannot be read"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "cannot be read"),
        (b"", "cannot be read"),
        (_dripping, "within 0.5 seconds"),
        (_flood, "more than 1000 bytes"),
        (_endless_head, "cannot be read"),
    ],
)  # fmt: skip
def test_answers_that_are_refused(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | Answer, match: str
) -> None:
    here(monkeypatch, "127.0.0.1")
    monkeypatch.setattr(fetch, "SECONDS", 0.5 if answer is _dripping else 10)

    async def work() -> None:
        async with host(answer) as (port, _):
            await get(port)

    begin = time.monotonic()
    with pytest.raises(UsageError, match=match) as caught:
        asyncio.run(work())
    assert caught.value.code == "bad-address"
    assert time.monotonic() - begin < 5


def test_private_networks_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the name was public a moment ago, and if only one of its numbers is private."""
    here(monkeypatch, "127.0.0.1", public=False)

    async def work() -> tuple[list[bytes], str]:
        async with host(HEAD + b"abcd") as (port, heads):
            with pytest.raises(UsageError, match="is of a private network") as caught:
                await get(port)
            return heads, str(caught.value)

    heads, text = asyncio.run(work())
    assert not heads
    assert "127.0.0.1" in text


def test_a_name_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*_: Any, **__: Any) -> Sequence[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo)
    with pytest.raises(UsageError, match=r"pictures\.example cannot be read: .*not known"):
        asyncio.run(get(80))


@pytest.mark.parametrize("name", ["pictures.example", "other.example"])
def test_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """A certificate is one for the host's name, not for its number."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=a", "-addext",
        f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    here(monkeypatch, "127.0.0.1")
    trusted = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(fetch, "_certificates", lambda: trusted)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def work() -> bytes:
        async with host(HEAD + b"abcd", ssl=context) as (port, _):
            return await get(port, "https")

    if name == "pictures.example":
        assert asyncio.run(work()) == b"abcd"
        return
    with pytest.raises(UsageError, match=r"cannot be read: .*CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(work())
