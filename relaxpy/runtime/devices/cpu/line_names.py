"""The names in the code of linked functions for the CPU (`relaxpy.runtime.devices.cpu.emit`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from relaxpy.runtime.devices.cpu.kernels import KernelGroup, KernelRow, require_memory
from relaxpy.runtime.devices.line_names import LineNames

if TYPE_CHECKING:
    from relaxpy.runtime.program import BoundProgram


@dataclass(frozen=True, slots=True)
class CpuNames(LineNames):
    """The names in the code of a function for the CPU."""

    groups: tuple[tuple[int, ...], ...]
    """The kernels of each group."""
    rows: int

    def bound(self, program: BoundProgram) -> Mapping[str, Any]:
        found: dict[str, Any] = {"reserve": require_memory}
        for number, kernels in enumerate(self.groups):
            group = KernelGroup([program.kernels[index] for index in kernels])
            found[f"serial{number}"] = group.serial
            found[f"pick{number}"] = group.pick
        return found | {f"row{number}": KernelRow() for number in range(self.rows)}

    def position(self, code: CodeType, local: Mapping[str, Any]) -> int:
        return KernelRow.position(code, local)
