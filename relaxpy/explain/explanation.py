"""The record of a build, as data: the module after each pass, fusion decisions with their reasons, kernels, launches,
memory and times. `relaxpy.explain.record` and `relaxpy.explain.compiled` make it, `relaxpy.explain.page` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from relaxpy.backend.lift_graphs import GraphDecision
from relaxpy.errors import RelaxError
from relaxpy.explain.grid import Grid
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.build_report import KernelTime
from relaxpy.runtime.inspect.image_choices import ImageChoice
from relaxpy.runtime.inspect.launches import Launch
from relaxpy.runtime.inspect.memory_plan import MemoryPlan
from relaxpy.runtime.inspect.profile import Profile
from relaxpy.transform.fuse_ops import Decision


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's source."""

    file: str
    line: int

    def __str__(self) -> str:
        # Only the file's name, since the page may be read on other machines.
        return f"{PurePath(self.file).name}:{self.line}"


@dataclass(frozen=True, slots=True)
class PassRun:
    """The run of a pass."""

    number: int
    """The number of the pass, from 1."""
    name: str
    phase: str
    """"" for a pass outside of any phase."""
    seconds: float
    script: str | None
    """The module after the pass; None if it changed nothing. Large constants are abbreviated."""


@dataclass(frozen=True, slots=True)
class FusedNode:
    """A binding of a dataflow block, as the input of FuseOps."""

    var: str
    text: str
    """The binding on one line."""
    kind: str
    """The pattern kind of its program (algorithm 1): `element_wise`, …"""
    group: int
    """The fused program that it belongs to; -1: not fused."""
    program: str = ""
    """The tensor program that it calls; "" for none."""
    source: SourceLine | None = None
    flops: int | None = None
    """Floating-point operations at the explanation's sizes; None if unknown."""
    nbytes: int | None = None
    """The minimum of bytes that it must move; None if unknown."""


