"""Pictures in the bodies of requests: data URIs, and addresses of hosts that the owner of the server lists.

Files of the server are never read. A request has so many pictures at most, and these have so many pixels, counted
before anything is decoded (`relaxpy.vision.picture`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from starlette.concurrency import run_in_threadpool

from relaxpy.errors import UsageError
from relaxpy.server.bodies import Body
from relaxpy.server.errors import ApiError
from relaxpy.server.fetch import MOST_BYTES, Address, Hosts, fetched
from relaxpy.server.picture_formats import check_format

MOST_PICTURES = 64
"""The most pictures of a request."""
_PIXELS = 1 << 24
"""The most pixels of a picture."""
_ALL_PIXELS = 1 << 27
"""The most pixels of a request's pictures, shared among them."""
_FETCHED = 8
"""The most files of all requests that are fetched at a time."""
_ALL_BYTES = 1 << 25
"""The most bytes of a request's pictures that are fetched, shared among them."""


class Source(NamedTuple):
    """Where a picture is."""

    text: str
    """A data URI, base64 alone, or an address."""
    place: str
    """The field of the body that says it."""


class PictureFile(NamedTuple):
    """The file of a picture."""

    data: bytes
    place: str
    """The field of the body that it came with."""


class ImageUrl(Body):
    """Where a picture is, as OpenAI's chats say it."""

    url: Annotated[str, Field(min_length=1)]
    detail: Literal["auto"] = "auto"


class ImagePart(Body):
    """A picture of a message, as OpenAI's chats have it."""

    type: Literal["image_url"]
    image_url: ImageUrl


class PictureReader:
    """Reads the pictures of requests."""

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        """Addresses are those of `hosts` (`relaxpy.server.fetch.Hosts`). Raises: UsageError (`bad-arguments`)."""
        self._hosts = Hosts.of(hosts)
        self._turn = asyncio.Semaphore(_FETCHED)

    async def read(self, sources: Sequence[Source]) -> list[PictureFile]:
        """The files of a request's pictures. Raises: ApiError for too many, and for what is neither a data URI nor an
        address that can be read."""
        if len(sources) > MOST_PICTURES:
            raise ApiError(
                f"{sources[MOST_PICTURES].place}: a request has at most {MOST_PICTURES} pictures, got {len(sources)}",
                param=sources[MOST_PICTURES].place,
            )
        found = await run_in_threadpool(self._files, sources)
        most = min(MOST_BYTES, _ALL_BYTES // max(sum(isinstance(e, Address) for e in found), 1))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._whole(each, source.place, most))
                    for each, source in zip(found, sources, strict=True)
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        files = [each.result() for each in tasks]
        await run_in_threadpool(_check, files, sources)
        return [
            PictureFile(data, source.place) for data, source in zip(files, sources, strict=True)
        ]

    def _files(self, sources: Sequence[Source]) -> list[bytes | Address]:
        return [self._file(*each) for each in sources]

    def _file(self, text: str, place: str) -> bytes | Address:
        """What a text has, or where it is."""
        head = text[:300]
        scheme = head.partition(":")[0].lower() if ":" in head else ""
        if scheme == "data":
            kind, _, text = text.partition(",")
            if not kind.lower().endswith(";base64"):
                raise ApiError(f"{place}: a data URI of a picture has ;base64", param=place)
            media = kind[5:].partition(";")[0].strip().lower()
            if media and not media.startswith("image/"):
                raise ApiError(f"{place}: {media[:100]} is no picture", param=place)
        elif scheme in ("http", "https"):
            try:
                return self._hosts.address(text)
            except UsageError as error:
                raise _about(error, place) from None
        elif scheme:
            raise ApiError(
                f"{place}: pictures are data URIs, data:image/png;base64,…, or addresses of http; a {scheme[:40]}: is "
                "not read, and no file of the server is",
                param=place,
            )
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise ApiError(
                f"{place}: it is not base64: pictures are data URIs, data:image/png;base64,…, and no paths of files",
                param=place,
            ) from None

    async def _whole(self, found: bytes | Address, place: str, most: int) -> bytes:
        if isinstance(found, bytes):
            return found
        try:
            async with self._turn:
                return await fetched(found, most)
        except UsageError as error:
            raise _about(error, place) from None


def most_pixels(count: int) -> int:
    """The most pixels of each of so many pictures."""
    return min(_PIXELS, _ALL_PIXELS // max(count, 1))


def _check(files: Sequence[bytes], sources: Sequence[Source]) -> None:
    for data, source in zip(files, sources, strict=True):
        try:
            check_format(data)
        except UsageError as error:
            found = ApiError.of(error)
            found.message, found.param = f"{source.place} {found.message}", source.place
            raise found from None


def _about(error: UsageError, place: str) -> ApiError:
    found = ApiError.of(error)
    found.message, found.param = f"{place}: {found.message}", place
    return found
