"""Schedule rules for processors, in the order in which they are tried.

Attention is recognised by its calls of elementary functions. The other rules get programs with these calls expanded to
arithmetic, so that they measure and vectorise the code that will run.
"""

from __future__ import annotations

from collections.abc import Callable

from relaxpy.backend.arrangement import Arrangement, Rule
from relaxpy.backend.cpu.rules.attention import attention_program
from relaxpy.backend.cpu.rules.channel_convolution import channel_convolution_program
from relaxpy.backend.cpu.rules.convolution import convolution_program
from relaxpy.backend.cpu.rules.elementwise import schedule_elementwise
from relaxpy.backend.cpu.rules.expert_bytes import expert_bytes_program
from relaxpy.backend.cpu.rules.expert_linear import expert_linear_program
from relaxpy.backend.cpu.rules.fallback import schedule_any
from relaxpy.backend.cpu.rules.matmul import matmul_program
from relaxpy.backend.cpu.rules.paged_attention import paged_attention_program
from relaxpy.backend.cpu.rules.quantized_matmul import quantized_matmul_program
from relaxpy.backend.cpu.rules.recurrent import recurrent_program
from relaxpy.backend.cpu.rules.reduction import schedule_reduction
from relaxpy.backend.cpu.rules.rows import schedule_rows
from relaxpy.backend.cpu.rules.tile_matmul import tile_matmul_program
from relaxpy.backend.cpu.rules.weights import with_weights
from relaxpy.backend.cpu.rules.window import window_program
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.programs.elementary import written_out
from relaxpy.tir.tvm import tirx

_Arrange = Callable[[tirx.PrimFunc, CpuTarget], "Arrangement | None"]


def _of_arithmetic(arrange: _Arrange) -> _Arrange:
    """Adapt a rule for programs with expanded elementary functions to programs that call them."""

    def rule(func: tirx.PrimFunc, target: CpuTarget) -> Arrangement | None:
        return arrange(written_out(with_weights(func), by_avx512=target.has_avx512), target)

    return rule


CPU_RULES: tuple[Rule, ...] = (
    Rule("tile_matmul", _of_arithmetic(tile_matmul_program)),
    Rule("matmul", _of_arithmetic(matmul_program)),
    Rule("quantized_matmul", _of_arithmetic(quantized_matmul_program)),
    Rule("expert_bytes", _of_arithmetic(expert_bytes_program)),
    Rule("expert_linear", _of_arithmetic(expert_linear_program)),
    Rule("convolution", _of_arithmetic(convolution_program)),
    Rule("channel_convolution", _of_arithmetic(channel_convolution_program)),
    Rule("attention", attention_program),
    Rule("paged_attention", paged_attention_program),
    Rule("recurrent", recurrent_program),
    Rule("elementwise", _of_arithmetic(schedule_elementwise)),
    Rule("window", _of_arithmetic(window_program)),
    Rule("reduction", _of_arithmetic(schedule_reduction)),
    Rule("rows", _of_arithmetic(schedule_rows)),
    Rule("fallback", _of_arithmetic(schedule_any)),
)
