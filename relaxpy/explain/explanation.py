"""Records the build of a module for an explanation: the module after each pass, fusion decisions and their reasons,
kernels, memory, and time.

    page(explain(mod, bounds={"n": 2048}))       # one HTML file: relaxpy.explain.page

A build that fails is explained up to the failing step. `relaxpy explain` is the command-line interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.build.build import link
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.codegen import Program, generate
from relaxpy.build.kernels import Progress
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RelaxError
from relaxpy.ir.expr import Call, DataflowBlock, ExternFunc, GlobalVar
from relaxpy.ir.module import IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor
from relaxpy.op.memory import CallDPS
from relaxpy.runtime.executable import Executable
from relaxpy.script.printer import print_expr, print_module
from relaxpy.shape.declare import with_bounds
from relaxpy.target import Target
from relaxpy.tir.forms import cost
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform import FuseOps
from relaxpy.transform.base import Pass, PassContext, Sequential
from relaxpy.transform.buffer_limit import buffer_limit
from relaxpy.transform.fuse_ops import Decision, explain_fusion
from relaxpy.transform.phases import Pipeline


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class FusedNode:
    """A binding of a dataflow block, as the input of FuseOps."""

    var: str
    text: str
    """The binding on one line."""
    kind: str
    """The pattern kind of its program (algorithm 1): `element_wise`, …"""
    group: int
    """The fused program that it belongs to; -1: not fused."""


@dataclass(frozen=True)
class FusedBlock:
    """A dataflow block before fusion."""

    function: str
    nodes: tuple[FusedNode, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class ExplainedKernel:
    """A kernel of the executable."""

    name: str
    rule: str
    """The schedule rule that matched it."""
    calls: int
    """The number of call sites."""
    flops: str
    """Floating-point operations of a run, as a formula over the program's symbols; "" if unknown."""
    nbytes: str
    """The minimum of bytes that a run must move; "" if unknown."""
    program: str
    """The tensor program after the passes."""
    scheduled: str
    """The scheduled program: loops are tiled, vectorised and parallel."""
    seconds: float
    """Time of scheduling and compiling."""
    size: int
    """The size of its object in bytes."""
    cached: bool


