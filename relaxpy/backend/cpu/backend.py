"""The backend for processors: kinds `llvm` and `c`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from relaxpy.backend.base import Backend, CompileOptions, KernelImages
from relaxpy.backend.cpu import launchers
from relaxpy.backend.cpu.arithmetic import multiplies_bfloat16
from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.cpu.kernel_memory import kernel_memory
from relaxpy.backend.cpu.pack_weights import PackWeights
from relaxpy.backend.cpu.peak import peak_flops
from relaxpy.backend.cpu.rules import CPU_RULES
from relaxpy.backend.cpu.rules.sharing import may_have_workspaces
from relaxpy.backend.cpu.target import KINDS, CpuTarget
from relaxpy.backend.knobs import Choice, Choices
from relaxpy.backend.schedule import (
    ScheduledKernel,
    knobs_of_rules,
    launches_by_rules,
    schedule_by_rules,
)
from relaxpy.runtime.bytecode import KernelImage, KernelMemory
from relaxpy.tir.lowering.workspace import Launches
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx
from relaxpy.transform import ConvertLayout
from relaxpy.transform.phases import Phase, Pipeline


class CpuBackend(Backend[CpuTarget]):
    """Compiles to object files. A program with a parallel loop gets two variants: one on all threads, one on the
    calling thread."""

    kinds: ClassVar[tuple[str, ...]] = KINDS

    def parse(self, text: str) -> CpuTarget:
        return CpuTarget.read(text)

    def pipeline(self, standard: Pipeline, target: CpuTarget) -> Pipeline:
        """Adds the passes that lay out tensors for the kernels that read them: contiguous channels, and packed
        weights."""
        packed = standard.with_phase(Phase("layout", (PackWeights(),)), after="fuse")
        lanes = max(each.lanes() for each in target.alternatives)
        if target.kind != "llvm" or lanes == 1:
            return packed
        layouts = ConvertLayout({"nn.conv2d": ("NHWC", "OHWI")}, fewest=lanes // 2)
        return packed.before("lift-packers", layouts)

    def fastest_float(self, target: CpuTarget) -> str:
        fast = all(map(multiplies_bfloat16, target.alternatives))
        return "bfloat16" if target.kind == "llvm" and fast else "float32"

    def schedule(self, func: tirx.PrimFunc, target: CpuTarget, choices: Choices) -> ScheduledKernel:
        return schedule_by_rules(func, target, choices, CPU_RULES)

    def launches(self, program: PrimFunc, target: CpuTarget) -> Launches | None:
        if not may_have_workspaces(program.func):
            return None
        return launches_by_rules(program, target, CPU_RULES)

    def knobs(
        self, func: tirx.PrimFunc, target: CpuTarget
    ) -> dict[str, dict[str, tuple[Choice, ...]]]:
        return knobs_of_rules(func, target, CPU_RULES)

    def compile(
        self,
        kernels: Mapping[str, ScheduledKernel],
        target: CpuTarget,
        options: CompileOptions,
        called: str = "",
    ) -> KernelImages:
        variants: dict[str, tirx.PrimFunc] = {}
        images: dict[str, KernelImage] = {}
        for symbol, scheduled in kernels.items():
            parallel = scheduled.serial if target.is_wasm else scheduled.parallel
            variants[symbol], serial = parallel, symbol
            is_launched = launchers.has_launchers(parallel, target)
            if not is_launched and not parallel.same_as(scheduled.serial):
                serial = f"{symbol}_serial"
                variants[serial] = scheduled.serial
            memory = self.kernel_memory(scheduled, target)
            images[symbol] = KernelImage(symbol, serial, 0, 1 if is_launched else -1, memory)
        code = compile_object(
            variants, target, check_arguments=options.check_arguments, called=called
        )
        are_launched = any(image.launchers != -1 for image in images.values())
        objects = (code, launchers.launchers_object()) if are_launched else (code,)
        return KernelImages(objects, images)

    def kernel_memory(self, scheduled: ScheduledKernel, target: CpuTarget) -> KernelMemory | None:
        return kernel_memory(scheduled.parallel)

    def peak_flops(self, target: CpuTarget) -> float:
        return peak_flops(target)
