"""The common part of the backends of GPUs: schedules, launches, and images of kernels as text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, TypeVar

from relaxpy.analysis.index_checks import is_checked, name_of
from relaxpy.backend.arrangement import Arrangement, Rule
from relaxpy.backend.base import Backend, CompileOptions, KernelImages
from relaxpy.backend.gpu.launches import launches_of
from relaxpy.backend.gpu.schedule.attention import arrange_attention
from relaxpy.backend.gpu.schedule.matmul import arrange_matmul
from relaxpy.backend.gpu.schedule.paged_attention import arrange_paged_attention
from relaxpy.backend.gpu.schedule.recurrent import arrange_recurrent
from relaxpy.backend.gpu.schedule.rows import arrange_rows
from relaxpy.backend.gpu.target import GpuTarget
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.backend.knobs import Choice, Choices, setting
from relaxpy.backend.refused import refused
from relaxpy.backend.schedule import ScheduledKernel, knobs_of_rules
from relaxpy.errors import BuildError, RelaxError
from relaxpy.runtime.bytecode import IntExpr, KernelImage
from relaxpy.runtime.devices.image import Image
from relaxpy.tir.lowering.workspace import (
    Launches,
    buffer_count,
    lifted,
    not_given,
    with_given,
)
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.schedule import asserts, is_scheduled
from relaxpy.tir.tvm import tirx
from relaxpy.transform.phases import Pipeline

T = TypeVar("T", bound=GpuTarget)
RULES = (
    Rule("matmul", arrange_matmul),
    Rule("attention", arrange_attention),
    Rule("paged_attention", arrange_paged_attention),
    Rule("recurrent", arrange_recurrent),
    Rule("rows", arrange_rows),
)
"""The rules of all GPUs."""
FALLBACK = "threads"
"""The rule for every other launch: a thread for each element (`relaxpy.backend.gpu.threads`)."""


class GpuBackend(Backend[T]):
    """Compiles programs that a rule recognises as one launch (`relaxpy.backend.gpu.schedule`), others as one for each
    loop nest, with a thread for each element."""

    rules: ClassVar[tuple[Rule, ...]] = RULES
    """The rules for programs that are one launch, in the order in which they are tried."""

    @abstractmethod
    def image(
        self, func: tirx.PrimFunc, symbol: str, name: str, target: T
    ) -> tuple[Image, tuple[IntExpr, ...]]:
        """The image of a launch whose loops are bound to threads, and its launch parameters (`KernelImage.launch`).
        Errors name the kernel `name`. Raises: BuildError."""

    def pipeline(self, standard: Pipeline, target: T) -> Pipeline:
        """Rows of one launch run in no order, so an output must not be the memory of an input that other rows read.
        WGSL forbids a buffer that a launch reads and writes as two arguments."""
        return standard.without("update-in-place")

    def schedule(self, func: tirx.PrimFunc, target: T, choices: Choices) -> ScheduledKernel:
        if is_checked(func) or asserts(func):
            name = f' "{name_of(func)}"' if is_checked(func) else ""
            raise BuildError(
                "device-assert",
                f"the tensor program{name} may raise an error at run time, which kernels of {target} cannot",
                help="clamp its indices to their range: T.max(T.min(i, n - 1), 0)",
            )
        if is_scheduled(func):
            bound = bind_threads(func, target.threads)
            return ScheduledKernel(bound, bound, "author")
        with setting(choices):
            for name, found in self._arrangements(func, target, choices.get("rule")):
                bound = with_given(func, found.write(), found.workspaces)
                return ScheduledKernel(bound, bound, name)
        bound = bind_threads(func, target.threads)
        return ScheduledKernel(bound, bound, FALLBACK)

    def knobs(self, func: tirx.PrimFunc, target: T) -> dict[str, dict[str, tuple[Choice, ...]]]:
        usable = {name for name, _ in self._arrangements(func, target)}
        return knobs_of_rules(func, target, tuple(r for r in self.rules if r.name in usable))

    def family(self, func: tirx.PrimFunc, target: T) -> str:
        if is_checked(func) or asserts(func) or is_scheduled(func):
            return ""
        return next((found.family for _, found in self._arrangements(func, target)), "")

    def launches(self, program: PrimFunc, target: T) -> Launches | None:
        func = program.func
        is_free = not (is_checked(func) or asserts(func) or is_scheduled(func))
        if is_free and buffer_count(program) <= target.max_buffers:
            for rule in self.rules:
                found = rule.arrange(func, target)
                if found is None:
                    continue
                missing = not_given(func, found.workspaces)
                if not missing:
                    return None
                together = lifted(program, missing)
                fits = buffer_count(program) + len(missing) <= target.max_buffers
                if fits and together is not None and len(together.workspaces) == len(missing):
                    return together
        most = target.max_buffers if is_free else None
        return launches_of(program, lambda part: self._is_recognised(part, target), most)

    def compile(
        self,
        kernels: Mapping[str, ScheduledKernel],
        target: T,
        options: CompileOptions,
        called: str = "",
    ) -> KernelImages:
        objects: list[bytes] = []
        images: dict[str, KernelImage] = {}
        for symbol, scheduled in kernels.items():
            name = called or symbol
            try:
                image, launch = self.image(scheduled.parallel, symbol, name, target)
            except RelaxError:
                raise
            except Exception as error:
                raise refused(error, name, target, scheduled.parallel) from error
            own = image.kernel
            images[symbol] = KernelImage(own, own, len(objects), launch=launch)
            objects.append(image.encode())
        return KernelImages(tuple(objects), images)

    def _is_recognised(self, func: tirx.PrimFunc, target: T) -> bool:
        """Does a rule recognise the program, without more memory than it has?"""
        return any(True for _ in self._arrangements(func, target))

    def _arrangements(
        self, func: tirx.PrimFunc, target: T, first: Choice | None = None
    ) -> Iterator[tuple[str, Arrangement]]:
        """The rules that recognise the program without more memory than it has, the one named `first` before the
        others, with their schedules."""
        for rule in sorted(self.rules, key=lambda rule: rule.name != first):
            found = rule.arrange(func, target)
            if found is not None and not not_given(func, found.workspaces):
                yield rule.name, found
