"""The gate that every request passes: its id, the key, the log and the metrics, and errors that nobody expected."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import re
import secrets
import sys
import time
from collections import Counter
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relaxpy.server.context import Server, answer
from relaxpy.server.errors import ApiError
from relaxpy.server.settings import ServerSettings

logger = logging.getLogger("relaxpy.server")
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_OPEN = frozenset({"/", "/health", "/ping", "/favicon.ico"})
"""Paths that need no key."""
MOST_HEAD = 64 << 10
"""The most bytes of a request's head."""
_MOST_PATH = 200
"""The most characters of a path in the log."""
_KEPT = 100
"""Messages that are remembered."""
_GONE = 499
"""The status in logs of a request whose client has gone, as nginx has it."""


class Gate:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app, self.server = app, server
        self._keys = [_digest(key) for key in server.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return
        scope = _as_get(_in_origin_form(scope))
        request = Request(scope)
        given = request.headers.get("x-request-id", "")
        name = given if _ID.fullmatch(given) else f"req_{secrets.token_hex(8)}"
        start, status = time.perf_counter(), 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        failure = ""
        try:
            self._check(request)
            await self.app(scope, receive, send_on)
        except ApiError as error:
            await refusal(request, error)(scope, receive, send_on)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            logger.exception("%s failed", name)
            if not status:
                wrong = ApiError(f"the server failed; its log has {name}", status=500)
                await refusal(request, wrong)(scope, receive, send_on)
            else:
                raise
        finally:
            route = getattr(scope.get("route"), "path", "")
            self.server.metrics.requests.labels(route, str(status or _GONE)).inc()
            self._log(request, name, status or _GONE, time.perf_counter() - start, failure)

    def _check(self, request: Request) -> None:
        """Raises: ApiError (401, 403, 503)."""
        # Not `request.url`: older versions of Starlette make it from the header Host.
        settings, path = self.server.settings, request.scope["path"]
        _check_head(request.scope)
        if not settings.api_keys and not _is_ours(request.headers.get("host", ""), settings):
            # A page in a browser could reach a server without a key by a name of its own (DNS rebinding).
            raise ApiError("this server answers under its address only", status=403)
        if path in _OPEN or not settings.api_keys:
            return
        head = request.headers.get("authorization", "")
        kind, _, key = head.partition(" ")
        if kind.lower() != "bearer":
            key = request.headers.get("x-api-key", "")
        if not key.strip():
            raise ApiError("this server needs an API key", status=401, code="invalid_api_key")
        digest = _digest(key.strip())
        fits = [secrets.compare_digest(digest, each) for each in self._keys]
        if not any(fits):
            raise ApiError("the API key is wrong", status=401, code="invalid_api_key")
        request.state.client = digest.hex()[:12]

    def _log(self, request: Request, name: str, status: int, seconds: float, failure: str) -> None:
        fields: dict[str, Any] = {
            "id": name,
            "client": request.client.host if request.client else "",
            "method": request.method,
            "path": request.scope["path"][:_MOST_PATH],
            "status": status,
            "ms": round(seconds * 1000, 1),
        }
        tally = getattr(request.state, "tally", None)
        if tally is not None:
            fields.update(
                prompt_tokens=tally.prompt_tokens,
                cached_tokens=tally.cached_tokens,
                completion_tokens=tally.completion_tokens,
            )
        if failure:
            fields["error"] = failure
        logger.info("", extra={"fields": fields})


def refusal(request: Request, error: ApiError) -> Any:
    """An error as an answer, in the shape that the path's clients know."""
    is_anthropic = request.scope["path"].startswith("/v1/messages")
    data = error.anthropic() if is_anthropic else error.openai()
    # 499 is for logs.
    return answer(data, 400 if error.status == _GONE else error.status, **error.headers)


def _in_origin_form(scope: Scope) -> Scope:
    """A request whose target is an address (`GET http://host/path`, as proxies are asked), as one for its path. The
    host in it is the one that was meant, whatever the header says (RFC 9112, 3.2.2)."""
    kind, mark, rest = scope.get("raw_path", b"").partition(b"://")
    if not mark or kind.lower() not in (b"http", b"https"):
        return scope
    host, _, path = rest.partition(b"/")
    headers = [each for each in scope["headers"] if each[0] != b"host"]
    own = {"raw_path": b"/" + path, "path": "/" + unquote(path.decode("latin-1"))}
    return {**scope, **own, "headers": [*headers, (b"host", host)]}


def _as_get(scope: Scope) -> Scope:
    """HEAD is GET, of whose answer the server of HTTP sends the head only."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _check_head(scope: Scope) -> None:
    """Raises: ApiError for a head that is too long, or from which it is not clear where the body ends."""
    size = len(scope.get("raw_path", b"")) + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEAD:
        raise ApiError(
            f"the head of a request has at most {MOST_HEAD} bytes", status=431, headers=_CLOSE
        )
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" in names and (
        b"content-length" in names or scope["http_version"] == "1.0"
    ):
        # A proxy in front may see another end, and what follows as another request (RFC 9112, 6.1).
        text = "a request has Content-Length, or in HTTP/1.1 Transfer-Encoding, and not both"
        raise ApiError(text, headers=_CLOSE)


_CLOSE = {"Connection": "close"}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _is_ours(host: str, settings: ServerSettings) -> bool:
    """Whether a request came to an address of a server that listens on this machine only."""
    if not is_loopback(settings.host):
        return True
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower() == settings.host.lower() or is_loopback(name)


def is_loopback(host: str) -> bool:
    """Whether a host is reached from this machine only."""
    if host.lower() in ("localhost", "", "testserver"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def start_log(kind: str) -> None:
    """Write a line for each request to stderr: as text, as JSON, or none."""
    logger.handlers.clear()
    logger.propagate = False
    logger.setLevel(logging.WARNING if kind == "none" else logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(kind))
    logger.addHandler(handler)
    for name in ("uvicorn.error", "asyncio"):
        # Whoever sends what is no HTTP must not fill the disk.
        own = logging.getLogger(name)
        own.handlers.clear()
        own.propagate = False
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(_Lines(kind))
        handler.addFilter(Once())
        own.addHandler(handler)


class Once(logging.Filter):
    """Lets a message pass once in a while, with the number of those that did not."""

    def __init__(self, seconds: float = 60.0) -> None:
        super().__init__()
        self.seconds = seconds
        self._last: dict[str, float] = {}
        self._left: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        text, now = record.getMessage()[:_MOST_PATH], record.created
        if len(self._last) > _KEPT:
            self._last.clear()
        if now - self._last.get(text, -self.seconds) < self.seconds:
            self._left[text] += 1
            return False
        self._last[text] = now
        if left := self._left.pop(text, 0):
            record.msg, record.args = f"{record.getMessage()} ({left} times more before)", None
        return True


class _Lines(logging.Formatter):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        fields: dict[str, Any] = getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            fields = {**fields, "error": self.formatException(record.exc_info)}
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        when = f"{when}.{int(record.msecs):03d}Z"
        if self.kind == "json":
            return json.dumps({"time": when, "level": record.levelname.lower(), **fields})
        shown = " ".join(
            str(value) if key in ("method", "path", "status", "message") else f"{key}={value}"
            for key, value in fields.items()
        )
        return f"{when} {printable(shown)}"


def printable(text: str) -> str:
    """A text without characters that control a terminal."""
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)
