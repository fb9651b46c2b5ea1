"""Schedules: how a correct tensor program becomes a fast one, from analysis of its loops (paper §4.6).

Rules are tried in order, and the first that recognises the program arranges it; what no rule recognises still compiles.
Every rule works for symbolic dimensions, 0 and 1 included: one kernel serves all sizes.

Which memory a kernel needs beside its parameters is known before its loops are written (`launches_by_rules`), so that
the graph can allocate it; how the kernel is arranged (`schedule_kernel`) when it is compiled.
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
from relaxpy.tir.schedule import FINISHED, asserts, is_scheduled, serial_twin
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import Buffer


@dataclass(frozen=True, slots=True)
class ScheduledKernel:
    """A program arranged for a target, in the two forms between which the machine picks at every call."""

    parallel: tirx.PrimFunc
    """Work spread over the thread pool; the same object as `serial` where there is nothing to spread."""
    serial: tirx.PrimFunc
    """The same program on the calling thread, for work too small to launch (a launch costs 1 µs); the same bits."""
    rule: str
    """Name of the rule that applied: `author`, `matmul`, `elementwise`, …, `fallback`."""


def schedule_kernel(
    func: tirx.PrimFunc, target: Target, choices: Choices | None = None
) -> ScheduledKernel:
    """Arrange `func` for `target`, as its backend does; never fails.

    `choices` sets knobs of the rules otherwise than they would (`relaxpy.backend.knobs`), and `"rule"` names the rule
    to take, if it applies. A function whose author arranged it (attribute `tirx.is_scheduled`, or loops that are not
    plain) stays as it is.
    """
    return backend_of(target).schedule(func, target, choices or {})


Rules: TypeAlias = tuple[Rule, ...]
"""In the order in which they are tried. The last one takes any program."""


def schedule_by_rules(
    func: tirx.PrimFunc, target: Target, choices: Choices, rules: Rules
) -> ScheduledKernel:
    """Arrange `func` by the first of these rules that applies, or by the one that is chosen."""
    if is_checked(func):
        return _checked(func, target, choices, rules)
    if asserts(func):
        # TVM's pool of threads may lose an error: a worker counts as done before its error is noted.
        alone = serial_twin(func)
        return ScheduledKernel(alone, alone, "asserting")
    if is_scheduled(func):
        return ScheduledKernel(func, serial_twin(func), "author")
    chosen = tuple(sorted(choices.items()))
    rule, arrangement = _arrangement(func, target, chosen, rules)
    with setting(dict(chosen)):
        arranged = with_given(func, arrangement.write(), arrangement.workspaces)
    return ScheduledKernel(arranged, serial_twin(arranged), rule)


def launches_by_rules(
    program: PrimFunc, target: Target, rules: Rules, most_buffers: int | None = None
) -> Launches | None:
    """The program in one launch, on the memory that parts of its kernel will hand on to each other; None where there is
    none. Where a launch may take only so many buffers, the kernel allocates what is above that."""
    func = program.func
    return lifted(program, not_given(func, _workspaces(func, target, rules)), most_buffers)


def _workspaces(func: tirx.PrimFunc, target: Target, rules: Rules) -> Sequence[Buffer]:
    """That memory: intermediates of the program, which it allocates, and buffers of the rule's own. What an author's
    arrangement allocates is not among them."""
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
    """What the first rule that applies gives, and its name, with these choices."""
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
    """A program whose indices are checked: all of them before it runs, where that can be, and as it goes otherwise."""
    bare = func.without_attr(CHECK_INDICES)
    first = with_checks_first(func)
    if first is None:
        body = with_checks_inside(func)
        return ScheduledKernel(body, body, "checked")
    kernel = schedule_by_rules(bare, target, choices, rules)
    if FINISHED in (
        kernel.parallel.attrs or {}
    ):  # loops and flat buffers only: the checks are neither
        kernel = schedule_by_rules(bare, target, {**choices, "rule": "fallback"}, rules)
    parallel = behind(first, kernel.parallel)
    is_serial = kernel.serial.same_as(kernel.parallel)
    return ScheduledKernel(
        parallel, parallel if is_serial else behind(first, kernel.serial), kernel.rule
    )


def knobs_of_rules(
    func: tirx.PrimFunc, target: Target, rules: Rules
) -> dict[str, dict[str, tuple[Choice, ...]]]:
    """Every one of these rules that applies to `func`, in order, with the knobs that it asks for and what each may be
    set to, its own choice first. Nothing for what its author arranged."""
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
