"""Schedule rules for processors, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable

from relaxpy.backend.cpu.rules.attention import attention_program
from relaxpy.backend.cpu.rules.convolution import convolution_program
from relaxpy.backend.cpu.rules.elementwise import schedule_elementwise
from relaxpy.backend.cpu.rules.fallback import schedule_any
from relaxpy.backend.cpu.rules.matmul import matmul_program
from relaxpy.backend.cpu.rules.reduction import schedule_reduction
from relaxpy.backend.cpu.rules.window import window_program
from relaxpy.tir.target import Target
from relaxpy.tir.tvm import tirx

CPU_RULES: tuple[tuple[str, Callable[[tirx.PrimFunc, Target], tirx.PrimFunc | None]], ...] = (
    ("matmul", matmul_program),
    ("convolution", convolution_program),
    ("attention", attention_program),
    ("elementwise", schedule_elementwise),
    ("window", window_program),
    ("reduction", schedule_reduction),
    ("fallback", schedule_any),
)
