"""Records the build of a module for an explanation.

    page(explain(mod, bounds={"n": 2048}))       # one HTML file: relaxpy.explain.page

A build that fails is explained up to the failing step. `relaxpy explain` is the command-line interface.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import perf_counter
from typing import Any

from relaxpy.analysis.called_operators import calls_in
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.backend.lift_graphs import LiftGraphs
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.build.build import link, records_of
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.codegen import Program, call_costs, generate
from relaxpy.build.kernels import Progress
from relaxpy.build.pipeline import default_pipeline
from relaxpy.build.tuning import TuningRecords
from relaxpy.errors import RelaxError, Span
from relaxpy.explain.compiled import (
    add_executable,
    call_counts,
    digest,
    equal_kernels,
    object_size,
)
from relaxpy.explain.explanation import (
    ExplainedKernel,
    Explanation,
    FusedBlock,
    FusedNode,
    PassRun,
    SourceLine,
)
from relaxpy.explain.grid import grid_of
from relaxpy.ir.accessors import expect
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import Call, DataflowBlock, Tuple
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor
from relaxpy.op.deduce import deduce
from relaxpy.op.manipulate import PermuteDims
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.build_report import BuildReport
from relaxpy.script.printer import print_expr, print_module
from relaxpy.shape.declare import with_bounds
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise import cost
from relaxpy.transform import ConvertLayout, FuseOps
from relaxpy.transform.base import Pass, PassContext, Sequential
from relaxpy.transform.buffer_limit import buffer_limit
from relaxpy.transform.decompressions import repeat_decompressions
from relaxpy.transform.fuse_ops import explain_fusion
from relaxpy.transform.phases import Pipeline


def explain(
    mod: IRModule,
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
    *,
    pipeline: Pass | None = None,
    bounds: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    title: str = "module",
    cache: bool = True,
    progress: Progress | None = None,
    without_features: Collection[str] = (),
) -> Explanation:
    """Builds `mod` and records the build. The options are those of `relaxpy.build`. `sizes` are values of symbolic
    variables for which memory and costs are shown; the default are their bounds. `without_features` are those of a
    `VirtualMachine`. An error of the build is recorded, not raised."""
    resolved = Target.parse(target)
    shown = {**(bounds or {}), **(sizes or {})}
    result = Explanation(title, str(resolved), _script(mod), sizes=shown)
    recorder = _Recorder(result, pipeline or default_pipeline(resolved), resolved)
    result.failed = "check"
    try:
        with deep_recursion():
            check_well_formed(mod)
            mod = with_bounds(mod, bounds or {})
            recorder.lap("check")
            context = PassContext(resolved, dict(params or {}), (recorder,))
            result.failed = recorder.passes[0].name if recorder.passes else ""
            lowered = Sequential(recorder.passes).run(mod, context)
            result.failed = "codegen"
            program = generate(lowered, resolved)
            recorder.lap("codegen")
            result.failed = "kernels"
            build_cache = BuildCache.default() if cache else None
            records = records_of(True, resolved)
            exe = link(
                lowered, program, resolved,
                build_cache=build_cache, tuning=records, progress=progress,
            )  # fmt: skip
    except RelaxError as error:
        result.error = error
        return result
    result.failed = ""
    report = exe.build_report
    assert report is not None
    result.steps += report.steps
    result.jobs = report.jobs
    add_executable(result, exe, without_features)
    result.kernels = _kernels(lowered, program, exe, report, result, resolved, records)
    result.texts = recorder.texts
    return result


def _relayouts(mod: IRModule) -> int:
    """How many operators move axes."""
    calls = (call for function in mod.graph_functions.values() for call in calls_in(function))
    return sum(isinstance(call.op, PermuteDims) for call in calls)


class _Recorder:
    """An instrument that records each pass when it ends, and the decisions of FuseOps and LiftGraphs."""

    def __init__(self, result: Explanation, pipeline: Pass, target: Target) -> None:
        self.result = result
        self.target = target
        phases = pipeline.phases if isinstance(pipeline, Pipeline) else ()
        self.phases = [phase.name for phase in phases for _ in phase.passes]
        self.passes: tuple[Pass, ...] = getattr(pipeline, "passes", (pipeline,))
        self.texts: dict[SourceLine, str] = {}
        self.start = perf_counter()

    def lap(self, name: str) -> None:
        """Records the time since the last step."""
        self.result.steps.append((name, perf_counter() - self.start))
        self.start = perf_counter()

    def __call__(self, number: int, step: Pass, before: IRModule, after: IRModule) -> None:
        seconds = perf_counter() - self.start
        self.result.steps.append((step.name, seconds))
        if isinstance(step, FuseOps):
            limit = buffer_limit(before, self.target)
            self.result.blocks = self.blocks(repeat_decompressions(before), step.relayouts, limit)
        if isinstance(step, ConvertLayout):
            self.result.relayouts = _relayouts(before), _relayouts(after)
        if isinstance(step, LiftGraphs):
            self.result.graphs = step.decisions(before, self.target)
        phase = self.phases[number] if number < len(self.phases) else ""
        script = None if after is before else _script(after)
        self.result.passes.append(PassRun(number + 1, step.name, phase, seconds, script))
        following = number + 1
        self.result.failed = self.passes[following].name if following < len(self.passes) else ""
        self.start = perf_counter()  # exclude the time of recording

    def blocks(self, mod: IRModule, relayouts: bool, most_buffers: int | None) -> list[FusedBlock]:
        """The dataflow blocks of a module with the groups that FuseOps forms."""
        found: list[FusedBlock] = []
        for name, function in mod.graph_functions.items():
            blocks = _Blocks()
            blocks.visit(function.body)
            for block in blocks.found:
                report = explain_fusion(block, mod, relayouts=relayouts, most_buffers=most_buffers)
                several = [g for g in report.groups if len(g) > 1]
                group_of = {n: i for i, group in enumerate(several) for n in group}
                nodes: list[FusedNode] = []
                for number, node in enumerate(report.graph.nodes):
                    binding = node.binding
                    flops, nbytes = self.costs(mod, name, node.program, binding.value)
                    nodes.append(
                        FusedNode(
                            binding.var.name,
                            f"{binding.var.name} = {print_expr(binding.value)}",
                            node.kind.name.lower(),
                            group_of.get(number, -1),
                            node.program or "",
                            self.source(binding.span or binding.value.span),
                            flops,
                            nbytes,
                        )
                    )
                found.append(FusedBlock(name, tuple(nodes), tuple(report.decisions)))
        return found

    def costs(
        self, mod: IRModule, function: str, program: str | None, call: Any
    ) -> tuple[int | None, int | None]:
        """Floating-point operations and bytes of a call of a tensor program, at the explanation's sizes."""
        if program is None or not isinstance(call, Call) or not isinstance(call.args[1], Tuple):
            return None, None
        func = expect(TensorProgram, mod[program])
        given = [deduce(arg, mod) for arg in call.args[1].fields]
        _, flops, nbytes = call_costs(func, [*given, *call.ty_args])
        return self.at_sizes(function, flops), self.at_sizes(function, nbytes)

    def at_sizes(self, function: str, dim: Dim | None) -> int | None:
        """The value of a dimension; None if it is unknown or a size is."""
        sizes = self.result.sizes
        if dim is None:
            return None
        values = {v: sizes.get(f"{function}.{v.name}", sizes.get(v.name)) for v in dim.vars}
        known = {var: value for var, value in values.items() if value is not None}
        return dim.evaluate(known) if len(known) == len(values) else None

    def source(self, span: Span | None) -> SourceLine | None:
        """The source line of a span, whose text is kept."""
        if span is None or not span.file:
            return None
        line = SourceLine(span.file, span.line)
        if line not in self.texts and (text := span.source_line()) is not None:
            self.texts[line] = text.strip()
        return line


