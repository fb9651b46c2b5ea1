"""FuseOps: group tensor programs of a dataflow block into functions that become one kernel each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from relaxpy.analysis.fusion_graph import FusionGraph, Node
from relaxpy.analysis.group_buffers import GroupBuffers, Need
from relaxpy.analysis.relayout import Relayouts
from relaxpy.ir.expr import DataflowBlock, TupleGetItem
from relaxpy.ir.module import IRModule
from relaxpy.tir.recognise.pattern_kind import PatternKind
from relaxpy.tir.recognise.stages import LARGEST_VALUE
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.buffer_limit import buffer_limit
from relaxpy.transform.decompressions import repeat_decompressions
from relaxpy.transform.fuse_tensor_ir import program_groups, without_marks
from relaxpy.transform.outline import PRIMITIVE, Region, outline

LONGEST_NAME = 60
LONGEST_PROGRAM = LARGEST_VALUE
"""The maximal length of a fused program (`relaxpy.tir.recognise.cost.length`). Beyond it, the schedules keep values in
memory anyway, and LLVM takes seconds to compile. The number of buffers is limited by the target
(`Target.max_buffers_per_launch`)."""


@dataclass(frozen=True)
class FuseOps(Pass):
    """Cut groups of `call_tir` out of dataflow blocks into private functions marked `Primitive`, by the pattern kinds
    of their tensor programs (paper §4.2, algorithm 2; TVM's `FuseOps`). A value is grouped with its post-dominator (the
    node at which all paths from it come together) and all nodes between the two, where the pattern kinds allow it:

    * element-wise programs join a preceding matrix product, and any program that follows;
    * injective programs join each other and end in a reduction, but for one of windows (a pooling), which would compute
      each element anew for every window that it is in;
    * a program that decompresses (it reads fewer bytes than it writes: `decode_q4` of figure 9) joins the matrix
      product after it; if several products read it whose other factor is decompressed too, each gets its own
      (`relaxpy.transform.decompressions`);
    * a program that only moves data (transpositions, split heads, slices) joins the matrix product or the attention
      before or after it, if that can access memory through strides as efficiently as without.

    A group ends before its program is longer than `LONGEST_PROGRAM`, or takes more buffers than a launch on the target
    may. Symbols that are not a dimension of any parameter of the group are passed in a shape (figure 8).

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
    level: ClassVar[int] = 1
    prerequisites: ClassVar[tuple[str, ...]] = ("convert-to-dataflow", "legalize-ops")
    relayouts: bool = True
    """Fuse programs that only move data into matrix products, which then read or write through strides."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        mod = repeat_decompressions(without_marks(mod, program_groups(mod)))
        relayouts = Relayouts() if self.relayouts else None
        limit = buffer_limit(mod, ctx.target)
        return outline(mod, partial(_groups, relayouts=relayouts, most_buffers=limit))


@dataclass(frozen=True, slots=True)
class Decision:
    """The reason why a value and a program that reads it are in one group, or are not."""

    producer: int
    """The producing binding, by its position in the block."""
    consumer: int
    fused: bool
    reason: str


@dataclass(frozen=True, slots=True)
class FusionReport:
    """The decisions of FuseOps for one dataflow block."""

    graph: FusionGraph
    groups: Sequence[Sequence[int]]
    """The groups: bindings that become one program."""
    decisions: Sequence[Decision]
    """One decision for each pair of a value and a program that reads it, in the order of the block."""


def explain_fusion(
    block: DataflowBlock, mod: IRModule, *, relayouts: bool = True, most_buffers: int | None = None
) -> FusionReport:
    """Return the groups that FuseOps forms in a block, with a reason for each pair of a value and a use of it.
    `most_buffers` is the maximal number of buffers of a launch (`relaxpy.transform.buffer_limit`)."""
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
        programs = [graph.nodes[i] for i in members if graph.nodes[i].program is not None]
        if len(programs) > 1:
            regions.append(Region(frozenset(members), _joined_name(programs), {PRIMITIVE: True}))
    return regions


def _joined_name(programs: Sequence[Node]) -> str:
    """The names of the programs, without the first ones or the last ones if they are too many, but with that of the
    product or the reduction, which says most about the kernel."""
    names = [str(node.program) for node in programs]
    main = max(range(len(programs)), key=lambda i: programs[i].kind)
    while len(names) > 1 and len("_".join(["fused", *names])) > LONGEST_NAME:
        del names[0 if main else -1]
        main = max(main - 1, 0)
    return "_".join(["fused", *names])[:LONGEST_NAME].rstrip("_")


def _computed_in(graph: FusionGraph, node: int, group: Sequence[int]) -> bool:
    """Is a node computed in the function of its group? A tuple field is, only if its tuple is."""
    value = graph.nodes[node].binding.value
    if not isinstance(value, TupleGetItem):
        return True
    return any(graph.nodes[i].binding.var is value.tuple for i in group)


@dataclass
class _Partition:
    """Groups of nodes as a union-find forest. The root of a group is the last node of it, its post-dominator."""

    graph: FusionGraph
    mod: IRModule
    relayouts: Relayouts | None
    most_buffers: int | None = None
    """The maximal number of buffers of a group's program; None: unlimited."""
    explaining: bool = False
    """Record `reasons`?"""
    parent: list[int] = field(default_factory=list[int])
    kind: list[PatternKind] = field(default_factory=list[PatternKind])
    """For each root, the pattern kind of its group."""
    members: list[list[int]] = field(default_factory=list[list[int]])
    """For each root, the nodes of its group."""
    length: list[int] = field(default_factory=list[int])
    """For each root, the total length of its group's programs."""
    buffers: GroupBuffers | None = None
    """For each root, the buffers of its group's program; counted only if their number is limited."""
    reasons: dict[int, str] = field(default_factory=dict[int, str])
    """For each node that was not fused with its users, the reason, as text for the user."""

    def run(self) -> None:
        """Merge every node with its post-dominator where the kinds allow it. Element-wise nodes come first, so that a
        matrix product joins its element-wise users before a transposition does."""
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
        """The groups with their nodes, in the order of the block."""
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
                    "its value is an output of the block"
                    if self.graph.nodes[node].escapes
                    else "its uses have no common post-dominator"
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
                    f"fused up to {self.name(dominator.node)}, it would take {need.buffers} buffers, but a "
                    f"launch takes at most {self.most_buffers}"
                ),
            )
            return
        self.merge(node, between, dominator.node)
        if self.buffers is not None and need is not None:
            self.buffers.needs[self.root(dominator.node)] = need

    def need(self, nodes: Iterable[int]) -> Need | None:
        """The buffers of the groups of these nodes merged into one; None if they are not limited."""
        if self.buffers is None:
            return None
        return self.buffers.together({self.root(node) for node in nodes}, self.root)

    def refuse(self, node: int, reason: Callable[[], str]) -> None:
        """Record the reason why a node is not merged."""
        if self.explaining:
            self.reasons[node] = reason()

    def name(self, node: int) -> str:
        """The name of a node in messages: its program's, else its variable's."""
        return self.graph.nodes[node].program or self.graph.nodes[node].binding.var.name

    def refusal(self, node: int, sink: int, edge: PatternKind) -> str:
        """The reason why `allowed` returned False, as text."""
        own, target = self.kind[self.root(node)], self.kind[self.root(sink)]
        if own is PatternKind.OPAQUE:
            return "it is opaque: not a tensor program of a known pattern"
        if target is PatternKind.OPAQUE:
            return f"{self.name(sink)} is opaque: not a tensor program of a known pattern"
        if own is PatternKind.REDUCTION:
            return "a reduction ends its group: its consumers need complete sums"
        if own is PatternKind.OUTPUT_EWISE_FUSIBLE:
            if edge is not PatternKind.ELEMENT_WISE:
                return f"{self.name(sink)} does not read the product element by element ({edge.name.lower()})"
            return f"the epilogue of a product must be element-wise, but {self.name(sink)} is {target.name.lower()}"
        if PatternKind.OUTPUT_EWISE_FUSIBLE in (target, edge):
            return f"{self.name(sink)} would recompute each of its elements for every use"
        return f"a program of kind {own.name.lower()} is not fused into one of kind {target.name.lower()}"

    def allowed(self, node: int, sink: int, edge: PatternKind, injective: bool) -> bool:
        """May the group of `node` be merged with its post-dominator `sink`? `edge` is the pattern kind of the reads on
        the way.
        """
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
            return max(target, edge) <= PatternKind.REDUCTION
        return False

    def moves(self, node: int, sink: int, product: int) -> bool:
        """Do the groups of `node` and of `sink`, its only user, form a matrix product that reads or writes through
        strides? `product` is a node in the group of that matrix product."""
        if self.relayouts is None or set(self.graph.users(node)) != {sink}:
            return False
        part = self.members[self.root(product)]
        whole = self.members[self.root(node)] + self.members[self.root(sink)]
        before, after = (
            [self.graph.nodes[n].binding for n in sorted(group)] for group in (part, whole)
        )
        return self.relayouts.move_for_free(before, after, self.mod)

    def between(self, node: int, sink: int) -> tuple[Sequence[int], str]:
        """The nodes on all paths from `node` to `sink`, or the reason why these cannot be merged, as text."""
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
                    f"a kernel between it and {self.name(sink)}, the post-dominator of its uses, cannot be fused"
                )
            if root not in roots:
                roots.add(root)
                length += self.length[root]
            found[at] = None
            waiting += self.graph.users(at)
        if length > LONGEST_PROGRAM or self.copied(roots) > LONGEST_PROGRAM:
            return (
                (),
                f"fused with all kernels up to {self.name(sink)}, it would be too long for one kernel",
            )
        return list(found), ""

    def copied(self, roots: Collection[int]) -> int:
        """The length of a program of these groups in which a value is written once for each place that it is read at:
        twice where it is joined to itself."""
        copies: dict[int, int] = {}
        for node in sorted((n for root in roots for n in self.members[root]), reverse=True):
            apart = together = 0
            for user in self.graph.users(node):
                reader = self.graph.nodes[user]
                if reader.inputs[node] <= PatternKind.BROADCAST:
                    together = max(together, copies.get(user, 0))
                else:
                    apart += copies.get(user, 0) * reader.times[node]
            copies[node] = max(1, together + apart)
        return sum(count * self.graph.nodes[node].length for node, count in copies.items())

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
