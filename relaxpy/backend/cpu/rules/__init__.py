"""Schedule rules for processors, in the order in which they are tried."""

from __future__ import annotations

from relaxpy.backend.arrangement import Rule
from relaxpy.backend.cpu.rules.attention import attention_program
from relaxpy.backend.cpu.rules.convolution import convolution_program
from relaxpy.backend.cpu.rules.elementwise import schedule_elementwise
from relaxpy.backend.cpu.rules.fallback import schedule_any
from relaxpy.backend.cpu.rules.matmul import matmul_program
from relaxpy.backend.cpu.rules.reduction import schedule_reduction
from relaxpy.backend.cpu.rules.window import window_program

CPU_RULES: tuple[Rule, ...] = (
    Rule("matmul", matmul_program),
    Rule("convolution", convolution_program),
    Rule("attention", attention_program),
    Rule("elementwise", schedule_elementwise),
    Rule("window", window_program),
    Rule("reduction", schedule_reduction),
    Rule("fallback", schedule_any),
)
