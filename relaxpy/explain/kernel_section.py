"""The sections about kernels, their images, and the source lines that they come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from relaxpy.explain.explanation import ExplainedKernel, Explanation, SourceLine
from relaxpy.explain.flow import Flow, duration
from relaxpy.explain.grid import Grid
from relaxpy.explain.links import Links
from relaxpy.explain.markup import code, folded, link, name, percent, several, table, text
from relaxpy.runtime.inspect.image_choices import ImageChoice
from relaxpy.runtime.inspect.units import shown


def kernels(explanation: Explanation, found: Sequence[Flow], links: Links) -> str:
    """Each kernel with its costs, programs and relations; "" if there is none."""
    shares = {
        flow.function: {n: sum(t.weight for t in each) for n, each in flow.by_kernel()}
        for flow in found
    }
    weights = shares[found[0].function] if found else {}
    order = sorted(
        range(len(explanation.kernels)),
        key=lambda n: -sum(weights.get(name, 0.0) for name in explanation.kernels[n].names),
    )
    parts = [_kernel(n, explanation.kernels[n], found, shares, links) for n in order]
    if not parts:
        return ""
    about = ""
    if not explanation.is_compiled:
        about = (
            "<p>FLOPs and bytes are over the program's own symbols: the floating-point operations of a run (a "
            "multiply-add is two), and what it must read and write.</p>"
        )
    return about + "".join(parts)


def _kernel(
    number: int,
    kernel: ExplainedKernel,
    found: Sequence[Flow],
    shares: dict[str, dict[str, float]],
    links: Links,
) -> str:
    calls = f"{kernel.calls} call{'s' * (kernel.calls != 1)}"
    facts = [text(kernel.rule), calls, shown(kernel.size)]
    for flow in found:
        weight = sum(shares[flow.function].get(each, 0.0) for each in kernel.names)
        if weight:
            where = f" of {name(flow.function)}" if len(found) > 1 else ""
            facts.append(percent(flow.share(weight)) + where)
    head = (
        f"<b>{name(kernel.name)}</b> <span class='number'>{' · '.join(filter(None, facts))}</span>"
    )
    rows: list[tuple[str, str]] = []
    if len(kernel.names) > 1:
        rows.append(("also called", ", ".join(name(each) for each in kernel.names[1:])))
    if kernel.flops:
        rows.append(("FLOPs", f"<code>{text(kernel.flops)}</code>"))
    if kernel.nbytes:
        rows.append(("bytes", f"<code>{text(kernel.nbytes)}</code>"))
    if kernel.record:
        rows.append(("tuning record", text(kernel.record)))
    rows += _grid_facts(kernel.grid)
    for time in kernel.times:
        cached = " (from the cache)" if time.cached else ""
        which = f" {text(time.name)}" if len(kernel.times) > 1 else ""
        rows.append(("compiled in", f"{duration(time.seconds)}{cached}, {shown(time.size)}{which}"))
    lines = links.line_links(list(links.lines_of_kernel.get(number, ())))
    groups = list(links.groups_of_kernel.get(number, ()))
    nodes = links.explanation.blocks
    storages = links.storage_links(list(links.storages_of_kernel.get(number, ())))
    named = [link(links.node(b, n), nodes[b].nodes[n].var) for b, n in groups]
    related = (
        ("source lines", lines),
        ("fusion groups from", named),
        ("writes to storage", storages),
    )
    rows += [(title, several(each)) for title, each in related if each]
    body = _facts(rows)
    if kernel.program:
        body += folded("tensor program", code(kernel.program))
    if kernel.scheduled:
        body += folded("loops as compiled", code(kernel.scheduled))
    return (
        f'<details class="row kernel" id="kernel-{number}" data-name="{text(kernel.name)} {text(kernel.rule)}">'
        f"<summary>{head}</summary>{body}</details>"
    )


def _grid_facts(grid: Grid | None) -> list[tuple[str, str]]:
    """The launch of a kernel on a device."""
    if grid is None:
        return []
    shared = f", {shown(grid.shared)} shared by a group" if grid.shared else ""
    bound = [f"<code>{text(binding)}</code>" for binding in grid.bindings]
    return [
        ("groups", _counts(grid.groups)),
        ("threads in a group", _counts(grid.threads) + shared),
        ("bindings", several(bound, 12)),
        *([("registers of a thread", _registers(grid.resources))] if grid.resources else []),
        ("numbers passed", several([f"<code>{text(each)}</code>" for each in grid.numbers])),
    ]


def _counts(counts: Sequence[str]) -> str:
    return f"<code>{text(' × '.join(counts))}</code>"


def _registers(resources: Mapping[str, int]) -> str:
    spills = resources.get("spills", 0)
    return f"{resources.get('registers', 0)}, {shown(spills) if spills else 'none'} spilled"


def grids(explanation: Explanation) -> str:
    """A table of the launches on devices; "" if there is none."""
    rows = [
        f'<tr class="row" data-name="{text(kernel.name)} {text(kernel.rule)}">'
        f"<td>{link(f'kernel-{number}', kernel.name)}</td><td>{text(kernel.rule)}</td>"
        f"<td class='number'>{kernel.calls}</td><td>{_counts(grid.groups)}</td><td>{_counts(grid.threads)}</td>"
        f"<td class='number'>{shown(grid.shared) if grid.shared else ''}</td>"
        f"<td class='number'>{len(grid.bindings)}</td>"
        f"<td class='long'>{several([name(each.name) for each in grid.workspaces])}</td></tr>"
        for number, kernel in enumerate(explanation.kernels)
        if (grid := kernel.grid) is not None
    ]
    if not rows:
        return ""
    about = (
        "<p>A launch is a grid of groups; the threads of a group can wait for each other and share memory. Sizes are "
        "over the program's own symbols. Workspaces are memory that only kernels use.</p>"
    )
    head = (
        "kernel",
        "rule",
        "launches",
        "groups",
        "threads in a group",
        "shared",
        "bindings",
        "workspaces",
    )
    return about + table(head, rows)


def _facts(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<dt>{title}</dt><dd>{body}</dd>" for title, body in rows)
    return f'<dl class="facts">{cells}</dl>'


def images(choices: Sequence[ImageChoice]) -> str:
    """The images of kernels by hardware requirement; "" if no kernel requires anything."""
    if not choices:
        return ""
    rows = [
        f"<tr><td>{name(each.name or 'any')}</td><td>{text(each.arch)}</td>"
        f"<td class='long'>{text(', '.join(each.features) or 'no features')}</td>"
        f"<td class='number'>{each.images}</td><td>{_verdict(each)}</td></tr>"
        for each in choices
    ]
    about = (
        "<p>Each kernel has an image for every one of these, in order of preference; the first one whose features this "
        "machine has is the one that runs.</p>"
        if len(choices) > 1
        else ""
    )
    return about + table(("built for", "architecture", "needs", "kernels", "here"), rows)


def _verdict(image: ImageChoice) -> str:
    if image.lacks is None:
        return "chosen by the device"
    if image.lacks:
        return f"lacks {text(', '.join(image.lacks))}"
    return (
        f"<b>chosen</b> for {image.chosen}" if image.chosen else "could run, another is preferred"
    )


def source_lines(explanation: Explanation, found: Sequence[Flow], links: Links) -> str:
    """A table of the source lines with what they became; "" if no launch has one."""
    if not links.lines:
        return ""
    names: dict[SourceLine, dict[str, None]] = defaultdict(dict)
    shares: dict[SourceLine, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for flow in found:
        for timed in flow.launches:
            for part in timed.parts:
                if part.source is not None:
                    names[part.source][part.var] = None
                    shares[part.source][flow.function] += flow.share(part.weight)
    rows = [
        f'<tr class="row" id="{links.line(line)}" data-name="{text(line)} {text(explanation.texts.get(line, ""))}">'
        f"<td>{name(line)}</td><td class='long'><code>{text(explanation.texts.get(line, ''))}</code></td>"
        f"<td class='long'>{several([name(each) for each in names[line]], 3)}</td>"
        f"<td class='long'>{several(links.kernel_links(list(links.kernels_of_line.get(line, ()))), 3)}</td>"
        f"<td class='number'>{_shares(shares[line], len(found))}</td></tr>"
        for line in links.lines
    ]
    body = table(("line", "source", "bindings", "kernels", "share"), rows)
    count = len(rows)
    return folded(f"{count} source line{'s' * (count != 1)} as a table", body)


def _shares(shares: dict[str, float], functions: int) -> str:
    if functions == 1:
        return "".join(percent(share) for share in shares.values())
    return "<br>".join(f"{percent(share)} of {name(each)}" for each, share in shares.items())
