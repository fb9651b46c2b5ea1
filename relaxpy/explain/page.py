"""Renders the explanation of a build as one self-contained HTML page: it needs no network and no other files.

The page contains everything when it is opened. Long parts are folded, and a box filters passes and kernels by name.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence
from html import escape

from relaxpy.errors import RelaxError
from relaxpy.explain.explanation import ExplainedKernel, Explanation, FusedBlock, PassRun
from relaxpy.runtime.inspect.memory_plan import FunctionPlan, shown
from relaxpy.version import __version__

ROW = 22
"""The height in pixels of a binding in the picture of a block."""
TEXT, LONGEST, LETTER = 178, 130, 8
"""The x position of a binding's text, right of the kind; its most letters, and the width of a letter."""
HUES = (210, 25, 130, 280, 50, 340, 170, 90)
"""The hues of groups. Neighbours have different colours."""


def page(explanation: Explanation) -> str:
    """The HTML text of the page."""
    sections = [
        ("summary", "Summary", _summary(explanation)),
        ("time", "Where the time went", _times(explanation)),
        ("passes", "Pass by pass", _passes(explanation)),
        ("fusion", "What was fused, and why not", _fusion(explanation.blocks)),
        ("memory", "Memory", _memory(explanation)),
        ("kernels", "Kernels", _kernels(explanation.kernels)),
        ("libraries", "Library calls", _libraries(explanation)),
        ("script", "The program as it was written", _code(explanation.script)),
    ]
    present = [(name, heading, body) for name, heading, body in sections if body]
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in present)
    bodies = "".join(
        f'<section id="{name}"><h2>{heading}</h2>{body}</section>'
        for name, heading, body in present
    )
    title = escape(explanation.title)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title} – relaxpy</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><header><h1>{title}</h1><nav>{links}</nav>"
        '<input id="filter" type="search" placeholder="filter passes, kernels, bindings" '
        'aria-label="filter"></header>'
        f"<main>{bodies}</main><footer>relaxpy {escape(__version__)}</footer>"
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _summary(explanation: Explanation) -> str:
    facts: list[tuple[str, str]] = [("target", explanation.target)]
    changed = sum(run.script is not None for run in explanation.passes)
    facts.append(("passes", f"{len(explanation.passes)}, of which {changed} changed something"))
    if explanation.blocks:
        nodes = sum(len(block.nodes) for block in explanation.blocks)
        fused = sum(sum(n.group >= 0 for n in block.nodes) for block in explanation.blocks)
        facts.append(("fusion", f"{fused} of {nodes} bindings went into a group with others"))
    if explanation.kernels:
        cached = sum(kernel.cached for kernel in explanation.kernels)
        calls = sum(kernel.calls for kernel in explanation.kernels)
        text = f"{len(explanation.kernels)}, called at {calls} places"
        facts.append(("kernels", text + (f"; {cached} from the cache" if cached else "")))
    if explanation.steps:
        facts.append(("time", f"{sum(seconds for _, seconds in explanation.steps):.2f} s"))
    rows = "".join(f"<tr><th>{key}</th><td>{escape(value)}</td></tr>" for key, value in facts)
    return f'<table class="facts">{rows}</table>' + _failure(explanation.error, explanation.failed)


def _failure(error: RelaxError | None, step: str) -> str:
    if error is None:
        return ""
    return (
        f'<div class="failure"><p>The build fails at <b>{escape(step or "the start")}</b>; what '
        f"follows is how far it came.</p><pre>{escape(error.render())}</pre></div>"
    )


def _times(explanation: Explanation) -> str:
    steps = [(name, seconds) for name, seconds in explanation.steps if seconds >= 5e-5]
    if not steps:
        return ""
    most = max(seconds for _, seconds in steps)
    rows = "".join(
        f'<tr class="row" data-name="{escape(name)}"><td>{escape(name)}</td>'
        f'<td class="number">{seconds * 1e3:.1f} ms</td>'
        f'<td class="wide"><span class="bar" style="width:{100 * seconds / most:.2f}%"></span></td></tr>'
        for name, seconds in steps
    )
    return f'<table class="times">{rows}</table>'


