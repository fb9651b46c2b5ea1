"""How modules are compiled for abacuses: with one bead at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.backend.arrangement import Arrangement, Rule
from relaxpy.backend.base import Backend, CompileOptions, KernelImages
from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.knobs import Choices
from relaxpy.backend.schedule import ScheduledKernel, schedule_by_rules
from relaxpy.runtime.bytecode import KernelImage
from relaxpy.target import Target, fail, options_of
from relaxpy.transform.phases import Phase, Pipeline
from relaxpy_abacus.check_rods import CheckRods


@dataclass(frozen=True)
class AbacusTarget(Target):
    """An abacus with so many rods."""

    kind: str = "abacus"
    rods: int = 13
    device: ClassVar[str] = "abacus"
    is_host_loadable: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"abacus -rods={self.rods}"


RULES = (Rule("beads", lambda func, target: Arrangement(lambda: func)),)
"""One bead after the other: any program as it is."""


class AbacusBackend(Backend[AbacusTarget]):
    """Loops as they are written, on a processor: a real one would have an instruction set of its own."""

    kinds: ClassVar[tuple[str, ...]] = ("abacus",)

    def parse(self, text: str) -> AbacusTarget:
        rods = options_of(text, ("rods",), "-rods=13").get("rods", "13")
        if not rods.isdecimal() or not 1 <= int(rods) <= 27:
            fail("target-option", f"-rods is a number from 1 to 27, got {rods}")
        return AbacusTarget(rods=int(rods))

    def pipeline(self, standard: Pipeline, target: AbacusTarget) -> Pipeline:
        return standard.with_phase(Phase("abacus", (CheckRods(),)), after="prepare")

    def schedule(self, func: Any, target: AbacusTarget, choices: Choices) -> ScheduledKernel:
        return schedule_by_rules(func, target, choices, RULES)

    def compile(
        self,
        kernels: Mapping[str, ScheduledKernel],
        target: AbacusTarget,
        options: CompileOptions,
        called: str = "",
    ) -> KernelImages:
        funcs = {symbol: scheduled.serial for symbol, scheduled in kernels.items()}
        code = compile_object(funcs, CpuTarget.read("llvm -opt-level=0"), called=called)
        images = {symbol: KernelImage(symbol, symbol) for symbol in kernels}
        return KernelImages((code,), images)
