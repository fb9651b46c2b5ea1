"""Schedules: turn a correct tensor program into a fast one by analysing its loops (paper §4.6).

Rules are tried in order, and the first that recognises the program schedules it; a program that no rule recognises
still compiles. Every rule works for symbolic dimensions, 0 and 1 included: one kernel serves all sizes.

The memory that a kernel needs beside its parameters is known before its loops are written (`launches_by_rules`), so
that the graph can allocate it. The loops are written when the kernel is compiled (`schedule_kernel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from relaxpy.analysis.index_checks import (
    behind,
    is_checked,
    with_checks_first,
    with_checks_inside,
)
from relaxpy.backend.arrangement import Arrangement, Rule
from relaxpy.backend.knobs import Choice, Choices, setting
from relaxpy.backend.registry import backend_of
from relaxpy.ir.module import CHECK_INDICES
from relaxpy.target import Target
from relaxpy.tir.lowering.workspace import Launches, handed_on, lifted, not_given, with_given
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import Buffer
from relaxpy.tir.schedule import (
    FINISHED,
    asserts,
    is_scheduled,
    serial_twin,
    with_initial_values,
)
from relaxpy.tir.tvm import tirx


@dataclass(frozen=True, slots=True)
class ScheduledKernel:
    """A scheduled program in two variants, between which the virtual machine chooses at every call."""

    parallel: tirx.PrimFunc
    """The variant that uses the thread pool; the same object as `serial` if nothing is parallel."""
    serial: tirx.PrimFunc
    """The variant on the calling thread, for work too small for a parallel launch (which costs 1 µs). Bit-identical
    results."""
    rule: str
    """Name of the rule that applied: `author`, `matmul`, `elementwise`, …, `fallback`."""


def schedule_kernel(
    func: tirx.PrimFunc, target: Target, choices: Choices | None = None
) -> ScheduledKernel:
    """Schedule `func` for `target` with its backend; never fails.

    `choices` overrides settings of the rules' knobs (`relaxpy.backend.knobs`), and `"rule"` names the rule to use, if
    it applies. A function that its author scheduled (attribute `tirx.is_scheduled`, or loops that are not plain) stays
    unchanged.
    """
    return backend_of(target).schedule(func, target, choices or {})


Rules: TypeAlias = tuple[Rule, ...]
"""Rules in the order in which they are tried. The last one accepts any program."""


def schedule_by_rules(
    func: tirx.PrimFunc, target: Target, choices: Choices, rules: Rules
) -> ScheduledKernel:
    """Schedule `func` by the first of these rules that applies, or by the chosen one."""
    if is_checked(func):
        return _checked(func, target, choices, rules)
    if asserts(func):
        # TVM's thread pool may lose an error: a worker counts as done before its error is recorded.
        alone = serial_twin(with_initial_values(func))
        return ScheduledKernel(alone, alone, "asserting")
    if is_scheduled(func):
        func = with_initial_values(func)
        return ScheduledKernel(func, serial_twin(func), "author")
    chosen = tuple(sorted(choices.items()))
    rule, arrangement = _arrangement(func, target, chosen, rules)
    with setting(dict(chosen)):
        arranged = with_given(func, arrangement.write(), arrangement.workspaces)
    return ScheduledKernel(arranged, serial_twin(arranged), rule)


def launches_by_rules(
    program: PrimFunc, target: Target, rules: Rules, most_buffers: int | None = None
) -> Launches | None:
    """The program in one launch, with the workspaces that parts of its kernel share as parameters; None if there are
    none. If a launch may take only `most_buffers` buffers, the kernel allocates the rest."""
    func = program.func
    return lifted(program, not_given(func, _workspaces(func, target, rules)), most_buffers)


def _workspaces(func: tirx.PrimFunc, target: Target, rules: Rules) -> Sequence[Buffer]:
    """The workspaces: intermediates that the program allocates, and buffers of the rule's own. Allocations of a program
    that its author scheduled are not included."""
    if is_checked(func):
        bare = func.without_attr(CHECK_INDICES)
        if with_checks_first(func) is None:
            return handed_on(func)
        return _workspaces(bare, target, rules)
    if asserts(func):
        return handed_on(func)
    if is_scheduled(func):
        return ()
    return _arrangement(func, target, (), rules)[1].workspaces


@lru_cache(maxsize=256)
def _arrangement(
    func: tirx.PrimFunc, target: Target, chosen: tuple[tuple[str, Choice], ...], rules: Rules
) -> tuple[str, Arrangement]:
    """The schedule by the first rule that applies with these choices, and the rule's name."""
    with setting(dict(chosen)):
        first = dict(chosen).get("rule")
        for rule in sorted(rules, key=lambda rule: rule.name != first):
            arrangement = rule.arrange(func, target)
            if arrangement is not None:
                return rule.name, arrangement
    return "none", Arrangement(lambda: func)


def _checked(
    func: tirx.PrimFunc, target: Target, choices: Choices, rules: Rules
) -> ScheduledKernel:
    """Schedule a program with index checks: all of them run before it, if possible, otherwise each before its
    access."""
    bare = func.without_attr(CHECK_INDICES)
    first = with_checks_first(func)
    if first is None:
        body = with_checks_inside(with_initial_values(func))
        return ScheduledKernel(body, body, "checked")
    kernel = schedule_by_rules(bare, target, choices, rules)
    if FINISHED in (
        kernel.parallel.attrs or {}
    ):  # the schedule works on loops and flat buffers only; the checks are neither
        kernel = schedule_by_rules(bare, target, {**choices, "rule": "fallback"}, rules)
    parallel = behind(first, kernel.parallel)
    is_serial = kernel.serial.same_as(kernel.parallel)
    return ScheduledKernel(
        parallel, parallel if is_serial else behind(first, kernel.serial), kernel.rule
    )


def knobs_of_rules(
    func: tirx.PrimFunc, target: Target, rules: Rules
) -> dict[str, dict[str, tuple[Choice, ...]]]:
    """All of these rules that apply to `func`, in order. For each: the knobs that it asks for with their possible
    values, the default first. Empty for a program that its author scheduled."""
    if is_scheduled(func):
        return {}
    found: dict[str, dict[str, tuple[Choice, ...]]] = {}
    for rule in rules:
        with setting({}) as knobs:
            arrangement = rule.arrange(func, target)
            if arrangement is not None:
                arrangement.write()
                found[rule.name] = knobs.asked
    return found