@dataclass(frozen=True, slots=True)
class FusedBlock:
    """A dataflow block before fusion."""

    function: str
    nodes: tuple[FusedNode, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class ExplainedKernel:
    """A kernel of the executable. Several names of equal programs are one kernel."""

    name: str
    names: tuple[str, ...]
    """All its names in the executable, `name` included."""
    calls: int
    """The number of call sites."""
    flops: str
    """Floating-point operations of a run, as a formula over the program's symbols; "" if unknown."""
    nbytes: str
    """The minimum of bytes that a run must move; "" if unknown."""
    program: str
    """The tensor program after the passes; "" if the executable does not have it."""
    scheduled: str
    """The scheduled program: loops are tiled, vectorised and parallel. "" of an executable from a file."""
    size: int
    """The size of its objects in bytes, over all images."""
    digest: str
    """A digest of its object code: equal for equal code."""
    times: tuple[KernelTime, ...] = ()
    """Its schedule rule and compile time, for each image; empty of an executable from a file."""
    grid: Grid | None = None
    """Its launch on a device; None for a processor's."""

    @property
    def rule(self) -> str:
        """The schedule rules that matched it; "" of an executable from a file."""
        return ", ".join(dict.fromkeys(time.rule for time in self.times))

    @property
    def record(self) -> str:
        """The tuning records whose schedules it has; "" if these are the rules' own."""
        return "; ".join(dict.fromkeys(time.record for time in self.times if time.record))

    @property
    def seconds(self) -> float:
        """Time of scheduling and compiling, over all images."""
        return sum(time.seconds for time in self.times)

    @property
    def cached(self) -> bool:
        """Whether all its images came from the cache."""
        return bool(self.times) and all(time.cached for time in self.times)


@dataclass
class Explanation:
    """The record of a build, or of an executable from a file, which has no passes."""

    title: str
    target: str
    script: str = ""
    """The source program; "" of an executable from a file."""
    passes: list[PassRun] = field(default_factory=list[PassRun])
    blocks: list[FusedBlock] = field(default_factory=list[FusedBlock])
    kernels: list[ExplainedKernel] = field(default_factory=list[ExplainedKernel])
    """Slowest to compile first."""
    libraries: dict[str, int] = field(default_factory=dict[str, int])
    """Library function → the number of its call sites."""
    steps: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    """Step → seconds, like `BuildReport.steps`."""
    jobs: int = 1
    """The number of compiling threads."""
    executable: Executable | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """The values of symbols for which memory and costs are shown."""
    texts: Mapping[SourceLine, str] = field(default_factory=dict[SourceLine, str])
    """The text of source lines, where it is known."""
    launches: tuple[Launch, ...] = ()
    """The call sites of kernels and libraries."""
    relayouts: tuple[int, int] | None = None
    """How many operators move axes before `ConvertLayout`, and after; None if it is not in the pipeline."""
    graphs: tuple[GraphDecision, ...] = ()
    """For each call, its graph or the reason why it is in none; empty if no device of the build replays launches, and
    of an executable from a file."""
    plan: MemoryPlan | None = None
    plan_error: RelaxError | None = None
    """The reason why there is no memory plan, for example a size that is not given."""
    images: tuple[ImageChoice, ...] = ()
    """The kernel images by hardware requirement, and which run here."""
    profile: Profile | None = None
    """Measured calls of one function, if they were asked for."""
    error: RelaxError | None = None
    """The error that ended the build."""
    failed: str = ""
    """The step that failed."""

    @property
    def is_compiled(self) -> bool:
        """Whether it is of an executable from a file, whose build is not known."""
        return not self.script

    def kernel_of(self, name: str) -> int:
        """The index in `kernels` of the kernel with this name; -1 if there is none."""
        for number, kernel in enumerate(self.kernels):
            if name in kernel.names:
                return number
        return -1

    def as_json(self) -> dict[str, Any]:
        """The record as data for `json.dumps`, without the texts of programs. Sizes are in bytes, times in seconds."""
        return {
            "title": self.title,
            "target": self.target,
            "sizes": dict(self.sizes),
            "error": None if self.error is None else self.error.message,
            "failed": self.failed,
            "passes": [
                {
                    "number": run.number,
                    "name": run.name,
                    "phase": run.phase,
                    "seconds": run.seconds,
                    "changed": run.script is not None,
                }
                for run in self.passes
            ],
            "relayouts": self.relayouts
            and dict(zip(("before", "after"), self.relayouts, strict=True)),
            "steps": [{"name": name, "seconds": seconds} for name, seconds in self.steps],
            "kernels": [
                {
                    "name": kernel.name,
                    "names": list(kernel.names),
                    "rule": kernel.rule,
                    "tuning_record": kernel.record,
                    "calls": kernel.calls,
                    "flops": kernel.flops,
                    "bytes": kernel.nbytes,
                    "seconds": kernel.seconds,
                    "object_bytes": kernel.size,
                    "cached": kernel.cached,
                    "grid": kernel.grid and kernel.grid.as_json(),
                }
                for kernel in self.kernels
            ],
            "graphs": [
                {
                    "function": each.function,
                    "callee": each.callee,
                    "graph": None if each.graph < 0 else each.graph,
                    "reason": each.reason,
                }
                for each in self.graphs
            ],
            "libraries": dict(self.libraries),
            "images": [
                {
                    "name": image.name,
                    "arch": image.arch,
                    "features": list(image.features),
                    "kernels": image.images,
                    "lacks": None if image.lacks is None else list(image.lacks),
                    "chosen": image.chosen,
                }
                for image in self.images
            ],
            "memory": None
            if self.plan is None
            else {
                "weights": self.plan.weights,
                "peak": self.plan.peak,
                "functions": [
                    {
                        "name": function.name,
                        "planned": function.planned,
                        "least": function.least,
                        "unshared": function.unshared,
                        "storages": list(function.storages),
                    }
                    for function in self.plan.functions
                ],
            },
        }
