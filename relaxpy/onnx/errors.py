"""Errors under ONNX Runtime's names. As there, none of them is a kind of another."""

from __future__ import annotations

from relaxpy.errors import UsageError
from relaxpy.frontend.onnx.model import UnparsedError, UnreadableError


class Fail(UsageError, RuntimeError):
    """A call or a model that fails."""


class NoSuchFile(UsageError, RuntimeError):
    """A model's file that cannot be read."""


class InvalidProtobuf(UsageError, RuntimeError):
    """A file that is no model."""


class InvalidGraph(UsageError, RuntimeError):
    """A model that is damaged."""


class NotImplemented(UsageError, RuntimeError):  # ONNX Runtime's name
    """A model with something that is not taken."""


class InvalidArgument(UsageError, ValueError):
    """Inputs of a call that the model does not take."""


class Unsupported(UsageError, AttributeError):
    """A name of ONNX Runtime that is not here: `hasattr` says so."""

    def __init__(self, name: str, help: str | None = None) -> None:
        super().__init__("onnx-session", f"{name} is not supported", help=help)


def of(error: UsageError) -> UsageError:
    """An error of the reader under ONNX Runtime's name."""
    kind: type[UsageError] = InvalidGraph
    if isinstance(error, UnreadableError):
        kind = NoSuchFile
    elif isinstance(error, UnparsedError):
        kind = InvalidProtobuf
    elif error.code in ("onnx-operator", "onnx-dtype", "onnx-shape", "onnx-constant"):
        kind = NotImplemented
    return kind(
        error.code,
        error.message,
        span=error.span,
        labels=error.labels,
        notes=error.notes,
        help=error.help,
    )