@dataclass
class Explanation:
    """The record of a build."""

    title: str
    target: str
    script: str
    """The source program."""
    passes: list[PassRun] = field(default_factory=list)
    blocks: list[FusedBlock] = field(default_factory=list)
    kernels: list[ExplainedKernel] = field(default_factory=list)
    libraries: dict[str, int] = field(default_factory=dict)
    """Library function → the number of its call sites."""
    steps: list[tuple[str, float]] = field(default_factory=list)
    """Step → seconds, like `BuildReport.steps`."""
    executable: Executable | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The values of symbols of the memory plan."""
    error: RelaxError | None = None
    """The error that ended the build."""
    failed: str = ""
    """The step that failed."""


def explain(
    mod: IRModule,
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
    *,
    pipeline: Pass | None = None,
    bounds: Mapping[str, int] | None = None,
    title: str = "module",
    cache: bool = True,
    progress: Progress | None = None,
) -> Explanation:
    """Builds `mod` and records the build. The options are those of `relaxpy.build`. An error of the build is recorded,
    not raised."""
    resolved = Target.parse(target)
    result = Explanation(title, str(resolved), _script(mod), sizes=dict(bounds or {}))
    recorder = _Recorder(result, pipeline or default_pipeline(resolved), resolved)
    result.failed = "check"
    try:
        with deep_recursion():
            check_well_formed(mod)
            mod = with_bounds(mod, bounds or {})
            context = PassContext(resolved, dict(params or {}), (recorder,))
            result.failed = recorder.passes[0].name if recorder.passes else ""
            lowered = Sequential(recorder.passes).run(mod, context)
            result.failed = "codegen"
            program = generate(lowered, resolved)
            result.failed = "kernels"
            build_cache = BuildCache.default() if cache else None
            exe = link(lowered, program, resolved, build_cache=build_cache, progress=progress)
    except RelaxError as error:
        result.error = error
        return result
    result.failed, result.executable = "", exe
    result.kernels = _kernels(lowered, program, exe, resolved)
    result.libraries = {name: count for name, count in recorder.libraries.items() if count}
    report = exe.build_report
    times = [(run.name, run.seconds) for run in result.passes]
    result.steps = times + ([] if report is None else list(report.steps))
    return result


class _Recorder:
    """An instrument that records each pass when it ends, and the input of FuseOps."""

    def __init__(self, result: Explanation, pipeline: Pass, target: Target) -> None:
        self.result = result
        self.target = target
        phases = pipeline.phases if isinstance(pipeline, Pipeline) else ()
        self.phases = [phase.name for phase in phases for _ in phase.passes]
        self.passes: tuple[Pass, ...] = getattr(pipeline, "passes", (pipeline,))
        self.libraries: dict[str, int] = {}
        self.start = perf_counter()

    def __call__(self, number: int, step: Pass, before: IRModule, after: IRModule) -> None:
        seconds = perf_counter() - self.start
        if isinstance(step, FuseOps) and after is not before:
            limit = buffer_limit(before, self.target)
            self.result.blocks = list(_blocks(before, step.relayouts, limit))
        self.libraries = _library_calls(after) or self.libraries
        phase = self.phases[number] if number < len(self.phases) else ""
        script = None if after is before else _script(after)
        self.result.passes.append(PassRun(number + 1, step.name, phase, seconds, script))
        following = number + 1
        self.result.failed = self.passes[following].name if following < len(self.passes) else ""
        self.start = perf_counter()  # exclude the time of recording


def _script(mod: IRModule) -> str:
    return print_module(mod, abbreviated=True)


def _blocks(mod: IRModule, relayouts: bool, most_buffers: int | None) -> list[FusedBlock]:
    """The dataflow blocks of a module with the groups that FuseOps forms."""
    found: list[FusedBlock] = []
    for name, function in mod.graph_functions.items():
        blocks = _Blocks()
        blocks.visit(function.body)
        for block in blocks.found:
            report = explain_fusion(block, mod, relayouts=relayouts, most_buffers=most_buffers)
            several = [g for g in report.groups if len(g) > 1]
            group_of = {n: i for i, group in enumerate(several) for n in group}
            nodes = tuple(
                FusedNode(
                    node.binding.var.name,
                    f"{node.binding.var.name} = {print_expr(node.binding.value)}",
                    node.kind.name.lower(),
                    group_of.get(i, -1),
                )
                for i, node in enumerate(report.graph.nodes)
            )
            found.append(FusedBlock(name, nodes, tuple(report.decisions)))
    return found


class _Blocks(Visitor):
    def __init__(self) -> None:
        self.found: list[DataflowBlock] = []

    def visit_DataflowBlock(self, node: DataflowBlock) -> None:
        self.found.append(node)
        self.generic(node)


class _Calls(Visitor):
    """Counts destination-passing calls by name."""

    def __init__(self) -> None:
        self.programs: dict[str, int] = {}
        self.libraries: dict[str, int] = {}

    def visit_Call(self, node: Call) -> None:
        if isinstance(node.op, CallDPS):
            match node.args[0]:
                case GlobalVar(name=name):
                    self.programs[name] = self.programs.get(name, 0) + 1
                case ExternFunc(name=name):
                    self.libraries[name] = self.libraries.get(name, 0) + 1
                case _:
                    pass
        self.generic(node)


def _calls(mod: IRModule) -> _Calls:
    calls = _Calls()
    for function in mod.graph_functions.values():
        calls.visit(function.body)
    return calls


def _library_calls(mod: IRModule) -> dict[str, int]:
    return _calls(mod).libraries


def _kernels(
    mod: IRModule, program: Program, exe: Executable, target: Target
) -> list[ExplainedKernel]:
    """The kernels, slowest to compile first."""
    calls = _calls(mod).programs
    report = exe.build_report
    assert report is not None
    times = {kernel.name: kernel for kernel in report.kernels}
    found: list[ExplainedKernel] = []
    for name in program.kernels:
        func = mod[name]
        time = times.get(name)
        if time is None or not isinstance(func, PrimFunc):
            continue  # the same program as one of another name
        scheduled = schedule_kernel(func.func, target)
        flops, nbytes = cost.flops(func.func), cost.bytes_moved(func.func)
        found.append(
            ExplainedKernel(
                name,
                time.rule,
                calls.get(name, 0),
                "" if flops is None else str(flops),
                "" if nbytes is None else str(nbytes),
                func.listing(name),
                PrimFunc(scheduled.parallel).listing(name),
                time.seconds,
                time.size,
                time.cached,
            )
        )
    return sorted(found, key=lambda kernel: -kernel.seconds)
