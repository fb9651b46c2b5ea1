"""How many buffers the program of a fusion group takes in a launch.

Some devices take few: WebGPU guarantees eight storage buffers (`maxStorageBuffersPerShaderStage`). A group's program
takes each tensor that it reads from outside, and each that something outside uses. Sizes and other numbers are no
buffers. Memory that parts of a kernel hand on to each other does not count here: it becomes a parameter only where
there is room (`relaxpy.tir.lowering.workspace.lifted`), or lies between launches that take fewer tensors than the
whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from relaxpy.analysis.fusion_graph import FusionGraph
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.expr import Call, Constant, DataflowVar, Expr, Tuple, TupleGetItem, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.deduce import deduce

_Tensor: TypeAlias = tuple["int | Var | Constant", int]
"""What gives it, a node of the graph or a value from outside, and its number among the tensors of that."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a group's program takes."""

    read: Counter[_Tensor]
    """Tensors from outside, and how many of the group's nodes read each."""
    used: Counter[int]
    """Nodes of the group with uses outside, and how many these are."""
    buffers: int
    """Inputs and outputs."""


class GroupBuffers:
    """The needs of a graph's groups, beginning with each node alone."""

    def __init__(self, graph: FusionGraph, mod: IRModule) -> None:
        self._graph = graph
        self._mod = mod
        self._numbers = {node.binding.var: i for i, node in enumerate(graph.nodes)}
        self._tensors = [_count(deduce(node.binding.var, mod)) for node in graph.nodes]
        """How many tensors each node's value is."""
        reads = [Counter(set(self._reads(i))) for i in range(len(graph.nodes))]
        used = self._uses(reads)
        self.needs: list[Need] = [
            self._need(read, Counter({i: used[i]})) for i, read in enumerate(reads)
        ]
        """Of each root."""

    def together(self, roots: Collection[int], root: Callable[[int], int]) -> Need:
        """What the groups of these roots need as one."""
        parts = [self.needs[each] for each in roots]
        used = Counter[int]()
        read = Counter[_Tensor]()
        for part in parts:
            used.update(part.used)
        for part in parts:
            for tensor, count in part.read.items():
                source = tensor[0]
                if isinstance(source, int) and root(source) in roots:
                    used[source] -= count
                else:
                    read[tensor] += count
        return self._need(read, used)

    def _need(self, read: Counter[_Tensor], used: Counter[int]) -> Need:
        used = +used
        return Need(read, used, len(read) + sum(self._tensors[node] for node in used))

    def _reads(self, number: int) -> Iterator[_Tensor]:
        """The tensors that a node's program reads."""
        node = self._graph.nodes[number]
        if node.program is None:
            return
        assert isinstance(node.binding.value, Call)
        args = node.binding.value.args[1]
        assert isinstance(args, Tuple)
        for arg in args.fields:
            yield from self._leaves(arg)

    def _leaves(self, arg: Expr) -> Iterator[_Tensor]:
        if isinstance(arg, Tuple):
            for item in arg.fields:
                yield from self._leaves(item)
        elif isinstance(arg, Var | Constant):
            source, first = self._source(arg)
            yield from ((source, first + i) for i in range(_count(deduce(arg, self._mod))))

    def _source(self, value: Var | Constant) -> _Tensor:
        """What gives a value, and the number of its first tensor there. A part of a program's results is given by the
        program."""
        number = self._numbers.get(value) if isinstance(value, Var) else None
        if number is None:
            return value, 0
        of = self._whole(number)
        item = self._graph.nodes[number].binding.value
        return (of, item.index) if isinstance(item, TupleGetItem) and of != number else (number, 0)

    def _whole(self, number: int) -> int:
        """For a part of a program's results the node of the program, else the node itself."""
        value = self._graph.nodes[number].binding.value
        if isinstance(value, TupleGetItem) and isinstance(value.tuple, Var):
            source = self._numbers.get(value.tuple)
            if source is not None and self._graph.nodes[source].program is not None:
                return source
        return number

    def _uses(self, reads: list[Counter[_Tensor]]) -> Counter[int]:
        """How many uses each node's value has: programs that read one of its tensors, once for each, whatever else is
        done with it, and what happens behind the block."""
        used = Counter[int]()
        for number, node in enumerate(self._graph.nodes):
            whole = self._whole(number)
            used[whole] += not isinstance(node.binding.var, DataflowVar)
            for source, _ in reads[number]:
                if isinstance(source, int):
                    used[source] += 1
            if node.program is None and whole == number:
                used.update({self._whole(source) for source in node.inputs})
        return used


def _count(annotation: Annotation) -> int:
    """How many tensors a value of an annotation is."""
    match annotation:
        case TensorType():
            return 1
        case TupleType(fields=fields):
            return sum(map(_count, fields))
        case _:
            return 0
