"""Renders an explanation as one self-contained HTML page: it needs no network and no other files.

The page contains everything when it is opened, and links, unfolding and scales work without scripts. A script adds
conveniences: a box that filters by name, buttons that copy code, and highlighting in the picture of the flow.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from relaxpy.errors import RelaxError
from relaxpy.explain.difference import Difference, changed_lines
from relaxpy.explain.difference_section import difference
from relaxpy.explain.explanation import Explanation, PassRun
from relaxpy.explain.flow import Flow, flows
from relaxpy.explain.flow_picture import flow_picture
from relaxpy.explain.fusion_picture import fusion
from relaxpy.explain.graph_section import graphs
from relaxpy.explain.kernel_section import grids, images, kernels, source_lines
from relaxpy.explain.links import Links
from relaxpy.explain.markup import code, diff, folded, lines, name, table, text
from relaxpy.explain.memory_section import memory
from relaxpy.explain.style import SCRIPT, STYLE
from relaxpy.explain.time_chart import build_chart, call_chart
from relaxpy.version import __version__


def page(explanation: Explanation, changes: Difference | None = None) -> str:
    """The HTML text of the page; with `changes`, also what changed since another build."""
    found = flows(explanation)
    links = Links(explanation, found)
    unit = found[0].unit if found else ""
    title = (
        explanation.title if changes is None else f"{changes.before.title} → {explanation.title}"
    )
    sections = [
        ("summary", "Summary", "Summary", _summary(explanation)),
        (
            "changes",
            "Changes",
            "What changed",
            "" if changes is None else difference(changes, links),
        ),
        ("flow", "Flow", f"From source to {unit}", _flows(explanation, found, links)),
        ("time", "Call", f"{unit.capitalize()} of a call", _calls(found, links)),
        ("build", "Build", "Time of the build", build_chart(explanation)),
        ("passes", "Passes", "Pass by pass", _passes(explanation)),
        ("fusion", "Fusion", "What was fused, and why not", fusion(explanation.blocks, links)),
        ("memory", "Memory", "Memory", memory(explanation, links)),
        ("grids", "Launches", "Launches on devices", grids(explanation)),
        ("graphs", "Graphs", "Graphs of launches", graphs(explanation, links)),
        ("kernels", "Kernels", "Kernels", kernels(explanation, found, links)),
        ("images", "Images", "Images of the kernels", images(explanation.images)),
        ("libraries", "Libraries", "Library calls", _libraries(explanation)),
        ("bytecode", "Bytecode", "Bytecode", _bytecode(explanation)),
        ("script", "Program", "The program as it was written", _script(explanation)),
    ]
    """Id, name in the navigation, heading, HTML."""
    present = [each for each in sections if each[-1]]
    navigation = "".join(f'<a href="#{id}">{short}</a>' for id, short, _, _ in present)
    bodies = "".join(
        f'<section id="{id}"><h2>{heading}</h2>{body}</section>' for id, _, heading, body in present
    )
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{text(title)} – relaxpy</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f'<body><header><h1>{name(title)}</h1><nav aria-label="sections">{navigation}</nav>'
        '<input id="filter" type="search" hidden placeholder="filter by name" '
        'aria-label="filter passes, kernels, bindings and lines by name"></header>'
        f"<main>{bodies}</main><footer>relaxpy {text(__version__)}</footer>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _summary(explanation: Explanation) -> str:
    facts: list[tuple[str, str]] = [("target", explanation.target)]
    if explanation.sizes:
        facts.append(("sizes", ", ".join(f"{n} = {size}" for n, size in explanation.sizes.items())))
    if explanation.passes:
        changed = sum(run.script is not None for run in explanation.passes)
        facts.append(("passes", f"{len(explanation.passes)}, of which {changed} changed something"))
    if explanation.blocks:
        nodes = sum(len(block.nodes) for block in explanation.blocks)
        fused = sum(sum(n.group >= 0 for n in block.nodes) for block in explanation.blocks)
        facts.append(("fusion", f"{fused} of {nodes} bindings went into a group with others"))
    if explanation.relayouts is not None and any(explanation.relayouts):
        before, after = explanation.relayouts
        facts.append(
            ("layouts", f"{before} operators moved axes before convert-layout, {after} after it")
        )
    if explanation.kernels:
        cached = sum(kernel.cached for kernel in explanation.kernels)
        calls = sum(kernel.calls for kernel in explanation.kernels)
        words = f"{len(explanation.kernels)}, called at {calls} place{'s' * (calls != 1)}"
        facts.append(("kernels", words + (f"; {cached} from the cache" if cached else "")))
    for image in explanation.images if len(explanation.images) > 1 else ():
        facts.append(("image", str(image)))
    if explanation.steps:
        facts.append(("build", f"{sum(seconds for _, seconds in explanation.steps):.2f} s"))
    cells = "".join(f"<dt>{key}</dt><dd>{text(value)}</dd>" for key, value in facts)
    return f'<dl class="facts">{cells}</dl>' + _failure(explanation.error, explanation.failed)


def _failure(error: RelaxError | None, step: str) -> str:
    if error is None:
        return ""
    return (
        f'<div class="failure"><p>The build fails at <b>{text(step or "the start")}</b>; what '
        f"follows is how far it came.</p><pre>{lines(error.render())}</pre></div>"
    )


def _flows(explanation: Explanation, found: Sequence[Flow], links: Links) -> str:
    """The picture of each function, the first one unfolded, and all source lines as a table."""
    if not found:
        return ""
    unit = {"time": "time", "cost": "cost in bytes", "launches": "number of launches"}[
        found[0].unit
    ]
    about = (
        "<p>Source lines, the operators that they became, the kernels that compute them, and each kernel's share of a "
        f"call. A band is as wide as the {unit} that it carries; that of a fused kernel is divided between its "
        "operators by what each would cost alone.</p>"
    )
    parts = [flow_picture(flow, links) for flow in found]
    if len(found) > 1:
        parts = [
            folded(name(flow.function), part, open=n == 0)
            for n, (flow, part) in enumerate(zip(found, parts, strict=True))
        ]
    return about + "".join(parts) + source_lines(explanation, found, links)


def _calls(found: Sequence[Flow], links: Links) -> str:
    parts = [call_chart(flow, links, f"call{n}") for n, flow in enumerate(found)]
    if len(found) > 1:
        parts = [
            folded(name(flow.function), part, open=n == 0)
            for n, (flow, part) in enumerate(zip(found, parts, strict=True))
        ]
    return "".join(parts)


def _passes(explanation: Explanation) -> str:
    parts: list[str] = []
    before = explanation.script
    for phase, runs in itertools.groupby(explanation.passes, lambda run: run.phase):
        parts.append(f"<h3>{text(phase or 'passes')}</h3>")
        for changed, several in itertools.groupby(runs, lambda run: run.script is not None):
            if not changed:
                parts.append(_unchanged(list(several)))
                continue
            for run in several:
                parts.append(_pass(run, before))
                before = run.script or before
    if explanation.passes:
        parts.append(f"<h3>the last module</h3>{folded('as script', code(before))}")
    return "".join(parts)


def _unchanged(runs: Sequence[PassRun]) -> str:
    names = ", ".join(
        f'<span id="pass-{run.number}">{run.number}. {text(run.name)}</span>' for run in runs
    )
    key = " ".join(text(run.name) for run in runs)
    return f'<p class="row same" data-name="{key}">{names}: nothing to change</p>'


def _pass(run: PassRun, before: str) -> str:
    changes = changed_lines(before, run.script or before)
    added = sum(line.startswith("+") for line in changes)
    removed = sum(line.startswith("-") for line in changes)
    head = (
        f'<b>{run.number}. {text(run.name)}</b> <span class="plus">+{added}</span> '
        f'<span class="minus">−{removed}</span> <span class="number">{run.seconds * 1e3:.1f} ms</span>'
    )
    return (
        f'<details class="row" id="pass-{run.number}" data-name="{text(run.name)}"><summary>{head}</summary>'
        f"{diff(changes)}</details>"
    )


def _libraries(explanation: Explanation) -> str:
    if not explanation.libraries:
        return ""
    rows = (
        f'<tr><td>{name(function)}</td><td class="number">{count}</td></tr>'
        for function, count in sorted(explanation.libraries.items())
    )
    return table(("function", "places that call it"), rows)


def _bytecode(explanation: Explanation) -> str:
    """The functions of an executable from a file, of which there is no module to show."""
    exe = explanation.executable
    if exe is None or not explanation.is_compiled:
        return ""
    return folded("the functions as text", code(exe.as_text()))


def _script(explanation: Explanation) -> str:
    return folded("as script", code(explanation.script), open=True) if explanation.script else ""
