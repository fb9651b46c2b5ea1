"""ONNX files: protobuf, or text, as a ModelProto of onnx."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, cast

from relaxpy.errors import UsageError

MOST_BYTES = 1 << 31
"""Protobuf's own limit of a file."""

MOST_BRACKETS = 500
"""Of ONNX's text, inside of one another."""


def need_onnx(purpose: str) -> None:
    """Refuse to go on without the package onnx: `extra-missing`."""
    try:
        import onnx as _  # noqa: F401
    except ImportError:
        raise UsageError(
            "extra-missing",
            f"{purpose} needs the package onnx",
            help="pip install 'relaxpy[onnx]'",
        ) from None


class UnreadableError(UsageError):
    """A file that cannot be read."""


class UnparsedError(UsageError):
    """What is neither protobuf nor ONNX's text."""


def read_model(source: Any) -> tuple[Any, Path | None]:
    """A model from a path, bytes, or a ModelProto, and the folder that its external data is in.

    Raises: UsageError: `onnx-file` for what is no ONNX model, `extra-missing` without onnx.
    """
    need_onnx("reading ONNX models")
    import onnx

    if isinstance(source, onnx.ModelProto):
        return _checked(source, "the model"), None
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parsed(bytes(cast("bytes", source)), "what was passed"), None
    if not isinstance(source, (str, os.PathLike)):
        raise UsageError(
            "onnx-file",
            f"a {type(source).__name__} is no ONNX model",
            help="pass the path of a file, its bytes, or an onnx.ModelProto",
        )
    path = Path(cast("str", source))
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError("onnx-file", f"{path} is larger than a protobuf file can be")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableError("onnx-file", f"{path} cannot be read: {reason}") from None
    return _parsed(data, str(path)), Path(os.path.realpath(path)).parent


def _parsed(data: bytes, name: str) -> Any:
    """A ModelProto of protobuf's bytes, or of ONNX's text."""
    import onnx
    from google.protobuf.message import DecodeError

    if data.lstrip().startswith(b"<"):
        return _checked(_of_text(data, name), name)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise UnparsedError(
            "onnx-file",
            f"{name} is no ONNX model: it is neither protobuf nor ONNX's text",
            notes=[str(error)],
            help="is the file complete? A file of Git LFS is only a pointer: git lfs pull",
        ) from None
    return _checked(model, name)


def _of_text(data: bytes, name: str) -> Any:
    import onnx.parser

    problem = "it is nested too deeply"
    try:
        text = data.decode()
        if _depth(text) <= MOST_BRACKETS:
            return onnx.parser.parse_model(text)
    except Exception as error:  # the parser's, and those of C++ for numbers
        problem = str(error)
    raise UnparsedError("onnx-file", f"{name} is no text of an ONNX model", notes=[problem])


def _depth(text: str) -> int:
    """The most brackets that are open at once. The parser, which is written in C++, calls itself for each."""
    depth = deepest = 0
    for bracket in re.findall(r'"(?:[^"\\]|\\.)*"|[<({\[\])}>]', text):
        if bracket in "<({[":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in ">)}]":
            depth -= 1
    return deepest


def _checked(model: Any, name: str) -> Any:
    if not model.HasField("graph") or not model.opset_import:
        raise UsageError(
            "onnx-file",
            f"{name} is no ONNX model: it has no {'opset' if model.HasField('graph') else 'graph'}",
        )
    return model
