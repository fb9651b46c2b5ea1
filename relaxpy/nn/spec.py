"""What the arguments of an exported method are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relaxpy.errors import UsageError
from relaxpy.ir import DType


@dataclass(frozen=True, slots=True, init=False)
class Tensor:
    """A tensor argument. A dimension is an integer, or a name: symbolic, the same one throughout the method."""

    shape: tuple[int | str, ...]
    dtype: DType

    def __init__(self, shape: Sequence[int | str], dtype: str = "float32") -> None:
        for dim in shape:
            if isinstance(dim, str) and not dim.isidentifier():
                raise UsageError(
                    "bad-spec",
                    f"dimension {dim!r} is neither an integer nor a name",
                    help='write e.g. nn.spec.Tensor(("batch", 128), "float32")',
                )
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", DType(dtype))


@dataclass(frozen=True, slots=True, init=False)
class Tuple:
    """An argument of several values, which the method gets as a Python tuple; they may be tuples again."""

    fields: tuple[Tensor | Tuple, ...]

    def __init__(self, fields: Iterable[Tensor | Tuple]) -> None:
        found = tuple(fields)
        for field in found:
            if not isinstance(field, (Tensor, Tuple)):
                raise UsageError(
                    "bad-spec",
                    f"{field!r} in a tuple is no spec",
                    help="write nn.spec.Tensor(shape, dtype)",
                )
        object.__setattr__(self, "fields", found)
