"""Reads forms with a file (`multipart/form-data`), by Starlette's parser.

Bytes are counted while they arrive, and parts are bounded. The file stays in memory: a form opens nothing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic_core import from_json
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from relaxpy.server.bodies import Body
from relaxpy.server.body_reader import BodyReader, type_of, validated
from relaxpy.server.errors import ApiError
from relaxpy.server.settings import ServerSettings

F = TypeVar("F", bound=Body)
FORM = "multipart/form-data"
FILE = "file"
"""The field of a form that has the file."""
_HOW = "curl -F file=@talk.mp3"
_MOST_PARTS = 256
"""The most fields of a form."""
_MOST_BYTES = 1 << 16
"""The most bytes of a field that is no file."""
_MOST_NAME = 100
"""The characters of names in errors."""
_INNER = re.compile(r"(\w+)\[(\w+)\]")
_HELD = 8
"""Forms may have so many times the bytes of the largest one, together, until they are answered."""


class FormReader:
    """Reads the forms of a server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._reader = BodyReader(settings.most_sound, settings.body_seconds, _HELD)

    @asynccontextmanager
    async def read(self, request: Request, kind: type[F]) -> AsyncGenerator[tuple[F, str]]:
        """The fields of a form, of which `file` has the contents of the file, and what the client calls the file. They
        are held until the context ends. Raises: ApiError for a form that is too large, too slow, none, or has other
        fields."""
        if type_of(request) != FORM:
            text = f"the body of this request is a form with a file: send Content-Type: {FORM} ({_HOW})"
            raise ApiError(text, status=415)
        self._check_origin(request)
        request.state.body_bytes = 0
        try:
            form = await self._parsed(request)
            async with _closing(form):
                fields, name = await _fields(form, kind)
            yield validated(fields, kind), name
        finally:
            self._reader.let_go(request)

    async def _parsed(self, request: Request) -> FormData:
        async with aclosing(self._reader.parts(request)) as parts:
            parser = MultiPartParser(
                request.headers,
                parts,
                max_files=1,
                max_fields=_MOST_PARTS,
                max_part_size=_MOST_BYTES,
            )
            parser.spool_max_size = self._reader.most + 1  # in memory
            try:
                return await parser.parse()
            except MultiPartException as error:
                raise ApiError(f"the body is no form that can be read: {error.message}") from None

    def _check_origin(self, request: Request) -> None:
        """Pages of other origins send forms without asking first, and a server without a key would work for them.
        Raises: ApiError (403)."""
        origin, allowed = request.headers.get("origin"), self._settings.origins
        if origin is None or self._settings.api_keys or "*" in allowed or origin in allowed:
            return
        if urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
            raise ApiError(
                "pages of other origins may not send forms (relaxpy serve --origin)", status=403
            )


@asynccontextmanager
async def _closing(form: FormData) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await form.close()


async def _fields(form: FormData, kind: type[Body]) -> tuple[Mapping[str, Any], str]:
    """The fields by name, and the name of the file. One that may come several times has [] after its name,
    and a part of one is name[part]. Raises: ApiError."""
    fields: dict[str, Any] = {}
    file_name = ""
    for full, value in form.multi_items():
        name = full.removesuffix("[]")
        inner = _INNER.fullmatch(full)
        if inner and inner[1] in kind.model_fields and isinstance(value, str):
            found = fields.setdefault(inner[1], {})
            if not isinstance(found, dict) or inner[2] in found:
                raise ApiError(f"{full[:_MOST_NAME]}: the form has it twice", param=inner[1])
            found[inner[2]] = _value(value)
            continue
        shown = name[:_MOST_NAME]
        if isinstance(value, UploadFile) != (name == FILE):
            text = f"a file comes in the field {FILE} ({_HOW})" if name != FILE else _HOW
            raise ApiError(
                f"{shown}: {'is no file' if name != FILE else 'should be a file'}: {text}",
                param=shown,
            )
        if isinstance(value, UploadFile):
            file_name, own = value.filename or "", await value.read()
        else:
            own = value if name in kind.model_fields else _value(value)
        if name in fields and (full == name or not isinstance(fields[name], list)):
            raise ApiError(f"{shown}: the form has it twice", param=shown)
        if full == name:
            fields[name] = own
        else:
            fields.setdefault(name, []).append(own)
    return fields, file_name


def _value(text: str) -> Any:
    """The value that a text stands for: in forms all values are texts, and the harmless ones of fields that are not
    offered are not."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
