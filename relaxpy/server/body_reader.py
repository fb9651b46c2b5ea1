"""Reads bodies of requests.

Work comes after its bound: bytes are counted while they arrive, values before they are parsed, and validation stops at
the first mistake of a list (`relaxpy.server.bodies`). Large bodies are parsed in a thread, few at a time.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from relaxpy.narrow import is_list, is_mapping
from relaxpy.server.bodies import MOST_FIELDS, REFUSED
from relaxpy.server.errors import ApiError

B = TypeVar("B", bound=BaseModel)
MOST_VALUES = 1 << 18
"""The most values of a body: numbers, texts, lists, objects and names of fields."""
MOST_GROUPS = 1 << 14
"""The most lists and objects of a body."""
_LARGE = 1 << 16
"""Bodies of more bytes are parsed in a thread."""
_PARSED = 2
"""The most large bodies that are parsed at a time."""
_HELD = 32
"""Bodies that arrive may have so many times the bytes of the largest one, together."""
_JSON = "application/json"


class BodyReader:
    """Reads the bodies of a server."""

    def __init__(self, most: int, seconds: float, held: int = _HELD) -> None:
        """`most` is the limit of a body in bytes, `seconds` the time in which it must arrive. Bodies that are not
        parsed yet may take `held` times `most` bytes together."""
        self.most, self.seconds, self._most_held = most, seconds, held * most
        self._held = 0
        """The bytes that have arrived of bodies that are not parsed yet."""
        self._large = asyncio.Semaphore(_PARSED)

    async def read(self, request: Request, kind: type[B]) -> B:
        """The body of a request. Raises: ApiError for one that is too large, too slow, no JSON, or has other fields."""
        # A page of another origin can send other types without asking first (CORS).
        if type_of(request) != _JSON:
            raise ApiError(f"the body of a request is JSON: send Content-Type: {_JSON}", status=415)
        data = bytearray()
        request.state.body_bytes = 0
        try:
            async with aclosing(self.parts(request)) as parts:
                async for part in parts:
                    data += part
            if len(data) <= _LARGE:
                return parsed(data, kind)
            async with self._large:
                return await run_in_threadpool(parsed, data, kind)
        finally:
            self.let_go(request)

    def let_go(self, request: Request) -> None:
        """The bytes of a body are held no longer."""
        self._held -= request.state.body_bytes
        request.state.body_bytes = 0

    async def parts(self, request: Request) -> AsyncGenerator[bytes]:
        """The parts of a body as they arrive, counted as held until `let_go`. Raises: ApiError."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 15 or int(length) > self.most):
            raise self._too_large()
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.seconds
        stream = request.stream()
        try:
            while True:
                async with asyncio.timeout_at(ends):
                    part = await anext(stream, None)
                if part is None:
                    return
                if request.state.body_bytes + len(part) > self.most:
                    raise self._too_large()
                if self._held + len(part) > self._most_held:
                    raise ApiError("too many large bodies arrive at once", status=503)
                self._held += len(part)
                request.state.body_bytes += len(part)
                yield part
        except TimeoutError:
            text = f"the body did not arrive within {self.seconds:g} seconds"
            raise ApiError(text, status=408) from None
        except ClientDisconnect:
            raise ApiError("the client has gone", status=499) from None

    def _too_large(self) -> ApiError:
        return ApiError(f"a body has at most {self.most} bytes", status=413)


def type_of(request: Request) -> str:
    """The type of a body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def parsed(data: bytearray, kind: type[B]) -> B:
    """The body in these bytes, which are let go. It may take a while: for a thread. Raises: ApiError."""
    _check_counts(data)
    try:
        fields: Any = from_json(data.removeprefix(b"\xef\xbb\xbf"), allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {str(error)[:200]}") from None
    data.clear()
    if not isinstance(fields, dict):
        raise ApiError("the body is not a JSON object")
    _check_values(fields)
    return validated(fields, kind)


def validated(fields: Any, kind: type[B]) -> B:
    """The body with these fields. Raises: ApiError."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error, fields) from None


