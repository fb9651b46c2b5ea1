"""Pairs: how an argument of an operator is quantised and at once dequantised.

A pair is a `quantize` and a `dequantize` with the same scale and zero point. It stands in a program of floats for what
integers would lose (Relay's simulated quantisation), prints and runs like everything else, and is what `Realize` makes
integers of. An operator says beside its definition which pairs its arguments take (`Op.pairs`); `Annotate` puts them
there, and takes rules of the user's before these.
"""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.errors import UsageError
from relaxpy.ir.dtype import DType
from relaxpy.op.quantization import NARROW, ROUNDINGS

ROW = "row"
"""The axis of a pair with a scale for each row: each index of all axes but the last together."""


@dataclass(frozen=True)
class Pair:
    """How one argument is quantised. Raises UsageError (`quantization`) for what no `quantize` does."""

    dtype: str = "int8"
    """The dtype of the codes."""
    axis: int | str | None = None
    """The axis each index of which has a scale; `ROW`; None: one scale for the whole tensor."""
    weight: bool = False
    """Is it for weights alone, whose values are known when the program is built, or packed?"""
    static: bool = False
    """Is the scale a constant that comes from data (`Calibrate`), rather than computed from the values at each call?"""
    symmetric: bool | None = None
    """Is the zero point 0, and the range as far below 0 as above? None: it is for signed codes."""
    rounding: str = "half_to_even"
    seed: int = 0
    """Of stochastic rounding."""
    bits: int | None = None
    """Codes use the range of so many bits, fewer than the dtype has, from 2 on; None: all of it."""

    def __post_init__(self) -> None:
        if self.dtype not in NARROW:
            self._refuse(f"codes are of {', '.join(NARROW)}, got {self.dtype!r}")
        if self.rounding not in ROUNDINGS:
            self._refuse(f"rounding is one of {', '.join(ROUNDINGS)}, got {self.rounding!r}")
        if self.axis is not None and self.axis != ROW and type(self.axis) is not int:
            self._refuse(f"axis is a number, {ROW!r} or None, got {self.axis!r}")
        if self.symmetric and self.dtype.startswith("u"):
            self._refuse("unsigned codes are not symmetric: they have a zero point")
        most = DType(self.dtype).bits
        if self.bits is not None and not (type(self.bits) is int and 2 <= self.bits <= most):
            self._refuse(f"codes of {self.dtype} have 2 to {most} bits, got {self.bits!r}")
        if self.static and self.axis == ROW:
            self._refuse(
                "rows have no constant scales: how many there are differs from call to call"
            )

    def _refuse(self, message: str) -> None:
        raise UsageError("quantization", f"a pair: {message}")

    @property
    def is_symmetric(self) -> bool:
        """Is the zero point 0?"""
        return not self.dtype.startswith("u") if self.symmetric is None else self.symmetric

    @property
    def limits(self) -> tuple[int, int]:
        """The lowest and the highest code. Symmetric ones are as far below 0 as above."""
        bits = self.bits or DType(self.dtype).bits
        if self.dtype.startswith("u"):
            return 0, (1 << bits) - 1
        return -(1 << bits - 1) + self.is_symmetric, (1 << bits - 1) - 1
