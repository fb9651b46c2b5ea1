"""Differential testing of one program: it is verified, printed and parsed, interpreted after each pass (with each
result verified, printed and parsed too), and run kernel by kernel, in the virtual machine from two threads, and in a
fresh process. All results must agree with the interpreter's on the source program.

    failures = check([Call(mod, "main", args)])
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.build.build import link
from relaxpy.build.codegen import generate
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import PassError, RelaxError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.script.parser import parse
from relaxpy.target import Target
from relaxpy.testing.agreement import disagreement, perturb_value, perturbation
from relaxpy.testing.interpret import interpret, run_program
from relaxpy.testing.kernels import Kernels
from relaxpy.testing.replay import Recorded, plain, recordable, same
from relaxpy.testing.values import Value
from relaxpy.transform.base import Pass, PassContext, Sequential
from relaxpy.transform.phases import Pipeline

RUNS = 6
"""The number of perturbed interpreter runs if a result differs."""
STAGES = ("generate", "verify", "print", "interpret", "build", "pass", "kernel", "vm", "file")
"""The stages of testing a program, in order."""


@dataclass(frozen=True)
class Failure:
    """A disagreement between two ways to run a program."""

    stage: str
    """One of STAGES."""
    kind: str
    """The property to preserve while the program is reduced: the error's class and code, or how the results differ."""
    message: str
    call: Call | None = None
    """The call that shows the failure; None if the program alone shows it."""

    def __str__(self) -> str:
        return f"{self.stage}: {self.message}"


@dataclass(eq=False)
class Call:
    """A call of a function, and the interpreter's result for it."""

    mod: IRModule
    name: str
    args: Sequence[Value]
    """Copied before every run, since a function may update its arguments."""
    label: str = ""
    """A description of its origin."""
    _expected: list[Any] = field(default_factory=list[Any])
    _others: list[Any] = field(default_factory=list[Any])

    def run(self, mod: IRModule | None = None, **hooks: Any) -> Any:
        """The interpreter's outcome: a value, or the error that it raises."""
        try:
            return interpret(mod or self.mod, self.name, *copy.deepcopy(self.args), **hooks)
        except PassError:
            raise
        except RelaxError as error:
            return error

    @property
    def expected(self) -> Any:
        """The outcome on the source module."""
        if not self._expected:
            self._expected.append(self.run())
        return self._expected[0]

    def failures(self) -> Sequence[RelaxError]:
        """The errors of the source module, were its bindings evaluated in any order that their operands allow."""
        found: list[RelaxError] = []
        try:
            interpret(self.mod, self.name, *copy.deepcopy(self.args), failures=found)
        except (RelaxError, KeyError):
            return found
        return found

    def sizes(self) -> dict[SymVar, int]:
        """The values in this call of symbolic variables that are a dimension of a parameter by themselves."""
        function = expect(Function, self.mod[self.name])
        found: dict[SymVar, int] = {}
        for param, arg in zip(function.params, self.args, strict=True):
            if isinstance(param.annotation, TensorType) and isinstance(arg, np.ndarray):
                for dim, size in zip(param.annotation.dims or (), arg.shape, strict=True):
                    if dim.symbol is not None:
                        found[dim.symbol] = size
        return found

    def others(self) -> Sequence[Any]:
        """Outcomes with all floats perturbed, to estimate the spread of correct results."""
        if not self._others:
            for seed in range(RUNS):
                perturb = perturbation(seed)
                args = [perturb_value(arg, perturb) for arg in self.args]
                moved = Call(self.mod, self.name, args)
                self._others.append(moved.run(perturb=perturb))
        return self._others

    def disagreement(self, got: Any, of: IRModule | None = None) -> str:
        """How an outcome, of the module `of` where a pass made one, differs from the expected one; "" if it does
        not."""
        private = _private(self.mod)
        made = [] if of is None else [name for name in _private(of) if name not in self.mod]
        return disagreement(
            got, self.expected, 1e-6, 1e-5, self.others, private, made, failures=self.failures
        )


def _private(mod: IRModule) -> list[str]:
    """The graph functions that only the module itself calls."""
    return [name for name, f in mod.graph_functions.items() if "global_symbol" not in f.attrs]


