"""Schedules: how a correct tensor program becomes a fast one, from analysis of its loops (paper §4.6).

Rules are tried in order, and the first that recognises the program arranges it; what no rule recognises still compiles.
Every rule works for symbolic dimensions, 0 and 1 included: one kernel serves all sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relaxpy.analysis.index_checks import (
    behind,
    is_checked,
    with_checks_first,
    with_checks_inside,
)
from relaxpy.backend.cpu.rules import CPU_RULES
from relaxpy.backend.knobs import Choice, Choices, setting
from relaxpy.ir.module import CHECK_INDICES
from relaxpy.tir.schedule import FINISHED, asserts, is_scheduled, serial_twin
from relaxpy.tir.target import Target
from relaxpy.tir.tvm import tirx

Rule = Callable[[tirx.PrimFunc, Target], "tirx.PrimFunc | None"]
"""A rule returns the arranged function, with its parallel loops marked, or None where it does not apply."""


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
    """Arrange `func` for `target`; never fails: the last rule takes any program.

    `choices` sets knobs of the rules otherwise than they would (`relaxpy.backend.knobs`), and `"rule"` names the rule
    to take, if it applies. A function whose author arranged it (attribute `tirx.is_scheduled`, or loops that are not
    plain) stays as it is.
    """
    if is_checked(func):
        return _checked(func, target, choices)
    if asserts(func):
        # TVM's pool of threads may lose an error: a worker counts as done before its error is noted.
        alone = serial_twin(func)
        return ScheduledKernel(alone, alone, "asserting")
    if is_scheduled(func):
        return ScheduledKernel(func, serial_twin(func), "author")
    choices = choices or {}
    with setting(choices):
        for name, rule in _in_order(choices.get("rule")):
            arranged = rule(func, target)
            if arranged is not None:
                return ScheduledKernel(arranged, serial_twin(arranged), name)
    return ScheduledKernel(func, func, "none")


def _checked(func: tirx.PrimFunc, target: Target, choices: Choices | None) -> ScheduledKernel:
    """A program whose indices are checked: all of them before it runs, where that can be, and as it goes otherwise."""
    bare = func.without_attr(CHECK_INDICES)
    first = with_checks_first(func)
    if first is None:
        body = with_checks_inside(func)
        return ScheduledKernel(body, body, "checked")
    kernel = schedule_kernel(bare, target, choices)
    if FINISHED in (
        kernel.parallel.attrs or {}
    ):  # loops and flat buffers only: the checks are neither
        kernel = schedule_kernel(bare, target, {**(choices or {}), "rule": "fallback"})
    parallel = behind(first, kernel.parallel)
    is_serial = kernel.serial.same_as(kernel.parallel)
    return ScheduledKernel(
        parallel, parallel if is_serial else behind(first, kernel.serial), kernel.rule
    )


def knobs_of(func: tirx.PrimFunc, target: Target) -> dict[str, dict[str, tuple[Choice, ...]]]:
    """Every rule that applies to `func`, the one that would be taken first, with the knobs that it asks for and what
    each may be set to, its own choice first. Nothing for what its author arranged."""
    if is_scheduled(func):
        return {}
    found: dict[str, dict[str, tuple[Choice, ...]]] = {}
    for name, rule in CPU_RULES:
        with setting({}) as knobs:
            if rule(func, target) is not None:
                found[name] = knobs.asked
    return found


def _in_order(first: Choice | None) -> list[tuple[str, Rule]]:
    """The rules in the order in which they are tried, this one first."""
    return sorted(CPU_RULES, key=lambda entry: entry[0] != first)
