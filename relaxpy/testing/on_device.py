"""Calls on any target beside the interpreter: on a device, or for a processor of another kind, which are only compiled.

failures, refusal = check_on(calls, Where(Target.parse("vulkan")))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.build.build import build
from relaxpy.errors import RelaxError, UsageError
from relaxpy.runtime.devices.registry import runtime_of
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.target import Target
from relaxpy.testing.differential import Call, Failure, outcome_of, reported

REFUSALS = ("device-assert", "device-scratch", "device-dtype", "launch-buffers", "web-export")
"""What a program may be refused for when it is built for a device, or written for a browser, that the processor
compiles."""
TOO_LARGE = "beyond the 32 bits of WGSL's integers"
"""What a launch may be refused for."""


@dataclass(frozen=True)
class Where:
    """A target, and whether programs are run on it."""

    target: Target
    compile_only: bool = False

    def check(self) -> None:
        """Raises UsageError if no such device is here."""
        if self.compile_only:
            return
        if not self.target.is_host_loadable:
            raise UsageError(
                "fuzz",
                f"kernels for {self.target} do not run on this machine",
                help="with --compile-only the programs are built and not run",
            )
        runtime_of(self.target.device, 0)


def check_on(
    calls: Sequence[Call], where: Where, machine: Callable[[Executable], Any] = VirtualMachine
) -> tuple[list[Failure], str]:
    """Builds the module of these calls and runs them. Gives the failures, and what the target refuses of the module;
    "" if nothing. `machine` makes what runs an executable: `machine(exe)[name](*args)`."""
    found: list[Failure] = []
    refused: list[str] = []
    with reported("build", found):
        try:
            exe = build(calls[0].mod, where.target, cache=False)
        except RelaxError as error:
            if error.code not in REFUSALS:
                raise
            return [], error.message
    if found or where.compile_only:
        return found, ""
    with reported("vm", found):
        try:
            vm = machine(exe)
        except UsageError as error:
            if error.code not in REFUSALS:
                raise
            return [], error.message
        for call in calls:
            got = outcome_of(vm, call)
            if getattr(got, "code", "") == "update-lost":
                uploading: Any = _Uploading(vm)
                got = outcome_of(uploading, call)
            if TOO_LARGE in str(got):
                refused.append(str(got))
                continue
            problem = call.disagreement(got)
            if problem:
                kind = "value" if not isinstance(got, Exception) else type(got).__name__
                found.append(Failure("vm", kind, problem, call))
    return found, "".join(refused[:1])


class _Uploading:
    """A machine whose functions may update their arguments in place: these must be on its device."""

    def __init__(self, vm: VirtualMachine) -> None:
        self.vm = vm

    def __getitem__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            return self.vm[name](
                *(self.vm.upload(x) if isinstance(x, np.ndarray) else x for x in args)
            )

        return call
