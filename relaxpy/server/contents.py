"""Contents of messages in OpenAI's shape: a text, or a list of parts, texts and pictures, if there are pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.narrow import is_list
from relaxpy.server.errors import ApiError
from relaxpy.server.pictures import Source

Content = str | list[dict[str, Any]]


def content_of(parts: Sequence[str | Source], role: str) -> Content:
    """The content of a message of a role: the texts joined, unless there are pictures. Raises: ApiError for pictures in
    messages that are not of the user."""
    sources = [each for each in parts if isinstance(each, Source)]
    if not sources:
        return "".join(each for each in parts if isinstance(each, str))
    if role != "user":
        place = sources[0].place
        raise ApiError(
            f"{place}: pictures are in messages of the user, not in those of {role}", param=place
        )
    return [
        {"type": "image", "image": each}
        if isinstance(each, Source)
        else {"type": "text", "text": each}
        for each in parts
    ]


def after_text(text: str, content: Any) -> Content:
    """A content after a text."""
    if is_list(content):
        return [{"type": "text", "text": f"{text}\n\n"}, *content]
    return f"{text}\n\n{content or ''}"


def before_text(content: Any, text: str) -> Content:
    """A content before a text."""
    if is_list(content):
        return [*content, {"type": "text", "text": f"\n\n{text}"}]
    return f"{content or ''}\n\n{text}"
