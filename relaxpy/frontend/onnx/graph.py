"""The nodes of an ONNX model as plain data, with a text of them in which errors are shown.

The text has a line for each graph and each node, those of branches and loops too, indented:

    main(x) => (y)
        y = Conv(x, weight)  # conv1
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.errors import Span, UsageError
from relaxpy.frontend.onnx.arrays import array_of
from relaxpy.narrow import is_list

MOST_NESTED = 64
"""The nesting depth of branches, loops and functions."""


@dataclass(frozen=True)
class Node:
    """A call of an operator or function. An input of the name "" is left out."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    """Numbers, texts, arrays, graphs, and lists of them."""
    references: Mapping[str, str]
    """Attribute → attribute of the function that the node is in."""
    span: Span
    proto: Any = field(repr=False, compare=False)

    @property
    def title(self) -> str:
        """The operator's name, with its domain if that is not ONNX's own."""
        return f"{self.domain}.{self.op}" if self.domain else self.op


@dataclass(frozen=True)
class Graph:
    """A graph, or the body of a function."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    initializers: Mapping[str, np.ndarray]
    span: Span
    proto: Any = field(repr=False, compare=False)

    def all_nodes(self) -> Iterator[Node]:
        """The nodes, and those of the graphs in them."""
        for node in self.nodes:
            yield node
            for value in node.attributes.values():
                for each in value if is_list(value) else (value,):
                    if isinstance(each, Graph):
                        yield from each.all_nodes()


class Reader:
    """Makes graphs of protos."""

    def __init__(self, file: str, folder: Path | None) -> None:
        self.file = f"<{file}>"
        """The name of the text, which is no file."""
        self.folder = folder

    def graph(self, proto: Any) -> Graph:
        """The GraphProto of a model. UsageError (`onnx-file`) for one that is damaged."""
        text = self._listing(proto)
        # Errors of the running program show its lines, too.
        linecache.cache[self.file] = len(text), None, text.splitlines(keepends=True), self.file
        return _Text(self.file, text).graph(proto, self.folder)

    def function(self, proto: Any) -> Graph:
        """A FunctionProto."""
        return _Text(self.file, self._listing(proto)).graph(proto, self.folder)

    def attribute(self, proto: Any) -> Any:
        """The value of an attribute that a function has of itself."""
        text = "\n".join([f"attribute {proto.name}", *_of_graphs([proto], 0)])
        reader = _Text(self.file, text)
        return reader.attribute(proto, self.folder, reader.span())

    def _listing(self, proto: Any) -> str:
        return "\n".join(_lines(proto, 0))


def _lines(proto: Any, depth: int) -> Iterator[str]:
    if depth > MOST_NESTED:
        raise UsageError("onnx-file", f"the graph {proto.name!r} is nested too deeply")
    inputs, outputs = (_joined(_names(each)) for each in (proto.input, proto.output))
    yield _line(depth, f"{_joined([proto.name])}({inputs}) => ({outputs})")
    for node in proto.node:
        title = _joined([node.domain, node.op_type], ".") if node.domain else node.op_type
        outputs = _joined(node.output) or "()"
        name = f"  # {node.name}" if node.name else ""
        yield _line(depth + 1, f"{outputs} = {_joined([title])}({_joined(node.input)}){name}")
        yield from _of_graphs(node.attribute, depth + 2)


def _of_graphs(attributes: Any, depth: int) -> Iterator[str]:
    """The lines of the graphs in attributes."""
    for each in attributes:
        if each.ref_attr_name:
            continue
        if each.type == 5:
            yield from _lines(each.g, depth)
        elif each.type == 10:
            for graph in each.graphs:
                yield from _lines(graph, depth)


def _joined(names: Sequence[Any], by: str = ", ") -> str:
    for name in names:
        if not isinstance(name, str):  # protobuf gives the bytes
            raise UsageError("onnx-file", f"the name {name!r} is no text in UTF-8")
    return by.join(names)


