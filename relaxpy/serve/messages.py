"""Messages between a server and its engine's process: frames of JSON, each after its length.

A frame is four bytes, the number of bytes that follow (little-endian), and a JSON object of at most `LONGEST` bytes.

    → {"do": "start", "factory": "package.module:function", "options": {…}}
    ← {"kind": "ready", "facts": {…}, "state": {…}}    or    {"kind": "failed", "code": …, "message": …, "help": …}
    → {"do": "submit", "request": {…}}
    → {"do": "cancel", "number": 3}
    ← {"kind": "refused", "number": 3, "code": …, "message": …, "help": …}
    ← {"kind": "step", "pieces": […], "state": {…}}
    ← {"kind": "state", "state": {…}}    after a message that left nothing to compute

The engine ends when its input ends.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, BinaryIO

from relaxpy.serve.request import Piece, Request, Score
from relaxpy.serve.sampling import Sampling

LONGEST = 64 << 20
"""The most bytes of a message."""
_LENGTH = struct.Struct("<I")
HEADER = _LENGTH.size
"""The bytes before a message."""


def frame(message: Mapping[str, Any]) -> bytes:
    """A message with its length before it. Raises: ValueError for one that is too long."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > LONGEST:
        raise ValueError(f"a message has at most {LONGEST} bytes, this one {len(data)}")
    return _LENGTH.pack(len(data)) + data


def length_of(header: bytes) -> int:
    """The length of the message after a header. Raises: ValueError for one that is too long."""
    (length,) = _LENGTH.unpack(header)
    if length > LONGEST:
        raise ValueError(f"a message has at most {LONGEST} bytes, this one {length}")
    return length


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end of a stream, also in the middle of a message."""
    header = stream.read(HEADER)
    if len(header) < HEADER:
        return None
    length = length_of(header)
    data = stream.read(length)
    return json.loads(data) if len(data) == length else None


def request_fields(request: Request) -> dict[str, Any]:
    """A request as JSON has it."""
    sampling = {**asdict(request.sampling), "bias": [*request.sampling.bias.items()]}
    own = {each.name: getattr(request, each.name) for each in fields(request)}
    return {**own, "ends": [*request.ends], "sampling": sampling}


def request_of(given: Mapping[str, Any]) -> Request:
    """The request of these fields. Raises: UsageError (`sampling`)."""
    sampling: dict[str, Any] = {**given["sampling"], "bias": dict(given["sampling"]["bias"])}
    own: dict[str, Any] = {
        **given,
        "prompt": tuple(given["prompt"]),
        "ends": frozenset(given["ends"]),
        "sampling": Sampling(**sampling),
    }
    return Request(**own)


def piece_fields(piece: Piece) -> list[Any]:
    """A piece as JSON has it: a list, without what is empty at its end."""
    found: list[Any] = [
        piece.request,
        piece.choice,
        piece.tokens,
        piece.finish,
        piece.cached,
        piece.logprobs,
        [[*each.items()] for each in piece.top],
        piece.error,
        [[each.logprob, each.rank, [*each.top.items()]] for each in piece.scores],
    ]
    while found[-1] in (None, "", (), []):
        found.pop()
    return found


def piece_of(given: list[Any]) -> Piece:
    """The piece of this list."""
    absent: list[Any] = [None, None, (), None, None, (), (), "", ()]
    number, choice, tokens, finish, cached, logprobs, top, error, scores = (
        given + absent[len(given) :]
    )
    return Piece(
        number,
        choice,
        tuple(tokens),
        tuple(logprobs),
        tuple(dict(each) for each in top),
        cached,
        finish,
        error,
        tuple(Score(logprob, rank, dict(top)) for logprob, rank, top in scores),
    )
