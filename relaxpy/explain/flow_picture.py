"""Draws a flow: source lines, operators and kernels in three columns, with bands between them as wide as the time.

Every node is a link. The page's script highlights all that belongs to a node when it is pointed at, tapped or has the
focus, and says its whole name below; without scripts a tooltip does. On a phone's width the same is a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from relaxpy.explain.explanation import SourceLine
from relaxpy.explain.flow import Flow
from relaxpy.explain.flow_graph import FlowGraph, Node, flow_graph
from relaxpy.explain.links import Links
from relaxpy.explain.markup import hue, link, name, percent, shortened, text

WIDTH = 1240
LINE_END, OPERATOR, OPERATOR_TEXT, KERNEL, KERNEL_TEXT, SHARE = 410, 560, 574, 800, 814, 1085
"""The x positions: the end of the lines' texts, bars of operators and kernels and their texts, and shares."""
BAR = 8
ROW, GAP = 17, 3
"""The least height of a node, and between nodes."""
WHOLE = 420
"""The height of 100 %."""
LETTER = 7.3
"""The width of a letter in the widest of the usual fonts."""


def flow_picture(flow: Flow, links: Links) -> str:
    """The picture as SVG, and the list that a narrow page has in its place."""
    graph = flow_graph(flow)
    return f'<div class="wide">{_picture(flow, graph, links)}</div>{_list(flow, graph, links)}'


def _picture(flow: Flow, graph: FlowGraph, links: Links) -> str:
    operators = _stacked(graph.operators, flow)
    kernels = _beside(
        graph.kernels, flow, [_middle(operators, graph, k) for k in range(len(graph.kernels))]
    )
    lines = _beside(graph.lines, flow, [_aim(operators, graph, n) for n in range(len(graph.lines))])
    height = max(
        (place.end for column in (lines, operators, kernels) for place in column), default=0
    )
    tokens = _Tokens(graph)
    most = max((kernel.weight for kernel in graph.kernels), default=0.0)
    parts = [
        *_bands(flow, graph, tokens, lines, operators, kernels),
        *(_line(flow, graph.lines[n], lines[n], tokens.line(n), links) for n in range(len(lines))),
        *(
            _operator(flow, graph, n, operators[n], tokens.operator(n))
            for n in range(len(operators))
        ),
        *(
            _kernel(flow, graph.kernels[n], n, kernels[n], tokens.kernel(n), links, most)
            for n in range(len(kernels))
        ),
    ]
    label = f"{flow.function}: source lines, operators, kernels and their share of the {flow.unit}"
    return (
        f'<svg class="flow" viewBox="0 0 {WIDTH} {height + 30:.0f}" width="{WIDTH}" role="group" '
        f'aria-label="{text(label)}"><g class="heads"><text x="0" y="14">source line</text>'
        f'<text x="{OPERATOR}" y="14">operator</text><text x="{KERNEL}" y="14">kernel</text>'
        f'<text x="{SHARE}" y="14">share</text></g><g transform="translate(0 26)">{"".join(parts)}</g></svg>'
    )


def _list(flow: Flow, graph: FlowGraph, links: Links) -> str:
    """Kernels with the source lines that they compute, and the operators of these."""
    lines_of: dict[int, dict[int, list[str]]] = {}
    for (n, o), weight in sorted(graph.reads.items()):
        node = graph.operators[o]
        words = f"{name(node.label)}{_times(len(node.vars))} {percent(flow.share(weight))}"
        lines_of.setdefault(graph.computed_by[o], {}).setdefault(n, []).append(words)
    items: list[str] = []
    for k, kernel in enumerate(graph.kernels):
        lines = "".join(
            f'<li>{_linked_line(graph.lines[n], links)}<div class="number">{", ".join(operators)}</div></li>'
            for n, operators in lines_of[k].items()
        )
        label = link(links.kernel(str(kernel.key)), kernel.label)
        share = flow.share(kernel.weight)
        items.append(
            f'<li>{label}{_times(kernel.launches)} <span class="number">{flow.words(kernel.weight)}, {percent(share)}'
            f'</span><div class="track"><i style="--lin:{100 * share:.2f};--h:{hue(k)}"></i></div>'
            f"<ul>{lines}</ul></li>"
        )
    return f'<ol class="steps">{"".join(items)}</ol>'


def _linked_line(node: Node, links: Links) -> str:
    first = next((line for line in node.lines if line is not None), None)
    source = _source(links, first) if len(node.lines) == 1 else ""
    return link(links.line(first), node.label) + (f" <code>{text(source)}</code>" if source else "")


def _times(count: int) -> str:
    return f" ×{count}" if count > 1 else ""


class _Place:
    """The vertical place of a node: its row, and its bar of the height of its share."""

    def __init__(self, top: float, bar: float) -> None:
        self.top = top
        self.bar = bar
        self.row = max(ROW, bar)

    @property
    def start(self) -> float:
        """The top of the bar, which is in the middle of the row."""
        return self.top + (self.row - self.bar) / 2

    @property
    def end(self) -> float:
        return self.top + self.row

    @property
    def middle(self) -> float:
        return self.top + self.row / 2


