"""The last answers of `/v1/responses`, which the next request can follow."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.server.errors import ApiError


@dataclass(frozen=True)
class Stored:
    """An answer, and the messages until it."""

    client: str
    response: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    size: int


class Store:
    """The last answers, so many and of so many bytes."""

    def __init__(self, most: int, most_bytes: int = 64 << 20) -> None:
        self.most, self.most_bytes, self.bytes = most, most_bytes, 0
        self._found: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def put(
        self, client: str, response: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
    ) -> None:
        """Keep an answer; the oldest ones make room."""
        size = len(json.dumps([response, messages]))
        self._found[response["id"]] = Stored(client, response, messages, size)
        self.bytes += size
        while len(self._found) > self.most or self.bytes > self.most_bytes:
            self.bytes -= self._found.popitem(last=False)[1].size

    def get(self, client: str, name: str) -> Stored:
        """The answer of a name. Raises: ApiError (404), also for one of another client."""
        found = self._found.get(name)
        if found is None or found.client != client:
            raise ApiError(
                f"there is no response {name[:100]!r}: it was not stored, or is too long ago",
                status=404,
                code="not_found",
            )
        self._found.move_to_end(name)
        return found

    def drop(self, client: str, name: str) -> None:
        """Forget an answer. Raises: ApiError (404)."""
        self.bytes -= self.get(client, name).size
        del self._found[name]
