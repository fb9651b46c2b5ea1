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
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, BinaryIO

import numpy as np

from relaxpy.errors import RelaxError, UsageError
from relaxpy.serve.beams import Beams
from relaxpy.serve.pictures import Picture, Placed
from relaxpy.serve.request import NOT_A_NUMBER, Features, Piece, Request, Score
from relaxpy.serve.sampling import Sampling
from relaxpy.serve.timestamp_rules import TimestampRules

LONGEST = 64 << 20
"""The most bytes of a message."""
_LENGTH = struct.Struct("<I")
HEADER = _LENGTH.size
"""The bytes before a message."""


def frame(message: Mapping[str, Any]) -> bytes:
    """A message with its length before it. Raises: UsageError (`bad-length`) for one that is too long, as a
    request with many pictures may be."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > LONGEST:
        raise UsageError(
            "bad-length",
            f"a request is sent to its engine in at most {LONGEST >> 20} MiB, and this one has {len(data) >> 20} MiB",
            help="send fewer pictures, or a shorter prompt",
        )
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
    own = {each.name: getattr(request, each.name) for each in fields(Request)}
    own |= {"ends": [*request.ends], "sampling": sampling, "grammar": str(request.grammar)}
    if request.beams is not None:
        own["beams"] = asdict(request.beams)
    if request.features is not None:
        own["features"] = _array_fields(request.features.values)
    own["pictures"] = [
        [
            each.start,
            each.picture.tokens,
            each.picture.grid,
            [*map(_array_fields, each.picture.inputs)],
        ]
        for each in request.pictures
    ]
    return own


def _array_fields(values: np.ndarray) -> dict[str, Any]:
    data = b64encode(values.tobytes()).decode()
    return {"dtype": values.dtype.name, "shape": values.shape, "data": data}


def _array_of(given: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(b64decode(given["data"]), given["dtype"]).reshape(given["shape"])


def request_of(given: Mapping[str, Any]) -> Request:
    """The request of these fields. Raises: UsageError (`sampling`)."""
    sampling: dict[str, Any] = {**given["sampling"], "bias": dict(given["sampling"]["bias"])}
    if (rules := sampling.get("timestamps")) is not None:
        sampling["timestamps"] = TimestampRules(**rules)
    if (features := given.get("features")) is not None:
        features = Features(_array_of(features))
    own: dict[str, Any] = {
        **given,
        "prompt": tuple(given["prompt"]),
        "ends": frozenset(given["ends"]),
        "sampling": Sampling(**sampling),
        "features": features,
        "pictures": tuple(
            Placed(start, Picture([*map(_array_of, inputs)], tokens, grid and (grid[0], grid[1])))
            for start, tokens, grid, inputs in given.get("pictures", ())
        ),
        "beams": None if given.get("beams") is None else Beams(**given["beams"]),
        "probes": tuple((place, token) for place, token in given.get("probes", ())),
    }
    return Request(**own)


def error_fields(error: Exception, is_known: bool = True) -> dict[str, str]:
    """A mistake as JSON has it; unless it is known by its code, one of the engine (`engine`)."""
    if is_known and isinstance(error, RelaxError):
        return {"code": error.code, "message": error.message, "help": error.help or ""}
    return {"code": "engine", "message": f"{type(error).__name__}: {error}", "help": ""}


def error_of(given: Mapping[str, Any]) -> UsageError:
    """The mistake of these fields, or of a message that has them."""
    return UsageError(given["code"], given["message"], help=given["help"] or None)


def piece_fields(piece: Piece) -> list[Any]:
    """A piece as JSON has it: a list, without what is empty at its end."""
    error = piece.error
    found: list[Any] = [
        piece.request,
        piece.choice,
        piece.tokens,
        piece.finish,
        piece.cached,
        piece.logprobs,
        [[*each.items()] for each in piece.top],
        None if error is None else error_fields(error, _is_of_request(error)),
        [[each.logprob, each.rank, [*each.top.items()]] for each in piece.scores],
        piece.probes,
        piece.score,
    ]
    while found[-1] in (None, "", (), []):
        found.pop()
    return found


def _is_of_request(error: Exception) -> bool:
    """Whether a mistake in a step is that of a request, not of the engine."""
    return isinstance(error, UsageError) or getattr(error, "code", "") == NOT_A_NUMBER


def piece_of(given: list[Any]) -> Piece:
    """The piece of this list."""
    absent: list[Any] = [None, None, (), None, None, (), (), None, (), (), None]
    number, choice, tokens, finish, cached, logprobs, top, error, scores, probes, score = (
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
        None if error is None else error_of(error),
        tuple(Score(logprob, rank, dict(top)) for logprob, rank, top in scores),
        tuple(probes),
        score,
    )
