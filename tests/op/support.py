"""The operators of relaxpy, for the tests that look at each of them."""

from __future__ import annotations

from relaxpy import op as _operators  # noqa: F401  (fills OPS)
from relaxpy.op.base import OPS, Op

CLASSES = [cls for cls in OPS.values() if issubclass(cls, Op)]
COMPILED = [cls for cls in CLASSES if cls.legalize is not None]
DECOMPOSED = [cls for cls in CLASSES if cls.decompose is not None]
