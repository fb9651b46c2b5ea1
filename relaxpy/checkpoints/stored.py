"""Tensors as they lie in a checkpoint: floats, or codes with scales, decoded when they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from relaxpy.codes import Codes
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.safetensors import Decoded
from relaxpy.runtime.tensor import Array

_CHUNK = 1 << 21
"""Elements that are decoded at a time."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor of a checkpoint. The base of those of floats and of codes."""

    shape: tuple[int, ...]
    format: str
    """The name of its type in the file: BF16, Q4_K, AWQ."""
    nbytes: int
    """The bytes that it takes in the file."""
    codes: Codes | None = field(default=None, kw_only=True)
    """How its codes can be kept exactly, along its last axis as it lies in the file; None: it has none."""
    order: Array | None = field(default=None, kw_only=True)
    """The numbers of its rows in the file, in the wanted order; None: they are in order."""
    shift: float = field(default=0.0, kw_only=True)
    """Added to each number."""
    turned: bool = field(default=False, kw_only=True)
    """Whether the last two axes of `shape` are exchanged in the file."""

    @property
    def dtype(self) -> str:
        """The dtype of what `read` returns."""
        return "float32"

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    def read(self) -> Array:
        """The tensor as floats."""
        found = self._floats()
        if self.shift:
            found = found + found.dtype.type(self.shift)
        return found.swapaxes(-1, -2) if self.turned else found

    def part(self, name: str) -> Array:
        """A part of the codes, by the names of `Codes.parts`: of the matrix as it lies in the file."""
        raise NotImplementedError

    def decoded(self) -> Decoded:
        """The floats, not read yet."""
        return Decoded(self.shape, self.dtype, self.read)

    def parts(self) -> dict[str, Decoded]:
        """The parts of the codes by name, not read yet."""
        assert self.codes is not None, "asked for before"
        return {
            name: Decoded(shape, dtype, partial(self.part, name))
            for name, (shape, dtype) in self.codes.parts(self.lies, -1).items()
        }

    @property
    def lies(self) -> tuple[int, ...]:
        """The shape in the file."""
        *outer, rows, columns = self.shape if self.turned else (*self.shape, 0, 0)
        return (*outer, columns, rows) if self.turned else self.shape

    def _floats(self) -> Array:
        """The floats as they lie in the file, in the wanted order of rows."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Floats(Stored):
    """A tensor of floats (or of integers, which only messages need)."""

    array: Array
    """As it lies in the file, mapped."""

    @classmethod
    def of(cls, array: Array, **changes: Any) -> Floats:
        """The tensor of a mapped array."""
        name = dtypes.from_numpy(array.dtype)
        return cls(array.shape, name, array.nbytes, array=array, **changes)

    @property
    def dtype(self) -> str:
        return dtypes.from_numpy(self.array.dtype)

    def _floats(self) -> Array:
        return self.array if self.order is None else self.array[self.order]


class Rows(Protocol):
    """Reads rows of a matrix in a format of codes. `rows` are their numbers: a slice or an array."""

    def codes(self, rows: Any) -> Array:
        """The codes (rows, depth), uint8."""
        ...

    def scale(self, rows: Any) -> Array:
        """The scales (rows, groups)."""
        ...

    def offset(self, rows: Any) -> Array:
        """The zero points or minimums (rows, groups), unless the codes are symmetric."""
        ...


@dataclass(frozen=True, eq=False)
class Coded(Stored):
    """A tensor of codes with a scale for each group of neighbours along the last axis."""

    rows: Rows
    form: Codes
    """The numbers that the codes represent."""
    groups: Array | None = None
    """The group of each place of the depth; None: neighbours share one. With any other order `codes` is None."""

    def _floats(self) -> Array:
        codes = self.form
        depth = self.lies[-1]
        own = (
            self.groups if self.groups is not None else np.arange(depth) // codes.group_size(depth)
        )
        found = np.empty((self.size // depth if depth else 0, depth), np.float32)
        for rows, place in self._chunks():
            numbers = [self.rows.scale(rows)]
            if codes.zero != "symmetric":
                numbers.append(self.rows.offset(rows))
            # A repetition of the scales: groups need not divide the depth.
            with np.errstate(all="ignore"):  # a file may have any scale
                found[place] = codes.floats(self.rows.codes(rows), *(n[:, own] for n in numbers))
        return found.reshape(self.lies)

    def part(self, name: str) -> Array:
        codes = self.codes
        assert codes is not None, "a tensor of codes has them"
        shape, dtype = codes.parts(self.lies, -1)[name]
        found = np.empty((math.prod(shape[:-1]), shape[-1]), dtypes.to_numpy(dtype))
        for rows, place in self._chunks():
            if name == "codes":
                found[place] = codes.words(self.rows.codes(rows).astype(codes.word, copy=False))
            else:
                found[place] = (self.rows.scale if name == "scale" else self.rows.offset)(rows)
        return found.reshape(shape)

    def _chunks(self) -> list[tuple[Any, slice]]:
        """The rows to read at a time, and their place in the result."""
        *outer, depth = self.lies
        count, each = math.prod(outer), max(1, _CHUNK // max(1, depth))
        places = [slice(at, min(at + each, count)) for at in range(0, count, each)]
        return [(p if self.order is None else self.order[p], p) for p in places]


@dataclass(frozen=True, eq=False)
class Interleaved(Stored):
    """Two tensors of one shape, as the file has them, whose rows are in turns: (experts, rows, depth), or (experts,
    rows) of biases, become (experts, 2 * rows, …)."""

    first: Stored
    second: Stored

    @classmethod
    def of(cls, first: Stored, second: Stored) -> Interleaved:
        """The tensor of these; its codes are kept if both have the same ones."""
        experts, rows, *depth = first.lies
        same = first.codes == second.codes and not (first.turned or second.turned)
        return cls(
            (experts, 2 * rows, *depth), first.format, first.nbytes + second.nbytes, first=first, second=second,
            codes=first.codes if same else None,
        )  # fmt: skip

    @property
    def dtype(self) -> str:
        one, other = self.first.dtype, self.second.dtype
        return one if one == other else "float32"

    def part(self, name: str) -> Array:
        assert self.codes is not None, "asked for before"
        _, dtype = self.codes.parts(self.lies, -1)[name]
        return self._in_turns(self.first.part, self.second.part, dtype, name)

    def _floats(self) -> Array:
        return self._in_turns(self.first.read, self.second.read, self.dtype)

    def _in_turns(
        self, first: Callable[..., Array], second: Callable[..., Array], dtype: str, *name: str
    ) -> Array:
        own = first(*name)
        experts, rows, *depth = own.shape
        found = np.empty((experts, rows, 2, *depth), dtypes.to_numpy(dtype))
        found[:, :, 0] = own
        del own  # one of the two is in memory beside the result
        found[:, :, 1] = second(*name)
        return found.reshape(experts, 2 * rows, *depth)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint of any format, by the names that transformers has."""

    place: Path
    files: tuple[Path, ...]
    """The files that its tensors are in."""
    config: Mapping[str, Any]
    """The fields of `config.json`, or those that it would have."""
    tensors: Mapping[str, Stored]
    quantization: str = ""
    """The name of the format of its codes; "": its weights are floats."""

    @property
    def formats(self) -> dict[str, str]:
        """The type of each tensor: all that a program depends on beside the configuration."""
        return {
            name: f"{each.format} {each.dtype} {each.codes} {each.turned}"
            for name, each in self.tensors.items()
        }

    @property
    def has_codes(self) -> bool:
        """Has any tensor codes that can be kept?"""
        return any(each.codes is not None for each in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors in the files."""
        return sum(each.nbytes for each in self.tensors.values())


def row_count(shape: Sequence[int]) -> int:
    """The number of rows, if all axes but the last are one."""
    return math.prod(shape[:-1])