def _bar(node: Node, flow: Flow) -> float:
    return max(1.5, WHOLE * flow.share(node.weight))


def _stacked(nodes: Sequence[Node], flow: Flow) -> list[_Place]:
    """Nodes from top to bottom."""
    found: list[_Place] = []
    top = 0.0
    for node in nodes:
        place = _Place(top, _bar(node, flow))
        found.append(place)
        top = place.end + GAP
    return found


def _beside(nodes: Sequence[Node], flow: Flow, aims: Sequence[float]) -> list[_Place]:
    """Nodes in their order, each with its middle as near to its aim as the others allow: sequences of nodes that would
    overlap move together (the pool-adjacent-violators algorithm)."""
    places = [_Place(0.0, _bar(node, flow)) for node in nodes]
    runs: list[tuple[float, int, float]] = []
    """Sum of wanted tops, number of nodes, height: of nodes that touch each other."""
    for place, aim in zip(places, aims, strict=True):
        wanted, count, height = aim - place.row / 2, 1, place.row + GAP
        while runs and runs[-1][0] / runs[-1][1] + runs[-1][2] > wanted / count:
            above, number, tall = runs.pop()
            # Everything in the lower run lies `tall` below the upper run's top.
            wanted, count, height = above + wanted - tall * count, number + count, tall + height
        runs.append((wanted, count, height))
    position = 0
    lowest = 0.0
    for wanted, count, _ in runs:
        top = max(lowest, wanted / count)
        for place in places[position : position + count]:
            place.top = top
            top = place.end + GAP
        lowest = top
        position += count
    return places


def _middle(operators: Sequence[_Place], graph: FlowGraph, kernel: int) -> float:
    """The middle of a kernel's operators."""
    own = [operators[n] for n, k in enumerate(graph.computed_by) if k == kernel]
    return (own[0].top + own[-1].end) / 2


def _aim(operators: Sequence[_Place], graph: FlowGraph, line: int) -> float:
    """The middle of a line's operators, by their weight."""
    own = [(operators[o].middle, w + 1e-30) for (n, o), w in graph.reads.items() if n == line]
    return sum(y * w for y, w in own) / sum(w for _, w in own)


class _Tokens:
    """The names of nodes for the script that highlights: a node lists itself and all that it is joined with."""

    def __init__(self, graph: FlowGraph) -> None:
        self.graph = graph
        self.of_line: dict[int, list[int]] = {}
        self.of_operator: dict[int, list[int]] = {}
        self.of_kernel: dict[int, list[int]] = {}
        for line, operator in graph.reads:
            self.of_line.setdefault(line, []).append(operator)
            self.of_operator.setdefault(operator, []).append(line)
        for operator, kernel in enumerate(graph.computed_by):
            self.of_kernel.setdefault(kernel, []).append(operator)

    def line(self, n: int) -> str:
        operators = self.of_line.get(n, [])
        kernels = dict.fromkeys(self.graph.computed_by[o] for o in operators)
        return " ".join([f"l{n}", *(f"o{o}" for o in operators), *(f"k{k}" for k in kernels)])

    def operator(self, n: int) -> str:
        lines = self.of_operator.get(n, [])
        return " ".join([f"o{n}", f"k{self.graph.computed_by[n]}", *(f"l{each}" for each in lines)])

    def kernel(self, n: int) -> str:
        operators = self.of_kernel.get(n, [])
        lines = dict.fromkeys(each for o in operators for each in self.of_operator.get(o, []))
        return " ".join([f"k{n}", *(f"o{o}" for o in operators), *(f"l{each}" for each in lines)])


def _bands(
    flow: Flow,
    graph: FlowGraph,
    tokens: _Tokens,
    lines: Sequence[_Place],
    operators: Sequence[_Place],
    kernels: Sequence[_Place],
) -> Iterator[str]:
    """The bands from lines to operators and from operators to kernels."""
    from_line, from_operator = [p.start for p in lines], [p.start for p in operators]
    for (n, o), weight in sorted(graph.reads.items()):
        line, operator = graph.lines[n], graph.operators[o]
        left = lines[n].bar * (weight / line.weight if line.weight else 1)
        right = operators[o].bar * (weight / operator.weight if operator.weight else 1)
        about = f"{line.label} → {operator.label} in {graph.kernels[graph.computed_by[o]].label}"
        yield _band(
            (LINE_END + BAR, from_line[n], left),
            (OPERATOR, from_operator[o], right),
            graph.computed_by[o],
            f"l{n} o{o} k{graph.computed_by[o]}",
            f"{about}: {percent(flow.share(weight))}",
        )
        from_line[n] += left
        from_operator[o] += right
    from_kernel = [p.start for p in kernels]
    for o, k in enumerate(graph.computed_by):
        operator, kernel = graph.operators[o], graph.kernels[k]
        right = kernels[k].bar * (operator.weight / kernel.weight if kernel.weight else 1)
        yield _band(
            (OPERATOR + BAR, operators[o].start, operators[o].bar),
            (KERNEL, from_kernel[k], right),
            k,
            tokens.operator(o),
            f"{operator.label} in {kernel.label}: {percent(flow.share(operator.weight))}",
        )
        from_kernel[k] += right