def _passes(explanation: Explanation) -> str:
    parts: list[str] = []
    before = explanation.script
    for phase, runs in itertools.groupby(explanation.passes, lambda run: run.phase):
        parts.append(f"<h3>{escape(phase or 'passes')}</h3>")
        for changed, several in itertools.groupby(runs, lambda run: run.script is not None):
            if not changed:
                parts.append(_unchanged(list(several)))
                continue
            for run in several:
                parts.append(_pass(run, before))
                before = run.script or before
    if explanation.passes:
        parts.append(f"<h3>the last module</h3>{_folded('as script', _code(before))}")
    return "".join(parts)


def _unchanged(runs: Sequence[PassRun]) -> str:
    names = ", ".join(f"{run.number}. {escape(run.name)}" for run in runs)
    return f'<p class="row same" data-name="{names}">{names}: nothing to change</p>'


def _pass(run: PassRun, before: str) -> str:
    name = f"<b>{run.number}. {escape(run.name)}</b>"
    time = f'<span class="number">{run.seconds * 1e3:.1f} ms</span>'
    lines, added, removed = _diff(before, run.script or before)
    counts = f'<span class="plus">+{added}</span> <span class="minus">−{removed}</span>'
    return (
        f'<details class="row" data-name="{escape(run.name)}"><summary>{name} {counts} {time}'
        f'</summary><pre class="diff">{"".join(lines)}</pre></details>'
    )


def _diff(before: str, after: str) -> tuple[list[str], int, int]:
    """The lines of a diff as HTML, and the numbers of added and removed lines."""
    shown: list[str] = []
    added = removed = 0
    old, new = before.splitlines(), after.splitlines()
    for number, line in enumerate(difflib.unified_diff(old, new, n=3, lineterm="")):
        if number < 2:
            continue  # names of files, of which there are none
        kind = {"+": "plus", "-": "minus", "@": "hunk"}.get(line[:1], "")
        added += kind == "plus"
        removed += kind == "minus"
        text = "⋯" if kind == "hunk" else escape(line)
        shown.append(f'<span class="{kind}">{text}\n</span>' if kind else f"{text}\n")
    return shown, added, removed


def _fusion(blocks: Sequence[FusedBlock]) -> str:
    parts = [
        "<p>Each row is a binding before fusion, with the pattern kind of its program. A bow joins a value to a "
        "program that reads it: <span class='fused'>coloured</span> where both became one program, grey where not; "
        "point at a grey one to read why.</p>"
    ]
    parts += [_block(block) for block in blocks if block.nodes]
    return "".join(parts) if len(parts) > 1 else ""


def _block(block: FusedBlock) -> str:
    apart = [d for d in block.decisions if not d.fused]
    rows = "".join(
        f"<tr class='row' data-name='{escape(block.nodes[d.producer].var)} {escape(block.nodes[d.consumer].var)}'>"
        f"<td>{escape(block.nodes[d.producer].var)}</td><td>{escape(block.nodes[d.consumer].var)}</td>"
        f"<td>{escape(d.reason)}</td></tr>"
        for d in apart
    )
    table = f"<table><tr><th>value</th><th>read by</th><th>why not in one program</th></tr>{rows}</table>"
    head = f"{escape(block.function)}: {len(block.nodes)} bindings"
    open_ = " open" if len(block.nodes) <= 120 else ""
    return (
        f"<details{open_}><summary>{head}</summary>"
        f'<div class="scroll">{"".join(_bows(block))}</div>'
        + (_folded(f"{len(apart)} pairs that are not fused", table) if apart else "")
        + "</details>"
    )


