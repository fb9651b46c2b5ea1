"""Finds the pass that makes a program's results wrong.

    finding = bisect(mod, "main", [x, w], pipeline=mine)
    if finding is not None:
        print(finding)

Every pass must preserve the results of its module. So the module after each pass is kept, and a binary search finds the
first one whose results differ from the interpreter's results for the source program: four or five runs of the
interpreter for the default pipeline. Then variables of the same name are compared, in the order of computation, between
this module and the one before it. The first that differs locates the bug. If all passes are right, each kernel is
compared with its tensor program, and then the virtual machine is tested.

`relaxpy bisect` is the command-line interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.build.build import link
from relaxpy.build.codegen import generate
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import PassError, RelaxError, RuntimeCheckError, UsageError
from relaxpy.ir.expr import Binding, Call, GlobalVar, MatchCast, Var
from relaxpy.ir.module import IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.op.memory import AllocStorage, AllocTensor, CallDPS
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.script.printer import print_expr
from relaxpy.target import Target
from relaxpy.testing.agreement import disagreement
from relaxpy.testing.differential import Call as Run
from relaxpy.testing.differential import KernelObserver, outcome_of
from relaxpy.testing.interpret import interpret
from relaxpy.testing.kernels import Kernels
from relaxpy.testing.values import Value
from relaxpy.transform.base import Pass, PassContext, Sequential

KERNELS, MACHINE = "kernels", "virtual machine"
"""The steps after the passes."""


@dataclass(frozen=True)
class Step:
    """A stage of a module in the compiler."""

    name: str
    """The pass that produced it; "" for the source program."""
    number: int
    """The position of the pass in the pipeline, from 1; 0 for the source program."""
    mod: IRModule


@dataclass(frozen=True)
class Finding:
    """The first step with a wrong result."""

    step: Step
    """The step with its module. For a pass that failed, the module before it."""
    before: Step
    """The last step with a correct result."""
    count: int
    """The number of passes in the pipeline."""
    problem: str
    """How the result differs, or the error."""
    function: str = ""
    """The function or kernel with the wrong result; "" if unknown."""
    binding: Binding | None = None
    """The first variable whose value changed, with its binding after the step."""
    was: Binding | None = None
    """The binding of that variable before the step."""
    difference: str = ""
    """How its value differs."""

    @property
    def program(self) -> str:
        """The tensor program that computes the variable; "" if there is none."""
        value = None if self.binding is None else self.binding.value
        callee = value.args[0] if isinstance(value, Call) and value.args else None
        return callee.name if isinstance(callee, GlobalVar) else ""

    def __str__(self) -> str:
        number = f" ({self.step.number} of {self.count})" if self.step.number else ""
        lines = [f"wrong after {self.step.name or 'the program as it was written'}{number}"]
        if self.before.name:
            lines[0] += f"; right after {self.before.name}"
        lines.append(f"  {self.problem}")
        if self.binding is None:
            if self.function:
                lines.append(f"  in {self.function}")
            return "\n".join(lines)
        place = f" ({self.binding.span})" if self.binding.span is not None else ""
        lines.append(f"  first in {self.function}: {self.binding.var.name}{place}")
        lines.append(f"    {self.difference}")
        if self.was is not None:
            lines.append(f"    before: {_line(self.was)}")
        lines.append(f"    after:  {_line(self.binding)}")
        return "\n".join(lines)


def bisect(
    mod: IRModule,
    name: str,
    args: Sequence[Value],
    *,
    pipeline: Pass | None = None,
    target: Target | None = None,
    params: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Finding | None:
    """The first step of building `mod` after which function `name` returns another result for `args` than the
    interpreter for the source program; None if there is none.

    With `params` bound, `args` are the remaining arguments. `progress` is called with each step. Raises RelaxError for
    an invalid program, or arguments that do not fit it.
    """
    check_well_formed(mod)
    if "global_symbol" not in mod.graph_function(name).attrs:
        raise UsageError(
            "unknown-function",
            f"{name} is private: passes may inline it, change its parameters, or remove it",
            help="use a function that calls it, or make it public",
        )
    target = target or Target.host()
    steps, crash = _steps(mod, pipeline or default_pipeline(target), target, params)
    count = steps[-1].number if crash is None else crash.count
    # With bound parameters, the remaining arguments fit the module after the binding.
    first = next((i for i, s in enumerate(steps) if s.name == "bind-params"), 0) if params else 0
    steps = steps[first:]
    run = Run(steps[0].mod, name, args)
    progress(f"interpreting {name}")
    expected = run.expected
    does_not_fit = isinstance(expected, RuntimeCheckError) and ": parameter " in expected.message
    if isinstance(expected, UsageError) or does_not_fit:
        raise expected

    def wrong(step: Step) -> str:
        progress(f"after {step.name} ({step.number} of {count})")
        return _wrong(run, step.mod)

    right, bad, problem = 0, len(steps), ""
    if found := wrong(steps[-1]):
        bad, problem = len(steps) - 1, found
        while bad - right > 1:
            middle = (right + bad) // 2
            if found := wrong(steps[middle]):
                bad, problem = middle, found
            else:
                right = middle
        return _located(run, steps[bad - 1], steps[bad], count, problem)
    if crash is not None:
        return crash
    return _behind_the_passes(run, steps[-1], target, count, progress)


def _steps(
    mod: IRModule, pipeline: Pass, target: Target, params: Mapping[str, Any] | None
) -> tuple[list[Step], Finding | None]:
    """The source module and the module after each pass that changed it; and a finding if a pass failed."""
    passes = getattr(pipeline, "passes", (pipeline,))
    steps = [Step("", 0, mod)]
    seen = [0]

    def keep(number: int, step: Pass, before: IRModule, after: IRModule) -> None:
        seen[0] = number + 1
        if after is not before:
            steps.append(Step(step.name, number + 1, after))

    try:
        with deep_recursion():
            context = PassContext(target, dict(params or {}), (keep,))
            Sequential(tuple(passes)).run(mod, context)
    except RelaxError as error:
        if seen[0] == 0 and not isinstance(error, PassError):
            raise  # the program's own mistake, or a parameter that does not fit
        name = passes[seen[0]].name
        failed = Step(name, seen[0] + 1, steps[-1].mod)
        return steps, Finding(failed, steps[-1], len(passes), f"the pass fails: {error}")
    return steps, None


def _wrong(run: Run, mod: IRModule) -> str:
    """How the results of a module differ from those of the source program; "" if they agree."""
    try:
        check_well_formed(mod)
        return run.disagreement(run.run(mod))
    except RelaxError as error:
        return f"the module is not well formed: {error}"


def _located(run: Run, before: Step, after: Step, count: int, problem: str) -> Finding:
    """Adds to the finding the first variable whose value differs from the module before."""
    old, new = Recorder(), Recorder()
    for recorder, step in ((old, before), (new, after)):
        try:
            interpret(step.mod, run.name, *_copies(run.args), trace=recorder)
        except Exception:  # a module that is not right may raise anything
            continue  # compare the values computed before the error
    for key, (binding, value) in new.seen.items():
        if key not in old.seen:
            continue
        was, wanted = old.seen[key]
        difference = disagreement(value, wanted, rtol=1e-3, atol=1e-5)
        if difference:
            return Finding(after, before, count, problem, key[0], binding, was, difference)
    changed = [n for n, f in after.mod.functions.items() if f is not before.mod.functions.get(n)]
    function = changed[0] if len(changed) == 1 else ""
    return Finding(after, before, count, problem, function)


@dataclass
class Recorder:
    """Records the last value of each variable."""

    seen: dict[tuple[str, str], tuple[Binding, Value]] = field(
        default_factory=dict[tuple[str, str], tuple[Binding, Value]]
    )
    """(function, variable) → its binding and value. For memory that a tensor program writes, the binding is its
    call."""

    def __call__(self, function: str, binding: Binding, values: Mapping[Var, Value]) -> None:
        value = binding.value
        if isinstance(value, Call) and isinstance(value.op, (AllocTensor, AllocStorage)):
            return
        if isinstance(value, Call) and isinstance(value.op, CallDPS):
            for arg in value.args[1:]:
                if isinstance(arg, Var) and arg in values:
                    self.keep(function, arg, binding, values[arg])
            return
        self.keep(function, binding.var, binding, values[binding.var])

    def keep(self, function: str, var: Var, binding: Binding, value: Value) -> None:
        key = (function, var.name)
        old = self.seen.get(key)
        if old is not None and old[0] is not binding and _same(old[1], value):
            return  # an argument that the call did not write
        if isinstance(value, np.ndarray):
            value = value.copy()
        self.seen[key] = (binding, value)


def _same(a: Value, b: Value) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return False
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _behind_the_passes(
    run: Run, last: Step, target: Target, count: int, progress: Callable[[str], None]
) -> Finding | None:
    """Compiles the module after the passes, and tests each kernel against its tensor program, then the virtual
    machine."""
    progress("compiling")
    kernels = Step(KERNELS, 0, last.mod)
    try:
        with deep_recursion():
            executable = link(last.mod, generate(last.mod, target), target)
    except RelaxError as error:
        return Finding(kernels, last, count, f"the kernels cannot be compiled: {error}")
    progress("the kernels, one by one")
    observer = KernelObserver(Kernels.of(executable))
    run.run(last.mod, observe=observer)
    if observer.problems:
        name, problem = observer.problems[0]
        return Finding(kernels, last, count, problem.partition("\n")[0], name)
    progress("the virtual machine")
    problem = run.disagreement(outcome_of(VirtualMachine(executable), run))
    return Finding(Step(MACHINE, 0, last.mod), last, count, problem) if problem else None


def _copies(args: Sequence[Value]) -> list[Value]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in args]


def _line(binding: Binding) -> str:
    """A binding on one line, with long constants and shapes truncated."""
    cast = "match_cast " if isinstance(binding, MatchCast) else ""
    text = f"{binding.var.name} = {cast}{print_expr(binding.value)}"
    return text if len(text) <= 110 else text[:107] + "…"