def _line(depth: int, text: str) -> str:
    """A line, without characters at which `str.splitlines` ends one."""
    return "    " * depth + re.sub(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", " ", text)


class _Text:
    """The text, and the line that is reached."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.lines = text.split("\n")
        self.line = 0

    def span(self) -> Span:
        """The next line."""
        text = self.lines[self.line]
        self.line += 1
        start = len(text) - len(text.lstrip())
        return Span(self.file, self.line, start, self.line, len(text), source=self.text)

    def graph(self, proto: Any, folder: Path | None) -> Graph:
        span = self.span()
        nodes = _in_order([self.node(each, folder) for each in proto.node])
        stored = getattr(proto, "initializer", ())
        if getattr(proto, "sparse_initializer", ()):
            raise UsageError(
                "onnx-operator",
                "sparse initializers are not supported",
                span=span,
                help="write them densely",
            )
        return Graph(
            proto.name,
            tuple(_names(proto.input)),
            tuple(_names(proto.output)),
            nodes,
            {each.name: array_of(each, folder, span) for each in stored},
            span,
            proto,
        )

    def node(self, proto: Any, folder: Path | None) -> Node:
        span = self.span()
        attributes: dict[str, Any] = {}
        references: dict[str, str] = {}
        for each in proto.attribute:
            if each.ref_attr_name:
                references[each.name] = each.ref_attr_name
            else:
                attributes[each.name] = self.attribute(each, folder, span)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        return Node(
            proto.op_type, domain, proto.name, tuple(proto.input), tuple(proto.output), attributes,
            references, span, proto,
        )  # fmt: skip

    def attribute(self, proto: Any, folder: Path | None, span: Span) -> Any:
        match proto.type:
            case 1:
                return proto.f
            case 2:
                return proto.i
            case 3:
                return proto.s.decode(errors="replace")
            case 4:
                return array_of(proto.t, folder, span)
            case 5:
                return self.graph(proto.g, folder)
            case 6:
                return list(proto.floats)
            case 7:
                return list(proto.ints)
            case 8:
                return [each.decode(errors="replace") for each in proto.strings]
            case 9:
                return [array_of(each, folder, span) for each in proto.tensors]
            case 10:
                return [self.graph(each, folder) for each in proto.graphs]
            case 13:
                return proto.tp
            case _:
                raise UsageError(
                    "onnx-operator", f"the attribute {proto.name!r} is of a kind that is not supported", span=span
                )  # fmt: skip


def _in_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes, each behind those that compute what it reads, else as they stand. ONNX wants files to be in order;
    converters append nodes nevertheless, and ONNX Runtime sorts. Those of a cycle stay at the end, where what is
    missing is said."""
    makers = {name: at for at, node in enumerate(nodes) for name in node.outputs if name}
    needs = [{makers[name] for name in _read(node) if name in makers} for node in nodes]
    if all(each < at for at, needed in enumerate(needs) for each in needed):
        return tuple(nodes)
    readers: dict[int, list[int]] = {}
    for at, needed in enumerate(needs):
        for each in needed:
            readers.setdefault(each, []).append(at)
    left = [len(needed) for needed in needs]
    ready = [at for at, count in enumerate(left) if not count]
    order: dict[int, None] = {}
    while ready:  # a heap: of those that may come next, the first
        at = heappop(ready)
        order[at] = None
        for reader in readers.get(at, ()):
            left[reader] -= 1
            if not left[reader]:
                heappush(ready, reader)
    return tuple(nodes[at] for at in (*order, *(at for at in range(len(nodes)) if at not in order)))


def _read(node: Node) -> set[str]:
    """The names of values that a node reads, and that graphs in it read from outside of them."""
    found = set(node.inputs)
    for value in node.attributes.values():
        for graph in value if is_list(value) else (value,):
            if isinstance(graph, Graph):
                inner = {*graph.outputs}.union(*map(_read, graph.nodes))
                own = {*graph.inputs, *graph.initializers}.union(*(n.outputs for n in graph.nodes))
                found |= inner - own
    return found


def _names(values: Sequence[Any]) -> list[Any]:
    return [each if isinstance(each, (str, bytes)) else each.name for each in values]
