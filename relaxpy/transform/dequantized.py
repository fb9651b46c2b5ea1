"""Tensors that are dequantised, as `Realize` reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant, Expr
from relaxpy.op.quantization import Dequantize


@dataclass(frozen=True)
class Codes:
    """A tensor that is dequantised."""

    op: Dequantize
    codes: Expr
    scale: Expr
    zero: Expr
    kind: TensorType
    """The type of the codes."""
    narrow: bool
    """Is the lowest code not used?"""
    rows: tuple[Dim, ...] | None = None
    """The shape, if scales and zero points count its rows, and these have several axes."""

    @property
    def ndim(self) -> int:
        return len(self.kind.dims or ())

    @property
    def axis(self) -> int:
        return self.op.axis % max(self.ndim, 1)

    @property
    def is_shifted(self) -> bool:
        """May its zero point be another number than 0?"""
        return not isinstance(self.zero, Constant) or bool(np.any(self.zero.data))

    @property
    def largest(self) -> int:
        """The largest magnitude of a code, and of a code less its zero point."""
        limits = np.iinfo(DType(self.kind.dtype or "int8").numpy)
        if self.is_shifted:
            return int(limits.max) - int(limits.min)
        return max(int(limits.max), -int(limits.min) - self.narrow)