@dataclass(frozen=True)
class Ways:
    """The ways to build and run a program."""

    target: Target = field(default_factory=Target.host)
    pipeline: Pipeline | Sequential = field(default_factory=default_pipeline)
    print_passes: bool = True
    """Whether the module is printed and parsed after each pass."""
    fresh_process: bool = True
    """Whether the program is also run from a file."""


def check(calls: Sequence[Call], ways: Ways | None = None) -> list[Failure]:
    """All failures of the first stage that fails. The calls are of functions of one module."""
    trial = _Trial(calls, ways or Ways())
    for stage in (trial.read, trial.interpret, trial.build, trial.lower, trial.run, trial.replay):
        stage()
        if trial.found:
            break
    return trial.found


class _Trial:
    """The stages of `check`, with their intermediate results."""

    executable: Executable
    results: list[Any]
    """The outcomes of the calls in the virtual machine."""

    def __init__(self, calls: Sequence[Call], ways: Ways) -> None:
        self.calls = calls
        self.mod = calls[0].mod
        self.ways = ways
        self.found: list[Failure] = []
        self.steps: list[tuple[Pass, IRModule]] = []
        """The passes that changed the module, each with its result."""

    def read(self) -> None:
        """Verifies the program, prints and parses it."""
        with reported("verify", self.found):
            check_well_formed(self.mod)
        with reported("print", self.found):
            assert_structural_equal(self.mod, parse(self.mod.script()))

    def interpret(self) -> None:
        """Interprets the source program."""
        for call in self.calls:
            with reported("interpret", self.found, call):
                expected = call.expected
                if isinstance(expected, RelaxError) and ": binding " in expected.message:
                    self.found.append(Failure("interpret", "deduction", expected.message, call))

    def build(self) -> None:
        """Builds like `relaxpy.build`, and verifies and keeps the module after each pass."""

        def keep(_: int, step: Pass, before: IRModule, after: IRModule) -> None:
            if after is not before:
                check_well_formed(after)
                self.steps.append((step, after))

        target = self.ways.target
        with reported("build", self.found), deep_recursion():
            lowered = self.ways.pipeline.run(self.mod, PassContext(target, {}, (keep,)))
            self.executable = link(lowered, generate(lowered, target), target)

    def lower(self) -> None:
        """Interprets, prints and parses the module after each pass. Compares the kernels with the tensor programs of
        the first module that has all of them."""
        observer = KernelObserver(Kernels.of(self.executable))
        names = {kernel.name for kernel in self.executable.kernels}
        observed = next((mod for _, mod in self.steps if names <= mod.prim_funcs.keys()), None)
        for step, mod in self.steps:
            if self.ways.print_passes:
                with reported("print", self.found, where=f"after {step.name}: "):
                    assert_structural_equal(mod, parse(mod.script()))
            observe = observer if mod is observed else None
            for call in self.calls:
                with reported("pass", self.found, call, f"after {step.name}: "):
                    problem = call.disagreement(call.run(mod, observe=observe))
                    if problem:
                        text = f"after {step.name}: {problem}"
                        self.found.append(Failure("pass", step.name, text, call))
                    if observe is not None:
                        self.found += observe.taken(call)
            if self.found:
                return

    def run(self) -> None:
        """Runs the executable in the virtual machine."""
        with reported("vm", self.found):
            machine = VirtualMachine(self.executable)
            self.results = _run_machine(machine, self.calls, self.found)
            checking = VirtualMachine(self.executable, check_memory=True)
            _run_machine(checking, self.calls, self.found)

    def replay(self) -> None:
        """Runs the executable from a file."""
        if self.ways.fresh_process:
            with reported("file", self.found):
                self.found += _replay(self.executable, self.calls, self.results)


@contextmanager
def reported(
    stage: str, found: list[Failure], call: Call | None = None, where: str = ""
) -> Iterator[None]:
    """Converts an exception raised inside to a failure, with `where` before its message."""
    try:
        yield
    except Exception as error:
        code = f"[{error.code}]" if isinstance(error, RelaxError) else ""
        text = str(error) if isinstance(error, (RelaxError, AssertionError)) else _trace(error)
        found.append(Failure(stage, f"{type(error).__name__}{code}", where + text, call))


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error)[-4:])


