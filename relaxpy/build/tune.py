"""Finds the fastest schedule of each kernel by measurement (paper §4.6).

    records = tune(mod, [{"n": 1}, {"n": 128}])
    exe = relaxpy.build(mod, tuning=records)

The usual passes lower the module to tensor programs. For each of them, at the shapes of its calls for the given values
of symbols, the tuner tries settings of its schedule rule's knobs, and other rules that apply: all combinations if there
are few, else one knob after another, starting from the best setting so far. It measures a call in the virtual machine.
A setting is recorded only if its results agree with those of the rule's default, and it is faster when both are
measured alternately. Inputs are random, on the assumption that a program's time does not depend on its data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.backend.knobs import Choices
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule_tensor_programs import ScheduleTensorPrograms
from relaxpy.build.build import link
from relaxpy.build.codegen import generate
from relaxpy.build.pipeline import default_pipeline
from relaxpy.build.tuning import Record, TuningRecords, record_key
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir.accessors import expect, known_dims, known_dtype
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Expr, Function, GlobalVar, ShapeExpr, Tuple, Var, VarBinding, seq
from relaxpy.ir.module import IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor, used_symbols
from relaxpy.narrow import is_tuple
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.runtime.inspect.candidate_bench import agree
from relaxpy.runtime.tensor import from_numpy
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform import LowerCallTIR, LowerShapes
from relaxpy.transform.base import Instrument, Pass, PassContext, Sequential

TRIALS = 32
"""The most settings to try for a kernel."""
SECONDS = 0.05
"""Seconds to measure one setting at one size."""
WORTH = 0.98
"""A setting is kept if its time is at most this fraction of the default's."""
TURNS = 5
"""Rounds in which the best setting and the default are measured alternately."""