def _check_counts(data: bytearray) -> None:
    """Raises: ApiError for more values than a body may have."""
    groups, values = _counts(data)
    if groups <= MOST_GROUPS and values <= MOST_VALUES:
        return
    # Brackets and commas in texts do not count. A quote that is escaped is part of a text.
    plain = data
    if b"\\" in data:
        plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') <= 2 * MOST_VALUES:
        groups, values = _counts(b"".join(plain.translate(None, _TEXT).split(b'"')[::2]))
    if groups > MOST_GROUPS:
        raise ApiError(f"a body has at most {MOST_GROUPS} lists and objects, this one {groups}")
    if values > MOST_VALUES:
        raise ApiError(f"a body has at most {MOST_VALUES} values, this one {values}")


_TEXT = bytes({*range(256)} - {*b'[{,:"'})
"""Bytes that begin no value."""


def _counts(data: bytes | bytearray) -> tuple[int, int]:
    """The lists and objects of a body, and all its values, if no text has brackets or commas; else more."""
    groups = data.count(b"[") + data.count(b"{")
    return groups, groups + data.count(b",") + data.count(b":")


def _check_values(fields: Any) -> None:
    """Raises: ApiError for an object of too many fields, or a number that is too large."""
    left: list[Any] = [fields]
    while left:
        value = left.pop()
        if is_mapping(value):
            if len(value) > MOST_FIELDS:
                raise ApiError(f"an object has at most {MOST_FIELDS} fields, one has {len(value)}")
            left += value.values()
        elif is_list(value):
            left += value
        elif isinstance(value, float) and not math.isfinite(value):
            raise ApiError("the body has a number that is too large")


def _invalid(error: ValidationError, fields: Any) -> ApiError:
    """The first mistake of a body. Where a field takes several forms, it is the one in the form that fits best."""
    found = [
        _Mistake(each, fields) for each in error.errors(include_url=False, include_input=False)
    ]
    first = found[0].place
    near = [each for each in found if each.place[: len(first)] == first[: len(each.place)]]
    depth = max(len(each.place) for each in near)
    near = [each for each in near if len(each.place) == depth]
    # A form whose `type` is another is not meant.
    others = {each.form for each in near if each.is_of_other_type}
    near = [each for each in near if each.form not in others] or near
    place = near[0].place
    texts = dict.fromkeys(each.text for each in near if each.place == place)
    start, *rest = texts
    text = " or ".join([start, *(each.removeprefix("should be ") for each in rest)])
    if near[0].is_media:
        text += ": models here read texts, and pictures in messages of the user; no sounds, videos or files"
    name = ".".join(map(str, place))[:200]
    return ApiError(f"{name or 'the body'}: {text}", param=name or None)


class _Mistake:
    """A mistake that pydantic found."""

    def __init__(self, error: ErrorDetails, fields: Any) -> None:
        self.kind, self.text = error["type"], _FIRST_WORD.sub("", error["msg"])
        if self.kind in ("model_type", "dict_type", "model_attributes_type"):
            self.text = "should be an object"
        elif self.kind == "too_long":
            self.text = self.text.split(" after")[0]
        elif self.kind == "missing":
            self.text = "the field is required"
        loc = error["loc"]
        if self.kind == REFUSED:
            loc = (*loc, error.get("ctx", {})["field"])
        self.form: tuple[str | int, ...] = ()
        """Where a field takes several forms: the place, and pydantic's name of the form."""
        place: list[str | int] = []
        value = fields
        for number, part in enumerate(loc):
            if _has(value, part):
                value = value[part]
                place.append(part)
            elif self.kind == "missing" and number == len(loc) - 1:
                place.append(part)
            else:
                self.form = loc[: number + 1]
        self.place = tuple(place)
        """Names of fields and numbers."""
        self.is_of_other_type = self.kind == "literal_error" and place[-1:] == ["type"]
        given = value if place[-1:] == ["type"] else error.get("ctx", {}).get("tag")
        self.is_media = isinstance(given, str) and _MEDIA.search(given) is not None


_MEDIA = re.compile("image|audio|video|file|document")
_FIRST_WORD = re.compile(r"^(Input )?\w+ (?=should |tag )")


def _has(value: Any, part: str | int) -> bool:
    if is_mapping(value):
        return part in value
    return is_list(value) and isinstance(part, int) and part < len(value)
