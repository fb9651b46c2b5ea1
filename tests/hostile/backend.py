"""The backend of the hostile device: the processor's rules and code, run by the device's process, one thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import pytest

from relaxpy.backend import registry
from relaxpy.backend.base import Backend, CompileOptions, KernelImages
from relaxpy.backend.cpu.backend import CpuBackend
from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.cpu.rules import CPU_RULES
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.knobs import Choices
from relaxpy.backend.schedule import ScheduledKernel, launches_by_rules
from relaxpy.runtime.bytecode import KernelImage
from relaxpy.target import Target
from tests.hostile.device import hostile_devices
from tests.hostile.memory import MOST_BUFFERS
from tests.sweeps import quick_target


@cache
def _processor() -> CpuTarget:
    found = quick_target()  # its memory is hostile, not its code
    assert isinstance(found, CpuTarget)
    return found


@dataclass(frozen=True)
class HostileTarget(Target):
    """See the module."""

    kind: str = "hostile"
    device: ClassVar[str] = "hostile"

    def __str__(self) -> str:
        return "hostile"

    @property
    def is_host_loadable(self) -> bool:
        return False

    @property
    def max_buffers_per_launch(self) -> int:
        return MOST_BUFFERS

    @property
    def has_graphs(self) -> bool:
        return True


class HostileBackend(Backend[HostileTarget]):
    """See the module."""

    kinds: ClassVar[tuple[str, ...]] = ("hostile",)

    def parse(self, text: str) -> HostileTarget:
        return HostileTarget()

    def schedule(self, func: Any, target: HostileTarget, choices: Choices) -> ScheduledKernel:
        found = CpuBackend().schedule(func, _processor(), {})
        return ScheduledKernel(found.serial, found.serial, found.rule)

    def launches(self, program: Any, target: HostileTarget) -> Any:
        return launches_by_rules(program, _processor(), CPU_RULES, target.max_buffers_per_launch)

    def compile(
        self,
        kernels: Mapping[str, ScheduledKernel],
        target: HostileTarget,
        options: CompileOptions,
        called: str = "",
    ) -> KernelImages:
        variants = {symbol: scheduled.serial for symbol, scheduled in kernels.items()}
        code = compile_object(variants, _processor(), check_arguments=False, called=called)
        images = {symbol: KernelImage(symbol, symbol) for symbol in kernels}
        return KernelImages((code,), images)


@contextmanager
def hostile_targets(monkeypatch: pytest.MonkeyPatch, policy: str | int = "lazy") -> Iterator[None]:
    """Targets and devices of the kind `hostile` are there."""
    monkeypatch.setitem(registry.OWN, "hostile", f"{__name__}:HostileBackend")
    with hostile_devices(monkeypatch, policy):
        yield
