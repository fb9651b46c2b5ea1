"""FuseOps: tensor programs that belong together are grouped in functions of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from relaxpy.analysis.fusion_graph import FusionGraph
from relaxpy.analysis.group_buffers import GroupBuffers, Need
from relaxpy.analysis.relayout import Relayouts
from relaxpy.ir.expr import DataflowBlock, TupleGetItem
from relaxpy.ir.module import IRModule
from relaxpy.tir.forms.pattern_kind import PatternKind
from relaxpy.tir.forms.stages import LARGEST_VALUE
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.buffer_limit import buffer_limit
from relaxpy.transform.fuse_tensor_ir import program_groups, without_marks
from relaxpy.transform.outline import PRIMITIVE, Region, outline

LONGEST_NAME = 60
LONGEST_PROGRAM = LARGEST_VALUE
"""How long a fused program may be (`relaxpy.tir.forms.cost.length`): behind that the schedules keep values in memory
anyway, and LLVM takes seconds. How many buffers it may take is the target's to say
(`Target.max_buffers_per_launch`)."""


@dataclass(frozen=True)
class FuseOps(Pass):
    """Cut groups of `call_tir` out of dataflow blocks, by the pattern kinds of their tensor programs (paper §4.2,
    algorithm 2; TVM's `FuseOps`), into private functions marked `Primitive`. A group is a value with everything between
    it and what all its uses come together in (its post-dominator), where the kinds allow it:

    * element-wise programs go behind a matrix product, and into whatever comes next;
    * injective ones join each other and end in a reduction;
    * one that decompresses (it reads fewer bytes than it writes: `decode_q4` of figure 9) goes into the matrix product
      behind it;
    * one that only moves data (transpositions, heads split) goes into the matrix product before or behind it, where
      that can go through memory in strides as well as without.

    Groups end before their program is longer than `LONGEST_PROGRAM`, or takes more buffers than a launch on the target
    may. Symbols that no parameter of the group has alone are passed in a shape (figure 8).

    Before:
        @I.ir_module
        class Module:

            @T.prim_func(private=True)
            def add(
                x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer(("n",), "float32")
            ):
                n = T.int64()
                for i in range(n):
                    with T.sblock("add"):
                        vi = T.axis.spatial(n, i)
                        z[vi] = x[vi] + y[vi]

            @T.prim_func(private=True)
            def relu(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("relu"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.max(x[vi], T.float32(0))

            @R.function
            def main(
                x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("n",), dtype="float32")
            ) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                with R.dataflow():
                    lv = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((n,), dtype="float32"))
                    gv = R.call_tir(cls.relu, (lv,), out_ty=R.Tensor((n,), dtype="float32"))
                    R.output(gv)
                return gv
    After:
        @I.ir_module
        class Module:

            @T.prim_func(private=True)
            def add(
                x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer(("n",), "float32")
            ):
                n = T.int64()
                for i in range(n):
                    with T.sblock("add"):
                        vi = T.axis.spatial(n, i)
                        z[vi] = x[vi] + y[vi]

            @T.prim_func(private=True)
            def relu(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("relu"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.max(x[vi], T.float32(0))

            @R.function
            def main(
                x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("n",), dtype="float32")
            ) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                with R.dataflow():
                    gv = cls.fused_add_relu(x, y)
                    R.output(gv)
                return gv

            @R.function(private=True)
            def fused_add_relu(
                x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("n",), dtype="float32")
            ) -> R.Tensor(("n",), dtype="float32"):
                R.func_attr({"Primitive": True})
                n = T.int64()
                cls = Module
                with R.dataflow():
                    lv = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((n,), dtype="float32"))
                    gv = R.call_tir(cls.relu, (lv,), out_ty=R.Tensor((n,), dtype="float32"))
                    R.output(gv)
                return gv
    """

    name: ClassVar[str] = "fuse-ops"
    relayouts: bool = True
    """Whether programs that only move data go into matrix products that read or write through strides instead."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        mod = without_marks(mod, program_groups(mod))
        relayouts = Relayouts() if self.relayouts else None
        limit = buffer_limit(mod, ctx.target)
        return outline(mod, partial(_groups, relayouts=relayouts, most_buffers=limit))


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a value and a program that reads it are in one group, or are not."""

    producer: int
    """Binding of the block, by its number."""
    consumer: int
    fused: bool
    reason: str


@dataclass(frozen=True, slots=True)
class FusionReport:
    """What FuseOps does with a dataflow block."""

    graph: FusionGraph
    groups: Sequence[Sequence[int]]
    """Bindings that become one program."""
    decisions: Sequence[Decision]
    """One for each value and program that reads it, in the order of the block."""


def explain_fusion(
    block: DataflowBlock, mod: IRModule, *, relayouts: bool = True, most_buffers: int | None = None
) -> FusionReport:
    """The groups that FuseOps makes of a block, with a reason for each pair of a value and a use of it. `most_buffers`
    is how many a launch may take (`relaxpy.transform.buffer_limit`)."""
    graph = FusionGraph(block, mod)
    found = Relayouts() if relayouts else None
    partition = _Partition(graph, mod, found, most_buffers, explaining=True)
    partition.run()
    decisions: list[Decision] = []
    for producer in range(len(graph.nodes)):
        for consumer in dict.fromkeys(graph.users(producer)):
            fused = partition.root(producer) == partition.root(consumer)
            reason = partition.reasons.get(producer, "")
            decisions.append(Decision(producer, consumer, fused, "" if fused else reason))
    return FusionReport(graph, list(partition.groups()), decisions)


def _groups(
    block: DataflowBlock, mod: IRModule, *, relayouts: Relayouts | None, most_buffers: int | None
) -> list[Region]:
    graph = FusionGraph(block, mod)
    partition = _Partition(graph, mod, relayouts, most_buffers)
    partition.run()
    regions: list[Region] = []
    for group in partition.groups():
        members = [i for i in group if _computed_in(graph, i, group)]
        programs = [p for i in members if (p := graph.nodes[i].program) is not None]
        if len(programs) > 1:
            name = "_".join(["fused", *programs])
            regions.append(
                Region(frozenset(members), name[:LONGEST_NAME].rstrip("_"), {PRIMITIVE: True})
            )
    return regions


def _computed_in(graph: FusionGraph, node: int, group: Sequence[int]) -> bool:
    """Whether a node belongs into a function of its group: a part of a tuple only where the tuple does."""
    value = graph.nodes[node].binding.value
    if not isinstance(value, TupleGetItem):
        return True
    return any(graph.nodes[i].binding.var is value.tuple for i in group)


@dataclass
class _Partition:
    """Groups of nodes, as a union-find forest. The root of a group is the node that all of it leads to."""

    graph: FusionGraph
    mod: IRModule
    relayouts: Relayouts | None
    most_buffers: int | None = None
    """How many buffers the program of a group may take; None: any number."""
    explaining: bool = False
    """Is `reasons` asked for?"""
    parent: list[int] = field(default_factory=list)
    kind: list[PatternKind] = field(default_factory=list)
    """Of each root: the kind of its group."""
    members: list[list[int]] = field(default_factory=list)
    """Of each root: the nodes of its group."""
    length: list[int] = field(default_factory=list)
    """Of each root: how long the programs of its group are together."""
    buffers: GroupBuffers | None = None
    """Of each root: the buffers that the program of its group takes; counted where these are limited."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Of nodes that were not merged with what follows: why, for people."""

    def run(self) -> None:
        """Merge every node with its post-dominator where the kinds allow it: element-wise ones first, so that a matrix
        product takes what follows it before a transposition does."""
        self.parent = list(range(len(self.graph.nodes)))
        self.kind = [node.kind for node in self.graph.nodes]
        self.members = [[node] for node in range(len(self.graph.nodes))]
        self.length = [node.length for node in self.graph.nodes]
        if self.most_buffers is not None:
            self.buffers = GroupBuffers(self.graph, self.mod)
        for injective in (False, True):
            for node in range(len(self.graph.nodes)):
                self.visit(node, injective)

    def groups(self) -> Iterable[list[int]]:
        """The groups, and the nodes of each, in the order of the block."""
        return sorted(sorted(group) for group in self.members if group)

    def root(self, node: int) -> int:
        while self.parent[node] != node:
            self.parent[node] = self.parent[self.parent[node]]
            node = self.parent[node]
        return node

    def visit(self, node: int, injective: bool) -> None:
        dominator = self.graph.post_dominator(node)
        if dominator is None:
            self.refuse(
                node,
                lambda: (
                    "its value leaves the block whole"
                    if self.graph.nodes[node].escapes
                    else "its uses come together in no one program"
                ),
            )
            return
        if self.root(node) == self.root(dominator.node):
            return
        if not self.allowed(node, dominator.node, dominator.edge, injective):
            self.refuse(node, lambda: self.refusal(node, dominator.node, dominator.edge))
            return
        between, reason = self.between(node, dominator.node)
        if reason:
            self.refuse(node, lambda: reason)
            return
        need = self.need((node, *between, dominator.node))
        if need is not None and need.buffers > (self.most_buffers or 0):
            self.refuse(
                node,
                lambda: (
                    f"with all that leads to {self.name(dominator.node)} it would take {need.buffers} buffers, and a "
                    f"launch takes {self.most_buffers}"
                ),
            )
            return
        self.merge(node, between, dominator.node)
        if self.buffers is not None and need is not None:
            self.buffers.needs[self.root(dominator.node)] = need

    def need(self, nodes: Iterable[int]) -> Need | None:
        """What the groups of these nodes take as one; None where that is not limited."""
        if self.buffers is None:
            return None
        return self.buffers.together({self.root(node) for node in nodes}, self.root)

    def refuse(self, node: int, reason: Callable[[], str]) -> None:
        """Note why a node is not merged, for who asks."""
        if self.explaining:
            self.reasons[node] = reason()

    def name(self, node: int) -> str:
        """What people call a node: its program, else its variable."""
        return self.graph.nodes[node].program or self.graph.nodes[node].binding.var.name

    def refusal(self, node: int, sink: int, edge: PatternKind) -> str:
        """Why `allowed` said no, in words."""
        own, target = self.kind[self.root(node)], self.kind[self.root(sink)]
        if own is PatternKind.OPAQUE:
            return "it is no tensor program of a known pattern (opaque)"
        if target is PatternKind.OPAQUE:
            return f"{self.name(sink)} is no tensor program of a known pattern (opaque)"
        if own is PatternKind.REDUCTION:
            return "a reduction ends its group: what reads it needs whole sums"
        if own is PatternKind.OUTPUT_EWISE_FUSIBLE:
            if edge is not PatternKind.ELEMENT_WISE:
                return f"{self.name(sink)} does not read the product element by element ({edge.name.lower()})"
            return f"behind a product go element-wise programs; {self.name(sink)} is {target.name.lower()}"
        if target is PatternKind.OUTPUT_EWISE_FUSIBLE:
            return f"in {self.name(sink)} each of its elements would be computed once for every use"
        return f"{own.name.lower()} does not go into {target.name.lower()}"

    def allowed(self, node: int, sink: int, edge: PatternKind, injective: bool) -> bool:
        """May the group of `node` go on to its post-dominator? `edge` is how that reads it."""
        own = self.kind[self.root(node)]
        target = self.kind[self.root(sink)]
        if own is PatternKind.OUTPUT_EWISE_FUSIBLE:
            if edge is PatternKind.ELEMENT_WISE and target <= PatternKind.BROADCAST:
                return True
            return injective and target is PatternKind.INJECTIVE and self.moves(node, sink, node)
        if own <= PatternKind.BROADCAST:
            reads_one_place = edge <= PatternKind.INJECTIVE or edge is PatternKind.REDUCTION
            return (reads_one_place and target <= PatternKind.OUTPUT_EWISE_FUSIBLE) or (
                self.graph.decompresses(node) and target is PatternKind.OUTPUT_EWISE_FUSIBLE
            )
        if own is PatternKind.INJECTIVE and injective:
            if target is PatternKind.OUTPUT_EWISE_FUSIBLE:
                return self.graph.decompresses(node) or self.moves(node, sink, sink)
            return target <= PatternKind.REDUCTION
        return False

    def moves(self, node: int, sink: int, product: int) -> bool:
        """Do the groups of `node` and of `sink`, which alone uses it, make a matrix product that reads or writes
        through strides, of the one that `product` is in the group of?"""
        if self.relayouts is None or set(self.graph.users(node)) != {sink}:
            return False
        part = self.members[self.root(product)]
        whole = self.members[self.root(node)] + self.members[self.root(sink)]
        before, after = (
            [self.graph.nodes[n].binding for n in sorted(group)] for group in (part, whole)
        )
        return self.relayouts.move_for_free(before, after, self.mod)

    def between(self, node: int, sink: int) -> tuple[Sequence[int], str]:
        """The nodes on all ways from `node` to `sink`; or why these are no group, in words."""
        own = self.kind[self.root(node)]
        most = (
            PatternKind.BROADCAST
            if own is PatternKind.OUTPUT_EWISE_FUSIBLE
            else PatternKind.INJECTIVE
        )
        found: dict[int, None] = {}
        roots = {self.root(node), self.root(sink)}
        length = sum(self.length[root] for root in roots)
        waiting = list(self.graph.users(node))
        while waiting and length <= LONGEST_PROGRAM:
            at = waiting.pop()
            if at == sink or at in found:
                continue
            root = self.root(at)
            if self.kind[root] > most:
                return (), (
                    f"on a way to {self.name(sink)}, where its uses come together, stands a program that does not join"
                )
            if root not in roots:
                roots.add(root)
                length += self.length[root]
            found[at] = None
            waiting += self.graph.users(at)
        if length > LONGEST_PROGRAM:
            return (
                (),
                f"with all that leads to {self.name(sink)} it would be too long for one kernel",
            )
        return list(found), ""

    def merge(self, node: int, between: Sequence[int], sink: int) -> None:
        target = self.root(sink)
        for member in (node, *between):
            root = self.root(member)
            if root != target:
                self.kind[target] = max(self.kind[target], self.kind[root])
                self.parent[root] = target
                self.length[target] += self.length[root]
                self.members[target] += self.members[root]
                self.members[root] = []
