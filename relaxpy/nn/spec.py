"""Specifications of the arguments of an exported method."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir import DType


@dataclass(frozen=True, slots=True, init=False)
class Tensor:
    """A tensor argument. A dimension is an integer, or a name: symbolic, and the same throughout the method."""

    shape: tuple[int | str, ...]
    dtype: DType

    def __init__(self, shape: Sequence[int | str], dtype: str = "float32") -> None:
        for dim in shape:
            number = isinstance(dim, (int, np.integer)) and not isinstance(dim, bool) and dim >= 0
            name = isinstance(dim, str) and dim.isidentifier() and not keyword.iskeyword(dim)
            if not number and not name:
                raise UsageError(
                    "bad-spec",
                    f"dimension {dim!r} is neither a non-negative integer nor a name",
                    help='write e.g. nn.spec.Tensor(("batch", 128), "float32")',
                )
        object.__setattr__(
            self, "shape", tuple(dim if isinstance(dim, str) else int(dim) for dim in shape)
        )
        object.__setattr__(self, "dtype", DType(dtype))


@dataclass(frozen=True, slots=True, init=False)
class Tuple:
    """A tuple argument, passed to the method as a Python tuple; its fields may be tuples again."""

    fields: tuple[Tensor | Tuple, ...]

    def __init__(self, fields: Iterable[Tensor | Tuple]) -> None:
        found = tuple(fields)
        for field in found:
            if not isinstance(field, (Tensor, Tuple)):
                raise UsageError(
                    "bad-spec",
                    f"{field!r} in a tuple is not a spec",
                    help="write nn.spec.Tensor(shape, dtype)",
                )
        object.__setattr__(self, "fields", found)
