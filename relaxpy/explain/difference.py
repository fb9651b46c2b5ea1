"""Compares two builds: kernels, passes, memory, time.

    found = compare(explain(before), explain(after))
    print(found)                          # in a terminal
    page(found.after, found)              # the page of the second build, with what changed

Either may be of an executable from a file (`explain_executable`), whose passes are not known.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.explain.explanation import ExplainedKernel, Explanation, PassRun
from relaxpy.explain.flow import COUNTED, MEASURED, duration, flows
from relaxpy.runtime.function_listing import printable
from relaxpy.runtime.inspect.memory_plan import FunctionPlan
from relaxpy.runtime.inspect.units import shown

MARKS = {"added": "+", "removed": "-", "changed": "~", "renamed": "~"}


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel that differs between two builds."""

    status: str
    """`added`, `removed`, `changed`, or `renamed`: the same program under another name."""
    before: ExplainedKernel | None
    after: ExplainedKernel | None
    what: tuple[str, ...] = ()
    """The differences, in words."""

    @property
    def name(self) -> str:
        found = self.after or self.before
        assert found is not None
        return found.name


@dataclass(frozen=True, slots=True)
class PassPair:
    """A pass in two builds, or in one of them."""

    name: str
    before: PassRun | None
    after: PassRun | None


