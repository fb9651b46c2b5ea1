"""Cases of instructions: handwritten functions, their arguments, and the expected outcomes.

Expected values are written by hand, not computed by a machine.
"""

from __future__ import annotations

from tests.machine.cases import Case
from tests.machine.control import branches_cases, calls_cases, values_cases
from tests.machine.matching import match_cases, refused_cases, sizes_cases
from tests.machine.memory import kernels_cases, memory_cases, slots_cases
from tests.machine.tails import tails_cases


def instruction_cases() -> list[Case]:
    """All cases. Every instruction occurs in one."""
    return [
        *match_cases(),
        *sizes_cases(),
        *memory_cases(),
        *slots_cases(),
        *kernels_cases(),
        *calls_cases(),
        *tails_cases(),
        *values_cases(),
        *branches_cases(),
        *refused_cases(),
    ]
