"""Vector registers that are free where a tile begins.

LLVM moves constants out of loops as long as it finds registers for them. In a kernel that multiplies in one loop and
computes functions in the next, both inside of another one, it keeps the constants of the functions in registers over
the products, whose sums then do not fit, and are stored and loaded at every step. There is no hint for it. So a
product begins with an empty instruction that is said to change all vector registers.
"""

from __future__ import annotations

from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.programs.loops import Program, Stmt
from relaxpy.tir.tvm import tirx

_NAME = "relaxpy_registers"
_NAMES = {"x86_64": "xmm", "aarch64": "v"}
"""Architecture → how the names of its vector registers begin."""


def vacate(p: Program, target: CpuTarget) -> None:
    """Nothing is in a vector register here."""
    if target.arch in _NAMES:
        p.add(tirx.Evaluate(tirx.call_extern("void", _NAME)))


def with_vacant(body: Stmt, target: CpuTarget) -> Stmt:
    """The body of a kernel in which `vacate` is called."""
    if target.arch not in _NAMES:
        return body
    changed = (f"~{{{_NAMES[target.arch]}{n}}}" for n in range(target.vector_registers))
    text = (
        f"define void @{_NAME}() alwaysinline nounwind {{\n"
        f'  call void asm sideeffect "", "{",".join(changed)}"()\n'
        "  ret void\n}\n"
    )
    return with_definitions(text, body)
