"""Files from addresses, of hosts that the owner of the server lists, and from nowhere else.

    hosts = Hosts.of(["example.org", "pictures.example.org:8443"])
    data = await fetched(hosts.address("https://example.org/cat.png"))

A name is resolved once, and the connection goes to the address that was looked at: a name that means another machine a
moment later reaches nothing. An address of a private network is refused, also that of a host that is listed. Redirects
are not followed, proxies are not asked, no cookies are sent, and https needs a certificate for the host's name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from relaxpy.errors import UsageError
from relaxpy.version import __version__

MOST_BYTES = 1 << 24
"""The most bytes of a file."""
SECONDS = 10.0
"""The most time from the name to the last byte."""
_LONGEST = 2048
"""The most characters of an address."""
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?)(?::([0-9]{1,5}))?")
_VISIBLE = re.compile(r"[!-~]+")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses of version 4, as networks of version 6 have them (NAT64)."""


class Address(NamedTuple):
    """Where a file is."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""


@dataclass(frozen=True)
class Hosts:
    """The hosts that files may come from."""

    all: frozenset[tuple[str, int | None]] = frozenset()
    """Names and ports; None: those of http and https."""

    @classmethod
    def of(cls, given: Sequence[str]) -> Hosts:
        """As the owner writes them: a name, or a name and a port. Raises: UsageError (`bad-arguments`)."""
        found: set[tuple[str, int | None]] = set()
        for text in given:
            host = _HOST.fullmatch(text.lower())
            if host is None or (host[3] is not None and not 0 < int(host[3]) < 1 << 16):
                raise UsageError(
                    "bad-arguments",
                    f"{text[:100]!r} is no host",
                    help="write example.org, or example.org:8443; each host by itself, without a path",
                )
            found.add((host[1].strip("[]"), None if host[3] is None else int(host[3])))
        return cls(frozenset(found))

    def address(self, text: str) -> Address:
        """The parts of an address. Raises: UsageError (`bad-address`) for one that is none, or not of these hosts."""
        if len(text) > _LONGEST:
            raise _refused(f"an address has at most {_LONGEST} characters, this one {len(text)}")
        if not _VISIBLE.fullmatch(text) or "\\" in text:
            raise _refused(
                "an address has only visible characters of ASCII, and no \\: encode others"
            )
        try:
            parts = urlsplit(text)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise _refused(f"{text[:100]} is no address") from None
        if parts.scheme not in _PORTS or not host:
            raise _refused(
                f"an address begins with https:// or http:// and a host, got {text[:100]}"
            )
        if "@" in parts.netloc:
            raise _refused("an address with a name or a password of a user is not fetched")
        usual = _PORTS[parts.scheme]
        port = usual if port is None else port
        if (host, port) not in self.all and not (port == usual and (host, None) in self.all):
            raise _refused(
                f"nothing is fetched from {host}{'' if port == usual else f':{port}'}",
                help="send the picture as a data URI, or let the owner of the server list the host (relaxpy serve "
                "--image-host)",
            )
        query = f"?{parts.query}" if parts.query else ""
        return Address(parts.scheme, host, port, f"{parts.path or '/'}{query}")


async def fetched(address: Address, most: int = MOST_BYTES) -> bytes:
    """The file at an address, of so many bytes at most. Raises: UsageError (`bad-address`)."""
    try:
        async with asyncio.timeout(SECONDS):
            return await _fetched(address, most)
    except TimeoutError:
        raise _refused(f"{address.host} did not send the file within {SECONDS:g} seconds") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        why = str(error)[:200] or type(error).__name__
        raise _refused(f"{address.host} cannot be read: {why}") from None


async def _fetched(address: Address, most: int) -> bytes:
    numbers = await _resolved(address)
    if private := [each for each in numbers if not is_public(each)]:
        raise _refused(f"{address.host} is of a private network ({private[0]}): nothing is fetched")
    name = f"[{address.host}]" if ":" in address.host else address.host
    usual = address.port == _PORTS[address.scheme]
    headers = {
        "Host": name if usual else f"{name}:{address.port}", "Accept": "image/*", "Accept-Encoding": "identity",
        "User-Agent": f"relaxpy/{__version__}",
    }  # fmt: skip
    # The name is resolved already: the connection goes to the number, and the certificate is for the name.
    number = f"[{numbers[0]}]" if ":" in numbers[0] else numbers[0]
    url = f"{address.scheme}://{number}:{address.port}{address.target}"
    named = {"sni_hostname": address.host}
    async with (
        httpx.AsyncClient(verify=_certificates(), trust_env=False, timeout=SECONDS) as client,
        client.stream("GET", url, headers=headers, extensions=named) as answer,
    ):
        return await _body(address.host, answer, most)


async def _body(host: str, answer: httpx.Response, most: int) -> bytes:
    if answer.is_redirect:
        raise _refused(f"{host} sends on to another address, which is not followed")
    if answer.status_code != 200:
        raise _refused(f"{host} answers {answer.status_code}")
    if (coding := answer.headers.get("content-encoding", "identity")) != "identity":
        raise _refused(f"{host} sends {coding[:40]}, which was not asked for")
    length, data = answer.headers.get("content-length", ""), bytearray()
    if length.isdecimal() and int(length[:20]) > most:
        raise _too_large(host, most)
    async for part in answer.aiter_raw():
        data += part
        if len(data) > most:
            raise _too_large(host, most)
    return bytes(data)


async def _resolved(address: Address) -> list[str]:
    """The numbers of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


def is_public(number: str) -> bool:
    """Whether an address of the internet protocol is one that everybody reaches: none of this machine, of a private
    network, of many machines at once, and none of version 6 behind which there is such a one of version 4."""
    found = ipaddress.ip_address(number.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found in _TRANSLATED:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found.sixtofour is not None or found.teredo is not None:
            return False
    return found.is_global and not found.is_multicast and not found.is_reserved


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


def _too_large(host: str, most: int) -> UsageError:
    return _refused(f"the file of {host} has more than {most} bytes")


def _refused(message: str, help: str | None = None) -> UsageError:
    return UsageError("bad-address", message, help=help)
