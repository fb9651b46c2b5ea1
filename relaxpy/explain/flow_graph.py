"""The graph behind the picture of a flow: source lines → operators → kernels, with repeats merged.

An operator is a tensor program before fusion in a kernel, so the layers of a model share one. Source lines that lead to
the same operators are merged where there are many, and small nodes are put together where there are still too many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from relaxpy.explain.explanation import SourceLine
from relaxpy.explain.flow import Flow

MOST_LINES, MOST_OPERATORS, MOST_KERNELS = 40, 110, 32
"""The most nodes of each column."""
_REST = "\0rest"
"""The key of a node that stands for all small ones."""


@dataclass
class Node:
    """A node of one column."""

    key: Hashable
    label: str
    weight: float = 0.0
    lines: dict[SourceLine | None, None] = field(default_factory=dict[SourceLine | None, None])
    """The source lines that it comes from."""
    vars: list[str] = field(default_factory=list[str])
    """The bindings that it computes."""
    group: tuple[int, int] | None = None
    """The first fusion group that it belongs to."""
    launches: int = 0


@dataclass
class FlowGraph:
    """Three columns of nodes, and the weights between neighbouring columns by index."""

    lines: list[Node]
    operators: list[Node]
    kernels: list[Node]
    computed_by: list[int]
    """Operator → its kernel."""
    reads: dict[tuple[int, int], float]
    """Line and operator → the time of what the line contributes to the operator."""


def flow_graph(flow: Flow) -> FlowGraph:
    """The graph of a flow. Nodes are in order of execution, and the operators of a kernel beside each other."""
    kernels: dict[Hashable, Node] = {}
    operators: dict[Hashable, Node] = {}
    lines: dict[Hashable, Node] = {}
    kept = _largest(
        {name: sum(t.weight for t in each) for name, each in flow.by_kernel()}, MOST_KERNELS
    )
    names = [timed.launch.name for timed in flow.launches]
    programs = {(t.launch.name, part.program) for t in flow.launches for part in t.parts}
    coarse = len(programs) > MOST_OPERATORS
    between: dict[tuple[Hashable, Hashable], float] = defaultdict(float)
    owner: dict[Hashable, Hashable] = {}
    others = len(set(names) - kept)
    for timed in flow.launches:
        name = timed.launch.name
        key = name if name in kept else _REST
        label = name if name in kept else f"{others} other kernels"
        kernel = kernels.setdefault(key, Node(key, label))
        kernel.weight += timed.weight
        kernel.launches += timed.times
        for part in timed.parts:
            merged = coarse or key == _REST
            inner = (key, _REST if merged else part.program)
            operator = operators.setdefault(inner, Node(inner, "" if merged else part.program))
            operator.weight += part.weight
            operator.vars.append(part.var)
            operator.lines[part.source] = None
            operator.group = operator.group or timed.group
            owner[inner] = key
            line = lines.setdefault(part.source, Node(part.source, ""))
            line.weight += part.weight
            line.lines[part.source] = None
            between[part.source, inner] += part.weight
    for operator in operators.values():
        operator.label = operator.label or f"{len(operator.vars)} operators"
    merged_lines = _merged(lines, between)
    reads: dict[tuple[Hashable, Hashable], float] = defaultdict(float)
    shown: dict[Hashable, Node] = {}
    for key, node in merged_lines.items():
        into = shown.setdefault(node.key, node)
        for inner in operators:
            if (key, inner) in between:
                reads[into.key, inner] += between[key, inner]
    for node in shown.values():
        node.label = _line_label(node)
    order = list(kernels)
    by_kernel = sorted(operators.values(), key=lambda node: order.index(owner[node.key]))
    position = {node.key: n for n, node in enumerate(by_kernel)}
    ordered_lines = list(shown.values())
    line_position = {node.key: n for n, node in enumerate(ordered_lines)}
    return FlowGraph(
        ordered_lines,
        by_kernel,
        list(kernels.values()),
        [order.index(owner[node.key]) for node in by_kernel],
        {(line_position[a], position[b]): weight for (a, b), weight in reads.items()},
    )


def _largest(weights: dict[str, float], most: int) -> set[str]:
    """The names with the largest weights: all if there are at most `most`, else one fewer, for the rest."""
    names = sorted(weights, key=lambda name: -weights[name])
    return set(names if len(names) <= most else names[: most - 1])


def _merged(
    lines: dict[Hashable, Node], between: dict[tuple[Hashable, Hashable], float]
) -> dict[Hashable, Node]:
    """Line → the node that it is part of. If there are many lines, those that lead to the same operators are one node;
    if there are still many, so are the smallest."""
    if len(lines) <= MOST_LINES:
        return lines
    targets: dict[Hashable, list[Hashable]] = defaultdict(list)
    for line, operator in between:
        targets[line].append(operator)
    by_targets: dict[Hashable, Node] = {}
    found: dict[Hashable, Node] = {}
    for key, node in lines.items():
        found[key] = _joined(by_targets.setdefault(frozenset(targets[key]), Node(key, "")), node)
    if len(by_targets) <= MOST_LINES:
        return found
    nodes = sorted(by_targets.values(), key=lambda node: -node.weight)
    small = {id(node) for node in nodes[MOST_LINES - 1 :]}
    rest = Node(_REST, "")
    return {
        key: _joined(rest, lines[key]) if id(node) in small else node for key, node in found.items()
    }


def _joined(into: Node, node: Node) -> Node:
    into.weight += node.weight
    into.lines |= node.lines
    return into


def _line_label(node: Node) -> str:
    known = [line for line in node.lines if line is not None]
    if not known:
        return "(not from a source line)"
    if len(node.lines) == 1:
        return str(known[0])
    return f"{known[0]} and {_others(len(node.lines) - 1, known)}"


def _others(count: int, known: Iterable[SourceLine]) -> str:
    numbers = [str(line.line) for line in known][1:4]
    listed = ", ".join(numbers)
    return listed if count <= len(numbers) else f"{count} other lines"