@dataclass(frozen=True)
class CallSite:
    """A call of a tensor program, with the values of its symbols in the module."""

    sizes: Mapping[str, int]
    """The values of the program's symbols."""
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    scalars: tuple[int, ...]


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a kernel."""

    kernel: str
    rule: str
    """The rule that applies without tuning records."""
    settings: int
    """The number of settings tried, including the default."""
    record: Record
    key: str

    @property
    def speedup(self) -> float:
        """The speedup of the recorded setting over the default; 1 if the default is best."""
        before, after = self.record.microseconds
        return before / after if after else 1.0


@dataclass
class Tuner:
    """Finds the best settings for the kernels of a module."""

    mod: IRModule
    sizes: Sequence[Mapping[str, int]]
    """The values of the symbols, by name: at least one set."""
    target: Target = field(default_factory=Target.host)
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    pipeline: Pass | None = None
    trials: int = TRIALS
    seconds: float = SECONDS
    skipped: list[str] = field(default_factory=list[str])
    """Kernels that cannot be measured, because their sizes are unknown."""

    def __post_init__(self) -> None:
        check_well_formed(self.mod)
        alternatives = self.target.alternatives
        here = (each for each in alternatives if each.is_host_loadable)
        self.measured = next(here, alternatives[0])
        """The alternative of the target that runs on this machine."""
        self.tensor_level = tensor_level(self.mod, self.target, self.params, self.pipeline)
        self.sites = call_sites(self.tensor_level, self.sizes or [{}])
        self.programs: dict[str, PrimFunc] = {}
        for name, func in self.tensor_level.prim_funcs.items():
            if isinstance(func, PrimFunc) and not any(
                func.structural_equal(other) for other in self.programs.values()
            ):
                self.programs[name] = func
                if name not in self.sites:
                    self.skipped.append(name)

    def kernels(self) -> list[str]:
        """The kernels that can be measured; equal kernels are listed once."""
        return [name for name in self.programs if name in self.sites]

    def tune(self, name: str, progress: Callable[[str], None] = lambda _: None) -> Tuned:
        """Tunes one of `kernels()`. `progress` is called with each setting."""
        program = self.programs[name]
        trial = Trial(name, program, self.sites[name], self.measured, self.seconds)
        rules = backend_of(self.measured).knobs(program.func, self.measured)
        own = next(iter(rules), "author")
        default = trial.measure({})
        tried: dict[float, Choices] = {default: {}}

        def best() -> Choices:
            return tried[min(tried)]

        for choices in self._settings(rules, own, best):
            if trial.count >= self.trials:
                break
            progress(", ".join(f"{k}={v}" for k, v in choices.items()))
            tried.setdefault(trial.measure(choices), choices)
        none: Choices = {}
        chosen, before, after = best(), default, default
        if chosen:
            before, after = trial.compare(chosen)
            if after > WORTH * before:
                chosen, after = none, before
        sizes = tuple({**site.sizes} for site in self.sites[name])
        record = Record(name, chosen, (round(before, 3), round(after, 3)), sizes)
        return Tuned(name, own, trial.count, record, record_key(program, self.measured))

    def _settings(
        self,
        rules: Mapping[str, Mapping[str, Sequence[Any]]],
        own: str,
        best: Callable[[], Choices],
    ) -> Iterator[Choices]:
        """The settings to try, in order, without the default."""
        for rule, knobs in rules.items():
            base: Choices = {} if rule == own else {"rule": rule}
            if base:
                yield base
            combinations = 1
            for values in knobs.values():
                combinations *= len(values)
            if combinations <= self.trials:
                for values in itertools.product(*knobs.values()):
                    choices = _changed(knobs, values)
                    if choices:
                        yield {**base, **choices}
                continue
            # Change one knob after another, starting from the best setting so far: that of this rule, or its default.
            for name, values in knobs.items():
                at = best() if best().get("rule") == base.get("rule") else base
                for value in values[1:]:
                    yield {**at, name: value}


def tune(
    mod: IRModule,
    sizes: Sequence[Mapping[str, int]],
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
    *,
    pipeline: Pass | None = None,
    trials: int = TRIALS,
) -> TuningRecords:
    """Tunes all kernels of `mod` at the given values of its symbols, one dict for each size, with equal weight. Only
    for this machine, since kernels are run.

    Raises: RelaxError for an invalid program; UsageError for an unknown symbol.
    """
    tuner = Tuner(mod, sizes, Target.parse(target), params or {}, pipeline, trials)
    records = TuningRecords()
    for name in tuner.kernels():
        tuned = tuner.tune(name)
        records = records.with_record(tuned.key, tuned.record)
    return records


def tensor_level(
    mod: IRModule, target: Target, params: Mapping[str, Any], pipeline: Pass | None = None
) -> IRModule:
    """The module with calls of tensor programs, before memory becomes explicit."""
    found = [mod]

    def keep(_: int, step: Pass, before: IRModule, _after: IRModule) -> None:
        if isinstance(step, LowerCallTIR):
            found.append(before)

    instruments: tuple[Instrument, ...] = (keep,)
    with deep_recursion():
        (pipeline or default_pipeline(target)).run(
            mod, PassContext(target, dict(params), instruments)
        )
    return found[-1]


def call_sites(mod: IRModule, sizes: Iterable[Mapping[str, int]]) -> dict[str, list[CallSite]]:
    """The distinct calls of each tensor program whose shapes the sizes determine. Raises UsageError for an unknown
    symbol."""
    sizes = list(sizes)
    known = {
        symbol.name
        for function in mod.graph_functions.values()
        for symbol in used_symbols(function)
    }
    for name in dict.fromkeys(name for size in sizes for name in size):
        if name not in known:
            raise UsageError(
                "arguments",
                f"the program has no symbol {name!r}",
                help=f"it has {', '.join(sorted(known)) or 'none'}",
            )
    found: dict[str, list[CallSite]] = {}
    for function in mod.graph_functions.values():
        calls = _Calls()
        with deep_recursion():
            calls.visit(function.body)
        symbols = used_symbols(function)
        for size in sizes:
            values = {symbol: size[symbol.name] for symbol in symbols if symbol.name in size}
            for call in calls.found:
                site = _site(call, mod, values, size)
                callee = expect(GlobalVar, call.args[0])
                sites = found.setdefault(callee.name, [])
                if site is not None and site not in sites:
                    sites.append(site)
    return {name: sites for name, sites in found.items() if sites}


class _Calls(Visitor):
    def __init__(self) -> None:
        self.found: list[Call] = []

    def visit_Call(self, node: Call) -> None:
        # A program that updates its arguments would change its own input between measurements, so it is left out.
        if type(node.op) is CallTIR:
            self.found.append(node)
        self.generic(node)


def _site(
    call: Call, mod: IRModule, values: Mapping[SymVar, int], size: Mapping[str, int]
) -> CallSite | None:
    """A call at these values; None if they do not determine its shapes."""
    args = expect(Tuple, call.args[1])
    inputs = [_fixed(deduce(arg, mod), values) for arg in args.fields]
    outputs = [_fixed(annotation, values) for annotation in call.ty_args]
    scalars: list[int | None] = []
    if len(call.args) > 2 and isinstance(call.args[2], ShapeExpr):
        scalars = [_evaluated(dim, values) for dim in call.args[2].dims]
    if any(part is None for part in (*inputs, *outputs, *scalars)):
        return None
    return CallSite(
        {name: value for name, value in size.items()},
        tuple(part for part in inputs if part is not None),
        tuple(part for part in outputs if part is not None),
        tuple(part for part in scalars if part is not None),
    )


def _fixed(annotation: Annotation, values: Mapping[SymVar, int]) -> TensorType | None:
    if not isinstance(annotation, TensorType) or annotation.dims is None:
        return None
    dims = [_evaluated(dim, values) for dim in annotation.dims]
    if any(dim is None for dim in dims):
        return None
    return TensorType([dim for dim in dims if dim is not None], annotation.dtype)


def _evaluated(dim: Dim, values: Mapping[SymVar, int]) -> int | None:
    if any(var not in values for var in dim.vars):
        return None
    try:
        return dim.evaluate(values)
    except ArithmeticError:
        return None


class Trial:
    """Measures settings of one kernel at its call sites."""

    def __init__(
        self,
        name: str,
        program: PrimFunc,
        sites: Sequence[CallSite],
        target: Target,
        seconds: float,
    ) -> None:
        self.key = record_key(program, target)
        self.name, self.target, self.seconds = name, target, seconds
        self.mod = _module(name, program, sites, target)
        self.args = [_random_inputs(site) for site in sites]
        self.count = 0
        self._machines: dict[str, Any] = {}
        self._expected: list[list[np.ndarray]] = []

    def measure(self, choices: Choices) -> float:
        """Microseconds per call, summed over the sizes. Infinite if a setting does not compile, or its results differ
        from those of the first setting."""
        self.count += 1
        try:
            calls = self._calls(choices)
        except RelaxError:
            if not choices:
                raise
            return float("inf")
        results = [_arrays(call(*args)) for call, args in zip(calls, self.args, strict=True)]
        if not self._expected:
            self._expected = results
        elif not all(map(agree, results, self._expected)):
            return float("inf")
        return sum(map(self._time, calls, self.args))

    def compare(self, choices: Choices) -> tuple[float, float]:
        """Microseconds with the default and with these settings, measured alternately."""
        both = [self._calls({}), self._calls(choices)]
        turns: list[list[float]] = [[], []]
        for _ in range(TURNS):
            for calls, seen in zip(both, turns, strict=True):
                seen.append(sum(map(self._time, calls, self.args)))
        own, other = (float(np.median(seen)) for seen in turns)
        return own, other

    def _calls(self, choices: Choices) -> list[Callable[..., Any]]:
        """The compiled functions, one for each size."""
        text = repr(sorted(choices.items()))
        if text not in self._machines:
            records = TuningRecords({self.key: Record(self.name, choices)})
            exe = link(
                self.mod, generate(self.mod, self.target), self.target, tuning=records, jobs=1
            )
            self._machines[text] = VirtualMachine(exe)
        machine = self._machines[text]
        return [machine[f"at{i}"] for i in range(len(self.args))]

    def _time(self, call: Callable[..., Any], args: Sequence[Any]) -> float:
        """The median time of a call in microseconds, from at least three calls, and as many as fit the time."""
        call(*args)
        times: list[float] = []
        end = perf_counter() + self.seconds
        while len(times) < 3 or perf_counter() < end:
            start = perf_counter()
            call(*args)
            times.append(perf_counter() - start)
        return float(np.median(times)) * 1e6


def _module(name: str, program: PrimFunc, sites: Sequence[CallSite], target: Target) -> IRModule:
    """A lowered module with a function for each call site: `at0`, `at1`, …"""
    functions: dict[str, Any] = {name: program}
    for i, site in enumerate(sites):
        params = [Var(f"x{k}", annotation) for k, annotation in enumerate(site.inputs)]
        call = call_of_site(name, site, params)
        out = Var("out", deduce(call))
        body = seq([VarBinding(out, call)], out)
        functions[f"at{i}"] = Function(
            tuple(params), body, out.annotation, attrs={"global_symbol": f"at{i}"}
        )
    steps = (LowerCallTIR(), ScheduleTensorPrograms(), LowerShapes())
    return Sequential(steps)(IRModule(functions), PassContext(target))


def call_of_site(name: str, site: CallSite, inputs: Sequence[Var]) -> Call:
    """The call of a tensor program at a call site, with these inputs."""
    args: list[Expr] = [GlobalVar(name), Tuple(tuple(inputs))]
    if site.scalars:
        args.append(ShapeExpr([Dim.of(value) for value in site.scalars]))
    return Call(CallTIR(), tuple(args), site.outputs)


def _random_inputs(site: CallSite) -> list[Any]:
    """Random inputs: floats in [-1, 1), integers 0 and 1, which are valid as most indices."""
    random = np.random.default_rng(0)
    made: list[Any] = []
    for annotation in site.inputs:
        shape = [dim.value or 0 for dim in known_dims(annotation)]
        kind = known_dtype(annotation)
        dtype = kind.numpy
        if kind.is_float:
            array = random.uniform(-1, 1, shape).astype(dtype)
        else:
            array = random.integers(0, 2, shape).astype(dtype)
        made.append(from_numpy(array))
    return made


def _arrays(value: Any) -> list[np.ndarray]:
    values = value if is_tuple(value) else (value,)
    return [np.array(item.numpy()) for item in values]


def _changed(knobs: Mapping[str, Sequence[Any]], values: Sequence[Any]) -> dict[str, Any]:
    """The knobs that differ from their defaults."""
    return {
        name: value
        for (name, known), value in zip(knobs.items(), values, strict=True)
        if value != known[0]
    }
