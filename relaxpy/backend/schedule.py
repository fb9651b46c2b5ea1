"""Schedules: how a correct tensor program becomes a fast one, from analysis of its loops (paper §4.6).

Rules are tried in order, and the first that recognises the program arranges it; what no rule recognises still compiles.
Every rule works for symbolic dimensions, 0 and 1 included: one kernel serves all sizes.

Which memory a kernel needs beside its parameters is known before its loops are written (`workspaces`), so that the
graph can allocate it; how the kernel is arranged (`schedule_kernel`) when it is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from relaxpy.analysis.index_checks import (
    behind,
    is_checked,
    with_checks_first,
    with_checks_inside,
)
from relaxpy.backend.arrangement import Arrangement, Rule
from relaxpy.backend.cpu.rules import CPU_RULES
from relaxpy.backend.knobs import Choice, Choices, setting
from relaxpy.ir.module import CHECK_INDICES
from relaxpy.tir.lowering.workspace import handed_on, with_given
from relaxpy.tir.schedule import FINISHED, asserts, is_scheduled, serial_twin
from relaxpy.tir.target import Target
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
    chosen = tuple(sorted((choices or {}).items()))
    rule, arrangement = _arrangement(func, target, chosen)
    with setting(dict(chosen)):
        arranged = with_given(func, arrangement.write(), arrangement.workspaces)
    return ScheduledKernel(arranged, serial_twin(arranged), rule)


def workspaces(func: tirx.PrimFunc, target: Target) -> Sequence[Buffer]:
    """The buffers that parts of the kernel of `func` will hand on to each other: intermediates of the program, which it
    allocates, and buffers of the rule's own. What an author's arrangement allocates is not among them."""
    if is_checked(func):
        bare = func.without_attr(CHECK_INDICES)
        return handed_on(func) if with_checks_first(func) is None else workspaces(bare, target)
    if asserts(func):
        return handed_on(func)
    if is_scheduled(func):
        return ()
    return _arrangement(func, target, ())[1].workspaces


@lru_cache(maxsize=256)
def _arrangement(
    func: tirx.PrimFunc, target: Target, chosen: tuple[tuple[str, Choice], ...]
) -> tuple[str, Arrangement]:
    """What the first rule that applies gives, and its name, with these choices."""
    with setting(dict(chosen)):
        for rule in _in_order(dict(chosen).get("rule")):
            arrangement = rule.arrange(func, target)
            if arrangement is not None:
                return rule.name, arrangement
    return "none", Arrangement(lambda: func)


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
    for rule in CPU_RULES:
        with setting({}) as knobs:
            arrangement = rule.arrange(func, target)
            if arrangement is not None:
                arrangement.write()
                found[rule.name] = knobs.asked
    return found


def _in_order(first: Choice | None) -> list[Rule]:
    """The rules in the order in which they are tried, this one first."""
    return sorted(CPU_RULES, key=lambda rule: rule.name != first)
