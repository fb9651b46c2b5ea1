"""Data types: a `str` with properties. `DType("f32") == "float32"`, so a dtype prints and compares as its name."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import ml_dtypes
import numpy as np

from relaxpy.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from relaxpy.ir.dim import Dim

_BITS = {
    "bool": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "int4": 4, "uint4": 4,
}  # fmt: skip

OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")
"""Dtypes that numpy does not have."""

_ALIASES = {
    "f8_e4m3fn": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "boolean": "bool",
}  # fmt: skip


class DType(str):
    """The canonical name of an element type (`f32` becomes `float32`); interned: equal names are one object."""

    _interned: ClassVar[dict[str, DType]] = {}

    def __new__(cls, name: str | np.dtype | type) -> DType:
        if isinstance(name, DType):
            return name
        if type(name).__module__ == "torch":  # torch.float32, without importing torch
            name = str(name).removeprefix("torch.")
        if not isinstance(name, str):
            try:
                name = np.dtype(name).name
            except (TypeError, ValueError):
                shown = repr(name) if isinstance(name, (int, float)) else f"a {type(name).__name__}"
                raise UsageError(
                    "unknown-dtype", f"{shown} is not a dtype", help='write its name: "float32"'
                ) from None
        name = _ALIASES.get(name, name)
        if (found := cls._interned.get(name)) is not None:
            return found
        if name not in _BITS:
            raise UsageError("unknown-dtype", f"unknown dtype {name!r}", help=_advice(name))
        return cls._interned.setdefault(name, super().__new__(cls, name))

    @property
    def bits(self) -> int:
        return _BITS[self]

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes; 1 for one that shares its byte."""
        return max(_BITS[self] // 8, 1)

    @cached_property
    def is_packed(self) -> bool:
        """Whether two elements share a byte, the first one in the low bits. Such a dtype is for storage: it is
        converted or dequantised before anything is computed."""
        return self.bits < 8

    @cached_property
    def unpacked(self) -> DType:
        """The dtype with the same numbers whose elements are whole bytes."""
        return DType("int8" if self.is_signed else "uint8") if self.is_packed else self

    def nbytes(self, count: Dim) -> Dim:
        """The bytes of so many elements in memory."""
        return (count * self.bits + 7) // 8 if self.is_packed else count * self.itemsize

    @cached_property
    def is_float(self) -> bool:
        return "float" in self

    @cached_property
    def is_narrow(self) -> bool:
        """Whether it is a float that is computed in float32 and rounded."""
        return self.is_float and self.bits < 32

    @cached_property
    def is_bool(self) -> bool:
        return self == "bool"

    @cached_property
    def is_int(self) -> bool:
        """Whether it is a signed or unsigned integer (bool is not)."""
        return "int" in self

    @cached_property
    def is_signed(self) -> bool:
        return self.is_float or self.startswith("int")

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The least and the greatest number; infinities for a float that has them."""
        if not self.is_float:
            limits = ml_dtypes.iinfo(self.numpy) if self.is_packed else np.iinfo(self.numpy)
            return int(limits.min), int(limits.max)
        if self == "float8_e4m3fn":
            return _float_limits(ml_dtypes.finfo(self.numpy))
        return -math.inf, math.inf

    @cached_property
    def numpy(self) -> np.dtype:
        return np.dtype(getattr(ml_dtypes, self) if self in OF_ML_DTYPES else str(self))


_NARROW = re.compile(
    r"(?:float|f|fp|e\d?m)[1-9](?![0-9])|u?int?[1-7](?![0-9])|nf4|bool[1-9]", re.ASCII
)
_WIDE = re.compile(
    r"complex|float128|longdouble|u?int128|float80|c64|c128|string|str|object|datetime", re.ASCII
)


def _float_limits(info: Any) -> tuple[float, float]:
    return float(info.min), float(info.max)


def _advice(name: str) -> str:
    """The hint for an unknown dtype; a similar name is offered only if its width is the same."""
    if name.lower().startswith(("float8", "fp8", "f8", "e4m3", "e5m2")):
        return (
            f"the dtypes of that width are {', '.join(n for n in _BITS if n.startswith('float8'))}"
        )
    if _NARROW.match(name.lower()):
        return (
            "store narrow numbers as int8 or uint8 with separate scales: R.quantize, R.dequantize; "
            f"dtypes are {', '.join(_BITS)}"
        )
    if _WIDE.match(name.lower()):
        return f"dtypes are {', '.join(_BITS)}"
    if name.lower() in ("float", "int", "uint", "double", "half", "long"):
        width = {"double": "float64", "half": "float16", "long": "int64"}.get(name.lower())
        return f'write the width: "{width or name.lower() + "32"}"'
    digits = "".join(filter(str.isdigit, name))
    if (
        short := name.lower().replace("fp", "f", 1)
    ) in _ALIASES:  # fp16, as much of the field writes it
        return f'write it in full: "{_ALIASES[short]}"'
    names = [*_BITS, *_ALIASES]
    known = [each for each in names if not digits or digits in each]
    return did_you_mean(name, known or names) or f"one of {', '.join(_BITS)}"
