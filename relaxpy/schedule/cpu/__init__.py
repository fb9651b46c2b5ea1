"""Schedule rules for processors, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable

from relaxpy.schedule.cpu.attention import attention_program
from relaxpy.schedule.cpu.convolution import convolution_program
from relaxpy.schedule.cpu.elementwise import schedule_elementwise
from relaxpy.schedule.cpu.fallback import schedule_any
from relaxpy.schedule.cpu.matmul import matmul_program
from relaxpy.schedule.cpu.reduction import schedule_reduction
from relaxpy.schedule.cpu.window import window_program
from relaxpy.tir._tvm import tirx
from relaxpy.tir.target import Target

CPU_RULES: tuple[tuple[str, Callable[[tirx.PrimFunc, Target], tirx.PrimFunc | None]], ...] = (
    ("matmul", matmul_program),
    ("convolution", convolution_program),
    ("attention", attention_program),
    ("elementwise", schedule_elementwise),
    ("window", window_program),
    ("reduction", schedule_reduction),
    ("fallback", schedule_any),
)
