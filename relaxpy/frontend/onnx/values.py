"""Values of ONNX that are no tensors: sequences of a known length, and optional values that are absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relaxpy.ir import DType


@dataclass(frozen=True)
class Listed:
    """A sequence."""

    items: tuple[Any, ...]
    dtype: DType | None = None
    """The dtype of its tensors, if it was made with one."""

    def __str__(self) -> str:
        return f"a sequence of {len(self.items)} tensors"


@dataclass(frozen=True)
class Absent:
    """An optional value that is not there."""

    def __str__(self) -> str:
        return "an absent optional value"