class KernelObserver:
    """Runs the compiled kernel together with each tensor program that the interpreter runs, and compares."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.problems: list[tuple[str, str]] = []
        """Kernels with a wrong result, and how it differs."""

    def __call__(
        self, name: str, program: TensorProgram, values: Sequence[Value]
    ) -> Callable[[], None] | None:
        if name not in self.kernels:
            return None
        copies = [np.array(v, order="C") if isinstance(v, np.ndarray) else v for v in values]

        def others() -> list[tuple[Value, ...]]:
            found = []
            for seed in range(RUNS):
                moved = [perturb_value(v, perturbation(seed)) for v in copies]
                run_program(program, moved)
                found.append(_arrays(moved))
            return found

        def compare() -> None:
            mine = [np.array(v, order="C") if isinstance(v, np.ndarray) else v for v in copies]
            scalars = [v for v in mine if not isinstance(v, np.ndarray)]
            self.kernels.run(name, [], _arrays(mine), scalars)
            problem = disagreement(
                _arrays(mine), _arrays(values), atol=1e-6, rtol=1e-5, others=others
            )
            if problem:
                sizes = [v.shape if isinstance(v, np.ndarray) else v for v in values]
                text = f"the kernel {name} of {sizes}: {problem}\n{program.script()}"
                self.problems.append((name, text))

        return compare

    def taken(self, call: Call) -> list[Failure]:
        """Returns the failures since the last call of this method."""
        found = [Failure("kernel", "value", problem, call) for _, problem in self.problems[:1]]
        self.problems.clear()
        return found


def _arrays(values: Sequence[Value]) -> tuple[np.ndarray, ...]:
    return tuple(v for v in values if isinstance(v, np.ndarray))


def _run_machine(machine: VirtualMachine, calls: Sequence[Call], found: list[Failure]) -> list[Any]:
    """Runs all calls in two threads, in opposite orders, and returns the outcomes of the first. Results must still be
    unchanged after all calls."""

    def outcomes(order: int) -> list[Any]:
        got, then = [], []
        for call in list(calls)[::order]:
            got.append(outcome_of(machine, call))
            then.append(copy.deepcopy(recordable(got[-1])))
        for call, kept, before in zip(list(calls)[::order], got, then, strict=True):
            if not same(recordable(kept), before):
                message = "a result changed while other calls ran"
                found.append(Failure("vm", "kept", message, call))
        return got[::order]

    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(outcomes, (1, -1)))
    for results in both:
        for call, got in zip(calls, results, strict=True):
            problem = call.disagreement(got)
            if problem and not any(f.call is call for f in found):
                kind = "value" if not isinstance(got, Exception) else type(got).__name__
                found.append(Failure("vm", kind, problem, call))
    return both[0]


def outcome_of(machine: VirtualMachine, call: Call) -> Any:
    """The outcome of a call in the virtual machine: plain values, or the error that it raises."""
    try:
        return plain(machine[call.name](*copy.deepcopy(call.args)))
    except RelaxError as error:
        return error


def _replay(executable: Executable, calls: Sequence[Call], results: Sequence[Any]) -> list[Failure]:
    """Runs the same calls of the saved executable in a fresh process and compares the results bit by bit."""
    recorded = [
        Recorded(call.name, tuple(call.args), recordable(got))
        for call, got in zip(calls, results, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        file, jobs = Path(folder) / "program.rxe", Path(folder) / "calls"
        executable.save(file)
        jobs.write_bytes(pickle.dumps(recorded))
        done = subprocess.run(
            [sys.executable, "-m", "relaxpy.testing.replay", str(file), str(jobs)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode == 0:
        return []
    if done.returncode != 1:
        message = f"the process ended with {done.returncode}:\n{done.stderr[-2000:]}"
        return [Failure("file", "crash", message)]
    found = []
    for line in done.stdout.splitlines():
        index, _, problem = line.partition(" ")
        if index.isdigit():
            found.append(Failure("file", "value", problem, calls[int(index)]))
    return found or [Failure("file", "crash", done.stderr[-2000:])]
