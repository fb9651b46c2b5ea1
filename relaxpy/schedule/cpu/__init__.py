"""Schedule rules for processors, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable

from relaxpy.schedule.cpu.fallback import schedule_any
from relaxpy.tir._tvm import tirx
from relaxpy.tir.target import Target

CPU_RULES: tuple[tuple[str, Callable[[tirx.PrimFunc, Target], tirx.PrimFunc | None]], ...] = (
    ("fallback", schedule_any),
)
