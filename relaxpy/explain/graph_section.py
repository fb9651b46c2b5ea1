"""The section about graphs: launches that a device replays as one command, and why other calls are in none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from relaxpy.backend.lift_graphs import GraphDecision
from relaxpy.explain.explanation import Explanation, SourceLine
from relaxpy.explain.links import Links
from relaxpy.explain.markup import link, name, several, table, text


def graphs(explanation: Explanation, links: Links) -> str:
    """The graphs of each function, and the calls in none with the reasons; "" if no device replays launches."""
    decisions = explanation.graphs
    if not decisions:
        return ""
    inside = [each for each in decisions if each.graph >= 0]
    groups: dict[tuple[str, int], list[GraphDecision]] = defaultdict(list)
    for each in inside:
        groups[each.function, each.graph].append(each)
    about = (
        f"<p>{len(inside)} of {len(decisions)} calls are launches in {len(groups)} "
        f"graph{'s' * (len(groups) != 1)}. The device records a graph when it runs for the first time with its sizes "
        "and addresses, and replays it afterwards.</p>"
    )
    rows = [
        f'<tr class="row" data-name="{text(function)}"><td>{name(function)}</td><td class="number">{number}</td>'
        f'<td class="number">{len(group)}</td><td class="long">{several(_callees(group, links))}</td></tr>'
        for (function, number), group in groups.items()
    ]
    parts = [about]
    if rows:
        parts.append(table(("function", "graph", "launches", "kernels"), rows))
    others = [_other(each, links) for each in decisions if each.graph < 0]
    if others:
        parts.append(table(("in no graph", "function", "source line", "why"), others))
    return "".join(parts)


def _callees(group: Sequence[GraphDecision], links: Links) -> list[str]:
    """Links to the kernels of a graph, each once."""
    names = dict.fromkeys(each.callee for each in group)
    return [link(links.kernel(each), each) for each in names]


def _other(decision: GraphDecision, links: Links) -> str:
    """The row of a call that is in no graph."""
    span, callee = decision.span, decision.callee
    line = SourceLine(span.file, span.line) if span is not None and span.file else None
    where = link(links.line(line), line) if line is not None else ""
    return (
        f'<tr class="row" data-name="{text(callee)}"><td>{link(links.kernel(callee), callee)}</td>'
        f"<td>{name(decision.function)}</td><td>{where}</td><td class='long'>{text(decision.reason)}</td></tr>"
    )
