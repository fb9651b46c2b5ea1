"""The section about what changed between two builds."""

from __future__ import annotations

from collections.abc import Iterator

from relaxpy.explain.difference import (
    MARKS,
    Difference,
    KernelChange,
    MemoryPair,
    PassPair,
    changed_lines,
)
from relaxpy.explain.explanation import Explanation
from relaxpy.explain.flow import duration
from relaxpy.explain.links import Links
from relaxpy.explain.markup import diff, folded, link, name, table, text
from relaxpy.runtime.inspect.memory_plan import FunctionPlan
from relaxpy.runtime.inspect.units import shown


def difference(found: Difference, links: Links) -> str:
    """The changes, as HTML."""
    before, after = name(found.before.title), name(found.after.title)
    parts: list[str] = [f"<p>From {before} to {after}; all other sections are of {after}.</p>"]
    if found.before.error is not None:
        parts.append(f"<p>The build of {before} fails: {text(found.before.error.message)}.</p>")
    elif found.is_empty and found.after.error is None:
        parts.append("<p><b>Nothing: the same code and the same memory.</b></p>")
    rows = (
        f"<tr{' class=differs' if fact.differs else ''}><th scope='row'>{text(fact.name)}</th><td class='long'>"
        f"{text(fact.before)}</td><td class='long'>{text(fact.after)}</td></tr>"
        for fact in found.facts
    )
    parts.append(table(("", before, after), rows))
    if found.kernels:
        parts.append(f"<h3>Kernels ({found.same_kernels} unchanged)</h3>")
        parts += [_kernel(change, links) for change in found.kernels]
    if any(pair.differs for pair in found.memory):
        parts.append("<h3>Memory</h3>" + _memory(found))
    if found.passes:
        parts.append("<h3>Passes</h3>" + _passes(found))
    if found.bytecode:
        parts.append("<h3>Bytecode</h3>")
        parts.append(folded("the lines that differ", diff(found.bytecode)))
    return "".join(parts)


def _kernel(change: KernelChange, links: Links) -> str:
    label = link(links.kernel(change.name), change.name) if change.after else name(change.name)
    mark = MARKS[change.status]
    kind = {"+": "plus", "-": "minus"}.get(mark, "")
    what = text(", ".join(change.what))
    head = (
        f"<b class='{kind}'>{mark} {change.status}</b> {label} <span class='number'>{what}</span>"
    )
    body = "".join(_programs(change))
    if not body:
        return f"<p class='change'>{head}</p>"
    return folded(head, body)


def _programs(change: KernelChange) -> Iterator[str]:
    """Diffs of the tensor program and of the loops, where they differ."""
    if change.before is None or change.after is None:
        return
    texts = (
        ("tensor program", change.before.program, change.after.program),
        ("loops as compiled", change.before.scheduled, change.after.scheduled),
    )
    for title, before, after in texts:
        before = before.replace(f"def {change.before.name}(", f"def {change.after.name}(", 1)
        if before and after and (changes := changed_lines(before, after)):
            yield folded(title, diff(changes), open=True)


def _memory(found: Difference) -> str:
    rows: list[str] = []
    for pair in found.memory:
        for title, *figures in _figures(pair):
            cells = "".join(f"<td class='number'>{each}</td>" for each in figures)
            differs = " class=differs" if figures[0] != figures[1] else ""
            rows.append(f"<tr{differs}><td>{name(pair.function)}</td><td>{title}</td>{cells}</tr>")
    head = ("function", "", name(found.before.title), name(found.after.title))
    return table(head, rows)


def _figures(pair: MemoryPair) -> Iterator[tuple[str, str, str]]:
    def row(title: str, get: str) -> tuple[str, str, str]:
        before, after = (
            "none" if plan is None else shown(getattr(plan, get))
            for plan in (pair.before, pair.after)
        )
        return title, before, after

    yield "storages", _storages(pair.before), _storages(pair.after)
    yield row("planned", "planned")
    yield row("least possible", "least")
    yield row("results", "unplanned")
    yield row("peak", "peak")


def _storages(plan: FunctionPlan | None) -> str:
    return "none" if plan is None else str(len(plan.storages))


def _passes(found: Difference) -> str:
    rows = "".join(map(_pass, found.passes))
    body = table(("pass", name(found.before.title), name(found.after.title)), [rows])
    if found.diverges is None:
        return "<p>The modules are the same after every pass.</p>" + folded("times", body)
    where = f"pass {name(found.diverges)}" if found.diverges else "the source"
    last = changed_lines(_last(found.before), _last(found.after))
    about = f"<p>The modules differ from {where} on.</p>"
    if not found.diverges:
        source = changed_lines(found.before.script, found.after.script)
        about += folded("the sources", diff(source))
    return about + folded("the modules after the last pass", diff(last)) + folded("times", body)


def _pass(pair: PassPair) -> str:
    times = "".join(
        f"<td class='number'>{'–' if run is None else duration(run.seconds)}</td>"
        for run in (pair.before, pair.after)
    )
    one = " class=differs" if pair.before is None or pair.after is None else ""
    return f"<tr{one}><td>{name(pair.name)}</td>{times}</tr>"


def _last(explanation: Explanation) -> str:
    """The module after the last pass."""
    scripts = [run.script for run in explanation.passes if run.script is not None]
    return scripts[-1] if scripts else explanation.script
