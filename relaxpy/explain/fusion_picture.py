"""Draws the fusion of dataflow blocks: a row for each binding, and arcs from values to the programs that read them.

Rows are text that is cut at the edge of the page, so no picture is wider than it. Of layers that repeat one is shown,
and all rows can be unfolded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from relaxpy.explain.explanation import FusedBlock, FusedNode
from relaxpy.explain.links import Links
from relaxpy.explain.markup import folded, hue, link, name, table, text
from relaxpy.transform.fuse_ops import Decision

ROW = 22
"""The height of a row in pixels."""
REACH, STEP = 118, 12
"""The width of the arcs' column, and how much wider an arc is for each row that it spans."""
MOST_OPEN = 160
"""The most rows that are shown without unfolding."""
LONGEST_PERIOD = 240
"""The most bindings of a layer that is recognised as a repeat."""


def fusion(blocks: Sequence[FusedBlock], links: Links) -> str:
    """The section about fusion; "" without bindings."""
    parts = [_block(number, block, links) for number, block in enumerate(blocks) if block.nodes]
    if not parts:
        return ""
    about = (
        "<p>Each row is a binding before fusion, with the pattern kind of its program and the kernel that computes it. "
        "An arc joins a value to a program that reads it: <span class='fused'>coloured</span> where both became one "
        "program, grey where not; point at a grey one to read why.</p>"
    )
    return about + "".join(parts)


def _block(number: int, block: FusedBlock, links: Links) -> str:
    apart = [d for d in block.decisions if not d.fused]
    count = f"{len(block.nodes)} binding{'s' * (len(block.nodes) != 1)}"
    repeat = _repeat(block.nodes)
    whole = _picture(number, block, range(len(block.nodes)), {}, links, anchors=True)
    if repeat is not None:
        start, period, times = repeat
        gap = range(start + period, start + period * times)
        visible = [n for n in range(len(block.nodes)) if n not in gap]
        note = f"the {period} bindings above, {times - 1} more times"
        short = _picture(number, block, visible, {gap.start: note}, links, anchors=False)
        body = short + folded(f"all {count}", whole)
    else:
        body = whole
    head = f"{name(block.function)}: {count}"
    shown = folded(head, body, open=repeat is not None or len(block.nodes) <= MOST_OPEN)
    if not apart:
        return shown
    rows = (
        f"<tr class='row' data-name=\"{text(producer.var)} {text(consumer.var)}\">"
        f"<td>{link(Links.node(number, d.producer), producer.var)}</td>"
        f"<td>{link(Links.node(number, d.consumer), consumer.var)}</td><td>{text(d.reason)}</td></tr>"
        for d in apart
        for producer, consumer in [(block.nodes[d.producer], block.nodes[d.consumer])]
    )
    pairs = f"{len(apart)} pair{'s' * (len(apart) != 1)} of {name(block.function)} not fused"
    return shown + folded(pairs, table(("value", "read by", "why not in one program"), rows))


def _repeat(nodes: Sequence[FusedNode]) -> tuple[int, int, int] | None:
    """The longest repeated sequence of bindings of the same programs: its start, length, and number of repeats. None if
    it would save less than it costs to explain."""
    keys = [(node.program, node.kind, node.group >= 0) for node in nodes]
    best: tuple[int, int, int, int] | None = None
    for period in range(3, min(LONGEST_PERIOD, len(keys) // 2) + 1):
        run = 0
        for at in range(len(keys) - period):
            run = run + 1 if keys[at] == keys[at + period] else 0
            times = run // period + 1
            saved = (times - 1) * period
            if times >= 2 and (best is None or saved > best[0]):
                best = (saved, at + 1 - (times - 1) * period, period, times)
    if best is None or best[0] < 12:
        return None
    _, start, period, times = best
    return start, period, times


def _picture(
    number: int,
    block: FusedBlock,
    visible: Sequence[int],
    gaps: Mapping[int, str],
    links: Links,
    *,
    anchors: bool,
) -> str:
    """The rows of the bindings in `visible`. `gaps`: a note in place of the bindings that are left out from there on.
    `anchors`: whether rows are targets of links."""
    rows: list[str] = []
    row_of: dict[int, int] = {}
    kernels = _kernels(number, block, links)
    places = [*visible, *gaps]
    for n in sorted(places):
        row_of[n] = len(rows)
        if n in gaps:
            rows.append(f'<div class="gap">⋮ {gaps[n]}</div>')
        else:
            rows.append(_row(number, n, block.nodes[n], kernels, anchors))
    arcs = "".join(_arcs(block, row_of))
    height = ROW * len(rows)
    picture = f'<svg width="{REACH}" height="{height}" viewBox="0 0 {REACH} {height}" aria-hidden="true">{arcs}</svg>'
    return f'<div class="fusion">{picture}<div class="nodes">{"".join(rows)}</div></div>'


def _kernels(number: int, block: FusedBlock, links: Links) -> dict[int, str]:
    """Group, or minus one minus the binding that is in none → links to its kernels."""
    found: dict[int, str] = {}
    for (b, n), kernels in links.kernels_of_group.items():
        if b == number:
            group = block.nodes[n].group
            found[group if group >= 0 else -1 - n] = " ".join(links.kernel_links(list(kernels)))
    return found


def _row(block: int, n: int, node: FusedNode, kernels: Mapping[int, str], anchors: bool) -> str:
    anchor = f' id="{Links.node(block, n)}"' if anchors else ""
    colour = f' style="--h:{hue(node.group)}"' if node.group >= 0 else ""
    kernel = kernels.get(node.group if node.group >= 0 else -1 - n, "")
    return (
        f'<div class="node row"{anchor} data-name="{text(node.var)} {text(node.program)}">'
        f'<i{colour}></i><span class="kind">{text(node.kind.replace("_", " "))}</span>'
        f'<span class="kernel">{kernel}</span><code title="{text(node.text)}">{text(node.text)}</code></div>'
    )


def _arcs(block: FusedBlock, row_of: Mapping[int, int]) -> Iterator[str]:
    """An arc for each decision about two visible bindings."""
    for decision in block.decisions:
        if decision.producer in row_of and decision.consumer in row_of:
            yield _arc(block, decision, row_of)


def _arc(block: FusedBlock, decision: Decision, row_of: Mapping[int, int]) -> str:
    rows = row_of[decision.producer], row_of[decision.consumer]
    start, end = (ROW * row + ROW / 2 for row in rows)
    reach = min(REACH * 1.3, 10 + STEP * abs(rows[1] - rows[0]))
    producer, consumer = block.nodes[decision.producer], block.nodes[decision.consumer]
    colour = f' style="--h:{hue(producer.group)}"' if decision.fused else ""
    about = f"{producer.var} → {consumer.var}: {decision.reason or 'one program'}"
    return (
        f'<path class="arc{" fused" if decision.fused else ""}"{colour} '
        f'd="M{REACH} {start}C{REACH - reach} {start} {REACH - reach} {end} {REACH} {end}">'
        f"<title>{text(about)}</title></path>"
    )
