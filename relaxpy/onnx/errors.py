"""Errors under ONNX Runtime's names."""

from __future__ import annotations

from relaxpy.errors import UsageError


class Fail(UsageError, RuntimeError):
    """A model that cannot be read or built."""


class NoSuchFile(Fail):
    """A model's file that cannot be read."""


class InvalidGraph(Fail):
    """A model that is damaged."""


class NotImplemented(Fail):  # ONNX Runtime's name
    """A model with something that is not taken."""


class InvalidArgument(UsageError, ValueError):
    """Inputs of a call that the model does not take."""


def of(error: UsageError) -> Fail:
    """An error of the reader under ONNX Runtime's name."""
    kind: type[Fail] = InvalidGraph
    if "cannot be read" in error.message:
        kind = NoSuchFile
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