def _bows(block: FusedBlock) -> Iterator[str]:
    """The picture of a block: its bindings from top to bottom, with arcs on their left."""
    farthest = max((abs(d.consumer - d.producer) for d in block.decisions), default=1)
    left = 24 + min(260, 14 * farthest)
    height = ROW * len(block.nodes) + 8
    width = left + TEXT + LETTER * LONGEST
    yield f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
    for decision in block.decisions:
        start, end = (ROW * n + ROW / 2 + 4 for n in (decision.producer, decision.consumer))
        reach = min(left - 8, 8 + 14 * abs(decision.consumer - decision.producer))
        group = block.nodes[decision.producer].group
        colour = f' style="stroke:{_colour(group)}"' if decision.fused else ""
        told = decision.reason or "one program"
        producer, consumer = block.nodes[decision.producer].var, block.nodes[decision.consumer].var
        yield (
            f'<path class="bow{" fused" if decision.fused else ""}"{colour} '
            f'd="M{left} {start}C{left - reach} {start} {left - reach} {end} {left} {end}">'
            f"<title>{escape(producer)} → {escape(consumer)}: {escape(told)}</title></path>"
        )
    for number, node in enumerate(block.nodes):
        y = ROW * number + 4
        text = node.text if len(node.text) <= LONGEST else node.text[: LONGEST - 1] + "…"
        fill = _colour(node.group) if node.group >= 0 else "var(--faint)"
        yield (
            f'<g class="row" data-name="{escape(node.var)} {escape(node.text)}">'
            f'<rect x="{left + 2}" y="{y + 3}" width="8" height="{ROW - 6}" rx="2" style="fill:{fill}"/>'
            f'<text class="kind" x="{left + 16}" y="{y + 15}">{escape(node.kind.replace("_", " "))}</text>'
            f'<text x="{left + TEXT}" y="{y + 15}">{escape(text)}<title>{escape(node.text)}</title></text></g>'
        )
    yield "</svg>"


def _colour(group: int) -> str:
    return f"hsl({HUES[group % len(HUES)]} 60% 48%)"


def _memory(explanation: Explanation) -> str:
    if explanation.executable is None:
        return ""
    try:
        plan = explanation.executable.memory_plan(dict(explanation.sizes))
    except RelaxError as error:
        return f"<p>{escape(error.message)}.</p>" + (
            f"<p>{escape(error.help)}</p>" if error.help else ""
        )
    planning = "".join(map(_planning, plan.functions))
    pictures = f'<div class="scroll">{plan.svg()}</div>'
    if planning:
        before = f'<div class="scroll">{plan.apart().svg()}</div>'
        pictures = f"<h3>Before planning</h3>{before}<h3>After planning</h3>{pictures}"
    return f"<pre>{escape(str(plan))}</pre>{planning}{pictures}"


def _planning(function: FunctionPlan) -> str:
    """The effect of memory planning on a function, in words."""
    count = sum(tensor.storage >= 0 for tensor in function.tensors)
    if not count:
        return ""
    storages = f"{len(function.storages)} storage{'s' * (len(function.storages) != 1)}"
    return (
        f"<p><b>{escape(function.name)}</b>: before planning {count} tensors of "
        f"{shown(function.unshared)}, each with memory of its own; after it {storages} of "
        f"{shown(function.planned)}. At the busiest moment {shown(function.least)} are in use.</p>"
    )


def _kernels(kernels: Sequence[ExplainedKernel]) -> str:
    if not kernels:
        return ""
    rows = "".join(
        f'<tbody class="row" data-name="{escape(kernel.name)} {escape(kernel.rule)}"><tr>'
        f"<td>{escape(kernel.name)}</td><td>{escape(kernel.rule)}</td>"
        f'<td class="number">{kernel.calls}</td>'
        f"<td>{escape(kernel.flops or '?')}</td><td>{escape(kernel.nbytes or '?')}</td>"
        f'<td class="number">{kernel.seconds * 1e3:.0f} ms{" (cached)" if kernel.cached else ""}</td>'
        f'<td class="number">{kernel.size / 1024:.1f} KiB</td></tr><tr><td colspan="7">'
        f"{_folded('program', _code(kernel.program))}{_folded('loops as compiled', _code(kernel.scheduled))}"
        "</td></tr></tbody>"
        for kernel in kernels
    )
    return (
        "<p>FLOPs and bytes are over the program's own symbols: the floating-point operations of a run (a multiply-add "
        "is two), and what it must read and write.</p>"
        '<table class="kernels"><tr><th>kernel</th><th>rule</th><th>calls</th><th>FLOPs</th><th>bytes</th>'
        f"<th>compiled in</th><th>size</th></tr>{rows}</table>"
    )


