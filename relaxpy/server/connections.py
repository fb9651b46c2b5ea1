"""Connections of a server: how many there may be, what they may send, and how much is said about it.

A process has so many descriptors, and asyncio stands still without them. So the limit of the process is raised as far
as the connections need, and if that is not far enough there are fewer of them. One more than that is answered with
503, and many more are closed as soon as they are accepted.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from typing import TYPE_CHECKING, Any

import h11
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from relaxpy.errors import UsageError
from relaxpy.server.errors import ApiError
from relaxpy.server.gate import MOST_HEAD, Once, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("relaxpy.server.connections")
logger.addFilter(Once())
IDLE_SECONDS = 75
"""How long a connection without requests stays open: longer than clients keep theirs (often 5 s), since a request that
is sent while the connection is being closed is lost."""
HEAD_SECONDS = 15.0
"""The most time that a head takes to arrive."""
_OVER = 32
"""Connections above the most, which are told so."""
_OVER_SECONDS = 1.0
"""The most time that the head of their request takes."""
_OTHERS = 128
"""Descriptors that are no clients' connections: those above the most, engines, files."""
ACCEPTED = 32
"""Connections that are accepted before something else is done."""
QUEUE = 1024
"""Connections that the system keeps until they are accepted."""
_FREE_PARTS = 1024
_LEAST_PART = 64
"""The parts of a body, chunks above all, have so many bytes on average, but for so many parts: each takes time."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 20\r\n\r\nToo many connections"
)


def most_connections(asked: int) -> int:
    """How many connections there may be, of those asked for. The limit of descriptors is raised for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return asked
    wanted = asked + _OTHERS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return asked
    found = max(soft - _OTHERS, soft // 2)
    logger.warning(
        "%d connections at most, not %d: the process may open %d files (ulimit -n)",
        found, asked, soft,
    )  # fmt: skip
    return found


class Listener(socket.socket):
    """A socket that listens, and knows how many of its connections are open."""

    most: int | None = None
    """The most connections; None: any number."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.open: set[int] = set()
        """The descriptors of its connections, without those above the most."""
        self.over: set[int] = set()
        """Those of connections above the most."""

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket.accept`."""
        given, address = super().accept()
        found = _Accepted(given.family, given.type, given.proto, fileno=given.detach())
        if self.most is not None and len(self.open) >= self.most:
            if len(self.over) >= _OVER:
                _turn_away(found)
                raise BlockingIOError  # for asyncio: nothing else is done now
            self.over.add(found.fileno())
        else:
            self.open.add(found.fileno())
        found.listener = self
        return found, address


class _Accepted(socket.socket):
    listener: Listener | None = None

    def close(self) -> None:
        """See `socket.socket.close`."""
        if self.listener is not None:
            self.listener.open.discard(self.fileno())
            self.listener.over.discard(self.fileno())
            self.listener = None
        super().close()


def _turn_away(connection: socket.socket) -> None:
    """Answer 503, whatever was asked."""
    logger.warning(_TOO_MANY)
    with connection:
        try:
            connection.setblocking(False)
            connection.send(_FULL)
            connection.recv(MOST_HEAD)  # to close before that would reset the connection
        except OSError:
            return


_TOO_MANY = "too many connections: some are answered with 503"


def bound(host: str, port: int) -> Listener:
    """A socket at an address. It does not listen yet: clients are refused until the models are there.

    Raises: UsageError (`bad-arguments`) for one that is in use, or none of this machine.
    """
    # asyncio sends small packets at once (TCP_NODELAY) on sockets that name their protocol.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        return found
    except OSError as error:
        found.close()
        raise UsageError(
            "bad-arguments",
            f"port {port} of {host} cannot be used: {error.strerror or error}",
            help="give another one with --port; 0 takes any that is free",
        ) from None


def note_failure(_: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Handles what asyncio could not do: a line of the log, with the place in the program only where it helps."""
    error = context.get("exception")
    is_of_system = isinstance(error, OSError)
    logging.getLogger("asyncio").warning(
        "%s%s",
        context.get("message"),
        f": {error}" if is_of_system else "",
        exc_info=None if is_of_system else error,
    )


class Protocol(H11Protocol):
    """HTTP/1.1 by h11; a head that does not arrive in time ends the connection."""

    _timer: asyncio.TimerHandle | None = None
    _seconds = HEAD_SECONDS

    def __init__(self, listener: Listener, **given: Any) -> None:
        super().__init__(**given)
        self._listener = listener
        self.conn = _Http(h11.SERVER, MOST_HEAD)

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        if transport.get_extra_info("socket").fileno() in self._listener.over:
            logger.warning(_TOO_MANY)
            self.app, self._seconds = _full, _OVER_SECONDS
        self._timer = self.loop.call_later(self._seconds, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._timer is None:  # the head of the next request has begun
            self._timer = self.loop.call_later(self._seconds, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class _Http(h11.Connection):
    """Refuses bodies of very many parts."""

    _parts = _bytes = 0

    def next_event(self) -> Any:
        """See `h11.Connection`."""
        found = super().next_event()
        if isinstance(found, h11.Data):
            self._parts += 1
            self._bytes += len(found.data)
            if self._parts > _FREE_PARTS + self._bytes // _LEAST_PART:
                raise h11.RemoteProtocolError("the parts of the body are too small")
        elif isinstance(found, h11.Request):
            self._parts = self._bytes = 0
        return found


async def _full(scope: Scope, receive: Receive, send: Send) -> None:
    error = ApiError(
        "too many connections", status=503, headers={"Retry-After": "1", "Connection": "close"}
    )
    await refusal(Request(scope), error)(scope, receive, send)