@dataclass(frozen=True, slots=True)
class MemoryPair:
    """The memory of a function in two builds, or in one of them."""

    function: str
    before: FunctionPlan | None
    after: FunctionPlan | None

    @property
    def differs(self) -> bool:
        """Whether the storages or what lies in them differ."""
        return _memory(self.before) != _memory(self.after)


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of both builds, in words."""

    name: str
    before: str
    after: str

    @property
    def differs(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class Difference:
    """The differences between two builds. `str` is the text for a terminal."""

    before: Explanation
    after: Explanation
    facts: tuple[Fact, ...]
    kernels: tuple[KernelChange, ...]
    same_kernels: int
    """The number of kernels that do not differ."""
    passes: tuple[PassPair, ...]
    """All passes, in order; empty if those of a build are not known."""
    diverges: str | None
    """The step after which the modules differ first: a pass, or "" if the sources do; None: they do not differ, or the
    passes are not known."""
    memory: tuple[MemoryPair, ...]
    """The functions that have a memory plan in either."""
    bytecode: tuple[str, ...]
    """A diff of the functions' bytecode, without kernels; empty if it is the same."""

    @property
    def is_empty(self) -> bool:
        """Whether the builds are the same: the same code and memory. Times may differ."""
        changed = any(pair.differs for pair in self.memory)
        return not (self.kernels or changed or self.bytecode or self.diverges is not None)

    def __str__(self) -> str:
        return "\n".join(map(printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        yield f"{self.before.title} → {self.after.title}"
        if self.is_empty:
            yield "the same code and the same memory"
        width = max((len(fact.name) for fact in self.facts), default=0)
        for fact in self.facts:
            change = f"{fact.before} → {fact.after}" if fact.differs else fact.after
            yield f"  {fact.name:<{width}}  {change}"
        if self.diverges is not None:
            yield f"the modules differ from {self.diverges or 'the source'} on"
        if self.kernels:
            yield f"kernels ({self.same_kernels} unchanged)"
            for change in self.kernels:
                what = ", ".join(change.what)
                yield f"  {MARKS[change.status]} {change.name}" + (f": {what}" if what else "")
        for pair in self.passes:
            if pair.before is None or pair.after is None:
                which = self.after.title if pair.before is None else self.before.title
                yield f"pass {pair.name}: only in {which}"
        for pair in self.memory:
            if pair.differs:
                yield f"memory of {pair.function}: {_plan(pair.before)} → {_plan(pair.after)}"
        if self.bytecode:
            added = sum(line.startswith("+") for line in self.bytecode)
            removed = sum(line.startswith("-") for line in self.bytecode)
            yield f"bytecode: {added} lines added, {removed} removed"

    def as_json(self) -> dict[str, Any]:
        """The difference as data for `json.dumps`. Sizes are in bytes, times in seconds."""
        return {
            "before": self.before.as_json(),
            "after": self.after.as_json(),
            "same": self.is_empty,
            "facts": [
                {"name": fact.name, "before": fact.before, "after": fact.after}
                for fact in self.facts
            ],
            "kernels": [
                {"name": change.name, "status": change.status, "what": list(change.what)}
                for change in self.kernels
            ],
            "same_kernels": self.same_kernels,
            "passes": [
                {
                    "name": pair.name,
                    "seconds": [
                        None if r is None else r.seconds for r in (pair.before, pair.after)
                    ],
                }
                for pair in self.passes
            ],
            "diverges": self.diverges,
            "memory": [
                {
                    "function": pair.function,
                    "differs": pair.differs,
                    "planned": [
                        None if p is None else p.planned for p in (pair.before, pair.after)
                    ],
                    "peak": [None if p is None else p.peak for p in (pair.before, pair.after)],
                }
                for pair in self.memory
            ],
            "bytecode": list(self.bytecode),
        }


def compare(before: Explanation, after: Explanation) -> Difference:
    """The difference between two builds."""
    kernels, same = _kernels(before, after)
    passes: tuple[PassPair, ...] = ()
    diverges: str | None = None
    if before.passes and after.passes:
        passes = tuple(_passes(before.passes, after.passes))
        diverges = _diverges(before, after, passes)
    return Difference(
        before,
        after,
        tuple(_facts(before, after, kernels)),
        tuple(kernels),
        same,
        passes,
        diverges,
        tuple(_memories(before, after)),
        tuple(changed_lines(_bytecode(before), _bytecode(after))),
    )


def changed_lines(before: str, after: str, context: int = 3) -> list[str]:
    """The lines of a unified diff without its header: each begins with a space, `+`, `-`, or `@` between hunks."""
    old, new = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(old, new, n=context, lineterm=""))[2:]


def _kernels(before: Explanation, after: Explanation) -> tuple[list[KernelChange], int]:
    """The kernels that differ, in the order of the second build, and the number of those that do not."""
    old = {kernel.name: kernel for kernel in before.kernels}
    left = {name: kernel for name, kernel in old.items() if after.kernel_of(name) < 0}
    by_program = {_program(kernel): kernel for kernel in left.values() if kernel.program}
    found: list[KernelChange] = []
    same = 0
    for kernel in after.kernels:
        position = before.kernel_of(kernel.name)
        if position >= 0:
            previous = before.kernels[position]
            left.pop(previous.name, None)
            what = tuple(_differences(previous, kernel))
            same += not what
            if what:
                found.append(KernelChange("changed", previous, kernel, what))
            continue
        previous = by_program.get(_program(kernel)) if kernel.program else None
        if previous is not None and previous.name in left:
            del left[previous.name]
            what = (f"was {previous.name}", *_differences(previous, kernel))
            found.append(KernelChange("renamed", previous, kernel, what))
        else:
            found.append(KernelChange("added", None, kernel, tuple(_about(kernel))))
    found += [
        KernelChange("removed", kernel, None, tuple(_about(kernel))) for kernel in left.values()
    ]
    return found, same


def _differences(before: ExplainedKernel, after: ExplainedKernel) -> Iterator[str]:
    if _program(before) != _program(after):
        yield "another tensor program"
    if before.times and after.times and before.rule != after.rule:
        yield f"rule {before.rule} → {after.rule}"
    elif before.digest != after.digest and _program(before) == _program(after):
        yield "the same tensor program, compiled to other code"
    if before.size != after.size:
        yield f"{shown(before.size)} → {shown(after.size)} of code"
    if before.calls != after.calls:
        yield f"{before.calls} → {after.calls} calls"


def _about(kernel: ExplainedKernel) -> Iterator[str]:
    if kernel.rule:
        yield kernel.rule
    yield f"{kernel.calls} call{'s' * (kernel.calls != 1)}"
    yield f"{shown(kernel.size)} of code"


def _program(kernel: ExplainedKernel) -> str:
    """The tensor program without its name."""
    return kernel.program.replace(f"def {kernel.name}(", "def _(", 1)


def _passes(before: Sequence[PassRun], after: Sequence[PassRun]) -> Iterator[PassPair]:
    """The passes of both, aligned by name."""
    names = [[run.name for run in runs] for runs in (before, after)]
    matcher = difflib.SequenceMatcher(None, *names, autojunk=False)
    for tag, i, end, j, stop in matcher.get_opcodes():
        if tag == "equal":
            pairs = zip(before[i:end], after[j:stop], strict=True)
            yield from (PassPair(a.name, a, b) for a, b in pairs)
        else:
            yield from (PassPair(run.name, run, None) for run in before[i:end])
            yield from (PassPair(run.name, None, run) for run in after[j:stop])


def _diverges(before: Explanation, after: Explanation, passes: Sequence[PassPair]) -> str | None:
    """The first pass after which the modules differ, of the passes of both in order; "": the sources do."""
    old, new = before.script, after.script
    if old != new:
        return ""
    for pair in passes:
        old = (pair.before and pair.before.script) or old
        new = (pair.after and pair.after.script) or new
        if old != new:
            return pair.name
    return None


def _memories(before: Explanation, after: Explanation) -> Iterator[MemoryPair]:
    old = {} if before.plan is None else {f.name: f for f in before.plan.functions}
    new = {} if after.plan is None else {f.name: f for f in after.plan.functions}
    for name in dict.fromkeys((*new, *old)):
        yield MemoryPair(name, old.get(name), new.get(name))


def _memory(plan: FunctionPlan | None) -> object:
    """The key by which plans are compared: storages, and sizes and offsets of tensors, whatever their names."""
    if plan is None:
        return None
    return plan.storages, sorted((t.nbytes, t.storage, t.offset) for t in plan.tensors)


def _plan(plan: FunctionPlan | None) -> str:
    if plan is None:
        return "none"
    count = len(plan.storages)
    return f"{shown(plan.planned)} in {count} storage{'s' * (count != 1)}, peak {shown(plan.peak)}"


def _bytecode(explanation: Explanation) -> str:
    """The listing of the functions, without target, kernels and places in the source."""
    exe = explanation.executable
    if exe is None:
        return ""
    lines = (line.split("  #")[0].rstrip() for line in exe.as_text().splitlines())
    return "\n".join(line for line in lines if not line.startswith("#"))


def _facts(
    before: Explanation, after: Explanation, kernels: Sequence[KernelChange]
) -> Iterator[Fact]:
    yield Fact("target", before.target, after.target)
    count = {s: sum(change.status == s for change in kernels) for s in MARKS}
    words = ", ".join(f"{n} {status}" for status, n in count.items() if n)
    after_count = f"{len(after.kernels)}" + (f" ({words})" if words else "")
    yield Fact("kernels", str(len(before.kernels)), after_count)
    yield Fact("launches", str(len(before.launches)), str(len(after.launches)))
    yield Fact("code", *(shown(_code_size(each)) for each in (before, after)))
    if before.plan is not None and after.plan is not None:
        yield Fact("weights", shown(before.plan.weights), shown(after.plan.weights))
        yield Fact("memory", shown(before.plan.peak), shown(after.plan.peak))
    old, new = ({flow.function: flow for flow in flows(each)} for each in (before, after))
    for name in new:
        if name in old and old[name].basis == new[name].basis != COUNTED:
            basis = "time" if new[name].basis == MEASURED else "estimated cost"
            yield Fact(
                f"{basis} of {name}", *(each[name].words(each[name].total) for each in (old, new))
            )
    if before.steps and after.steps:
        seconds = (sum(s for _, s in each.steps) for each in (before, after))
        yield Fact("build time", *map(duration, seconds))


def _code_size(explanation: Explanation) -> int:
    exe = explanation.executable
    return 0 if exe is None else sum(map(len, exe.objects))