def _libraries(explanation: Explanation) -> str:
    if not explanation.libraries:
        return ""
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{count}</td></tr>'
        for name, count in sorted(explanation.libraries.items())
    )
    return f"<table><tr><th>function</th><th>places that call it</th></tr>{rows}</table>"


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def _code(text: str) -> str:
    return f'<pre class="code">{escape(text)}</pre>'


_STYLE = """
:root{--ink:#1c1e21;--paper:#fff;--faint:#d5d9de;--soft:#f3f5f7;--link:#0b5cad;--plus:#0a7d33;--minus:#b3261e;
--plus-bg:#e5f6ea;--minus-bg:#fdeceb}
@media (prefers-color-scheme:dark){:root{--ink:#e4e6e9;--paper:#16181b;--faint:#3b4046;--soft:#1f2226;--link:#7ab8ff;
--plus:#6fd58e;--minus:#ff8f86;--plus-bg:#12301c;--minus-bg:#3a1917}}
*{box-sizing:border-box}
body{margin:0;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
header{position:sticky;top:0;z-index:1;display:flex;flex-wrap:wrap;gap:.4em 1.2em;align-items:baseline;
padding:.5em 1.5em;background:var(--paper);border-bottom:1px solid var(--faint)}
h1{font-size:1.15em;margin:0}h2{font-size:1.3em;margin:1.6em 0 .5em}h3{font-size:1em;margin:1.2em 0 .3em;opacity:.7}
nav{display:flex;flex-wrap:wrap;gap:.2em 1em}nav a{color:var(--link);text-decoration:none}
#filter{margin-left:auto;padding:.25em .6em;min-width:16em;color:inherit;background:var(--soft);
border:1px solid var(--faint);border-radius:5px;font:inherit}
main{padding:0 1.5em 3em;max-width:1500px}section{scroll-margin-top:3.5em}
footer{padding:1em 1.5em;opacity:.6}
table{border-collapse:collapse}th{text-align:left;font-weight:600}td,th{padding:.15em .8em .15em 0;vertical-align:top}
.facts th{padding-right:1.5em;font-weight:400;opacity:.7}.number{text-align:right;white-space:nowrap;opacity:.8}
.times{width:100%;max-width:60em}.wide{width:60%}.bar{display:block;height:.9em;margin-top:.3em;min-width:1px;
background:var(--link);border-radius:2px}
pre{margin:.4em 0;padding:.7em;overflow:auto;max-height:70vh;background:var(--soft);border-radius:6px;
font:12.5px/1.45 ui-monospace,monospace}
.diff span{display:block}.diff .plus{background:var(--plus-bg)}.diff .minus{background:var(--minus-bg)}
.diff .hunk{opacity:.5}.plus{color:var(--plus)}.minus{color:var(--minus)}.diff .plus,.diff .minus{color:inherit}
summary{cursor:pointer;padding:.15em 0}.same{margin:.15em 0;opacity:.55}
.failure{margin:1em 0;padding:.3em 1em;border-left:4px solid var(--minus);background:var(--minus-bg)}
.scroll{overflow:auto;max-height:85vh}svg text{font:12px ui-monospace,monospace;fill:var(--ink)}
svg .kind{opacity:.6}.bow{fill:none;stroke:var(--faint);stroke-width:1.5}.bow.fused{stroke-width:2.2}
.bow:hover{stroke:var(--minus);stroke-width:3}.kernels tbody{border-top:1px solid var(--faint)}
.kernels td:nth-child(4),.kernels td:nth-child(5){max-width:26em;overflow-wrap:anywhere;
font:12.5px ui-monospace,monospace}
.fused{color:var(--link);font-weight:600}.hidden{display:none!important}g.hidden{display:inline!important;opacity:.15}
"""

_SCRIPT = """
const rows=[...document.querySelectorAll('.row')];
document.getElementById('filter').addEventListener('input',event=>{
const wanted=event.target.value.trim().toLowerCase();
for(const row of rows)row.classList.toggle('hidden',!!wanted&&!row.dataset.name.toLowerCase().includes(wanted));});
"""