def _band(
    start: tuple[float, float, float],
    end: tuple[float, float, float],
    colour: int,
    tokens: str,
    about: str,
) -> str:
    """A band between two intervals (x, y, height)."""
    (x, y, h), (u, v, g) = start, end
    m = (x + u) / 2
    return (
        f'<path class="band" data-n="{tokens}" style="--h:{hue(colour)}" d="M{x} {y:.1f}C{m} {y:.1f} {m} {v:.1f} '
        f"{u} {v:.1f}V{v + g:.1f}C{m} {v + g:.1f} {m} {y + h:.1f} {x} {y + h:.1f}Z"
        f'"><title>{text(about)}</title></path>'
    )


def _node(target: str, tokens: str, about: str, body: str) -> str:
    """A node: a link, if there is a place to go to."""
    inner = f"<title>{text(about)}</title>{body}"
    own = tokens.split(" ", 1)[0]
    marks = f'class="node" data-n="{tokens}" data-o="{own}"'
    if target:
        return f'<a href="#{target}" {marks}>{inner}</a>'
    return f'<g {marks} tabindex="0">{inner}</g>'


def _text(x: float, y: float, value: str, most: float, extra: str = "") -> str:
    letters = int(most / LETTER)
    return f'<text x="{x}" y="{y:.1f}"{extra}>{escape(shortened(value, letters))}</text>'


def _rect(x: float, place: _Place, colour: str) -> str:
    return f'<rect x="{x}" y="{place.start:.1f}" width="{BAR}" height="{place.bar:.1f}" style="{colour}"/>'


def _line(flow: Flow, node: Node, place: _Place, tokens: str, links: Links) -> str:
    first = next((line for line in node.lines if line is not None), None)
    source = _source(links, first) if len(node.lines) == 1 else ""
    share = percent(flow.share(node.weight))
    about = f"{node.label}: {share}" + (f"\u2002{source}" if source else "")
    y = place.middle + 4
    width = LETTER * len(shortened(node.label, 30)) + 10
    body = _text(0, y, node.label, 30 * LETTER, ' class="where"')
    if source:
        body += _text(width, y, source, LINE_END - 6 - width)
    return _node(
        links.line(first), tokens, about, body + _rect(LINE_END, place, "fill:var(--mark)")
    )


def _source(links: Links, line: SourceLine | None) -> str:
    return "" if line is None else links.explanation.texts.get(line, "")


def _operator(flow: Flow, graph: FlowGraph, n: int, place: _Place, tokens: str) -> str:
    node, kernel = graph.operators[n], graph.computed_by[n]
    several = _times(len(node.vars))
    names = ", ".join(dict.fromkeys(node.vars))
    about = f"{node.label}{several}: {percent(flow.share(node.weight))}; {shortened(names, 200)}"
    label = (
        shortened(node.label, int((KERNEL - OPERATOR_TEXT - 30) / LETTER) - len(several)) + several
    )
    body = _text(OPERATOR_TEXT, place.middle + 4, label, KERNEL - OPERATOR_TEXT)
    body += _rect(OPERATOR, place, f"fill:hsl({hue(kernel)} 60% 48%)")
    target = "" if node.group is None else Links.node(*node.group)
    return _node(target, tokens, about, body)


def _kernel(
    flow: Flow, node: Node, n: int, place: _Place, tokens: str, links: Links, most: float
) -> str:
    share = flow.share(node.weight)
    several = _times(node.launches)
    about = f"{node.label}: {flow.words(node.weight)}, {percent(share)}, {node.launches} launches"
    label = shortened(node.label, int((SHARE - KERNEL_TEXT - 10) / LETTER) - len(several)) + several
    y = place.middle
    colour = f"fill:hsl({hue(n)} 60% 48%)"
    length = max(1.0, (WIDTH - SHARE - 70) * node.weight / most if most else 0.0)
    body = (
        _text(KERNEL_TEXT, y + 4, label, SHARE - KERNEL_TEXT)
        + _rect(KERNEL, place, colour)
        + _text(SHARE + 48, y + 4, percent(share), 60, ' text-anchor="end"')
        + f'<rect x="{SHARE + 56}" y="{y - 5:.1f}" width="{length:.1f}" height="10" rx="2" '
        f'style="{colour}"/>'
    )
    return _node(links.kernel(str(node.key)), tokens, about, body)