def _script(mod: IRModule) -> str:
    return print_module(mod, abbreviated=True)


class _Blocks(Visitor):
    def __init__(self) -> None:
        self.found: list[DataflowBlock] = []

    def visit_DataflowBlock(self, node: DataflowBlock) -> None:
        self.found.append(node)
        self.generic(node)


def _kernels(
    mod: IRModule,
    program: Program,
    exe: Executable,
    report: BuildReport,
    result: Explanation,
    target: Target,
    records: TuningRecords | None,
) -> list[ExplainedKernel]:
    """The kernels, slowest to compile first."""
    calls = call_counts(result)
    found: list[ExplainedKernel] = []
    for same in equal_kernels(exe):
        name = same[0].name
        func = expect(PrimFunc, mod[name])
        names = {info.name for info in same}
        # With several alternatives a time is of `name (alternative)`.
        times = [t for t in report.kernels if t.name in names or _base(t.name) in names]
        own = program.slots.targets[same[0].slot]
        wanted = target if len(program.slots.slots) == 1 else own or Target.host()
        here = (each for each in wanted.alternatives if each.is_host_loadable)
        shown = next(here, wanted.alternatives[0])
        record = None if records is None else records.record(func, shown)
        scheduled = schedule_kernel(func.func, shown, record and record.choices)
        flops, nbytes = cost.flops(func.func), cost.bytes_moved(func.func)
        found.append(
            ExplainedKernel(
                name,
                tuple(info.name for info in same),
                sum(calls.get(each, 0) for each in names),
                "" if flops is None else str(flops),
                "" if nbytes is None else str(nbytes),
                func.listing(name),
                PrimFunc(scheduled.parallel).listing(name),
                object_size(exe, same[0]),
                digest(exe, same[0]),
                tuple(times),
                grid_of(exe, same[0], func),
            )
        )
    return sorted(found, key=lambda kernel: -kernel.seconds)


def _base(name: str) -> str:
    """The kernel of a time that is of one alternative: `matmul (x86-64-v4)` → `matmul`."""
    return name.rpartition(" (")[0]
