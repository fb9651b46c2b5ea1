"""The number of buffers that the program of a fusion group takes in a launch.

Some devices allow few: WebGPU guarantees eight storage buffers (`maxStorageBuffersPerShaderStage`). A group's program
takes one buffer for each tensor that it reads from outside, and one for each tensor that is used outside. Sizes and
other scalars are not buffers. Intermediate memory of the kernel does not count: it becomes a parameter only if the
limit allows it (`relaxpy.tir.lowering.workspace.lifted`), or it is passed between launches that each take fewer tensors
than the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from relaxpy.analysis.fusion_graph import FusionGraph
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.expr import Call, Constant, DataflowVar, Expr, Tuple, TupleGetItem, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.deduce import deduce

_Tensor: TypeAlias = tuple["int | Var | Constant", int]
"""The producer of a tensor (a node of the graph, or a value from outside), and the tensor's number among the producer's
results.
"""


@dataclass(frozen=True, slots=True)
class Need:
    """The buffers that a group's program needs."""

    read: Counter[_Tensor]
    """Tensors from outside, and the number of the group's nodes that read each."""
    used: Counter[int]
    """Nodes of the group with uses outside, and the number of these uses."""
    buffers: int
    """The number of inputs and outputs."""


class GroupBuffers:
    """The needs of a graph's groups. At the beginning each node is a group."""

    def __init__(self, graph: FusionGraph, mod: IRModule) -> None:
        self._graph = graph
        self._mod = mod
        self._numbers = {node.binding.var: i for i, node in enumerate(graph.nodes)}
        self._tensors = [_count(deduce(node.binding.var, mod)) for node in graph.nodes]
        """The number of tensors in each node's value."""
        reads = [Counter(set(self._reads(i))) for i in range(len(graph.nodes))]
        used = self._uses(reads)
        self.needs: list[Need] = [
            self._need(read, Counter({i: used[i]})) for i, read in enumerate(reads)
        ]
        """The need of each group, by its root."""

    def together(self, roots: Collection[int], root: Callable[[int], int]) -> Need:
        """The need of the groups of these roots merged into one."""
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
        args = expect(Tuple, expect(Call, node.binding.value).args[1])
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
        """The producer of a value, and the number of its first tensor among the producer's results. A field of a
        program's results is produced by the program."""
        number = self._numbers.get(value) if isinstance(value, Var) else None
        if number is None:
            return value, 0
        of = self._whole(number)
        item = self._graph.nodes[number].binding.value
        return (of, item.index) if isinstance(item, TupleGetItem) and of != number else (number, 0)

    def _whole(self, number: int) -> int:
        """For a field of a program's results, the node of the program; else the node itself."""
        value = self._graph.nodes[number].binding.value
        if isinstance(value, TupleGetItem) and isinstance(value.tuple, Var):
            source = self._numbers.get(value.tuple)
            if source is not None and self._graph.nodes[source].program is not None:
                return source
        return number

    def _uses(self, reads: list[Counter[_Tensor]]) -> Counter[int]:
        """The number of uses of each node's value: programs that read one of its tensors (each counts once, whatever
        else uses the value) and uses after the block."""
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
    """The number of tensors in a value of an annotation."""
    match annotation:
        case TensorType():
            return 1
        case TupleType(fields=fields):
            return sum(map(_count, fields))
        case _:
            return 0
