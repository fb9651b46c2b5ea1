"""A dataflow block as a graph for fusion: its bindings, the users of each and how they read it, and its
post-dominators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from relaxpy.analysis.prim_func_call import needed_types
from relaxpy.analysis.scope import dependencies
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op, product
from relaxpy.ir.expr import (
    Binding,
    Call,
    DataflowBlock,
    DataflowVar,
    Expr,
    GlobalVar,
    MatchCast,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.module import IRModule
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.shape.bounds import assumed
from relaxpy.shape.prove import prove
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.cost import length
from relaxpy.tir.recognise.pattern_kind import PatternKind, analyse_pattern


@dataclass
class Node:
    """A binding."""

    binding: Binding
    kind: PatternKind
    program: str | None
    """The tensor program that the binding calls."""
    inputs: dict[int, PatternKind] = field(default_factory=dict[int, PatternKind])
    """The nodes that must precede it, and how it reads their values."""
    times: Counter[int] = field(default_factory=Counter[int])
    """As how many arguments of its program the nodes' values are passed."""
    length: int = 0
    """Length of its program (`relaxpy.tir.recognise.cost.length`)."""
    escapes: bool = False
    """The whole value is used outside the block. Never true for a field of a program's results."""


@dataclass(frozen=True, slots=True)
class PostDominator:
    """The first node that all paths from a node to the outside go through, and the coarsest kind of reading on these
    paths.
    """

    node: int
    edge: PatternKind


class FusionGraph:
    """The graph of a dataflow block. Nodes are numbered in the order of the block."""

    def __init__(self, block: DataflowBlock, mod: IRModule) -> None:
        self._mod = mod
        self._numbers: dict[Var, int] = {}
        self._decompresses: dict[Hashable, bool] = {}
        """By the annotations of inputs and outputs."""
        self.nodes: list[Node] = []
        self._users: list[list[int]] = []
        needs = dependencies(block.bindings)
        for number, binding in enumerate(block.bindings):
            node = self._read(binding)
            for source in sorted(needs[number]):
                self._users[source].append(number)
                # a shape that is passed, or a symbol that a match_cast defines, is not a read of elements
                node.inputs.setdefault(source, PatternKind.OPAQUE)
            self.nodes.append(node)
            self._users.append([])
            self._numbers[binding.var] = number
        self._dominators = self._post_dominators()

    def users(self, node: int) -> Sequence[int]:
        """The nodes that use a node's value."""
        return self._users[node]

    def post_dominator(self, node: int) -> PostDominator | None:
        """The post-dominator of a node; None if the paths from it do not come together inside the block."""
        return self._dominators[node]

    def decompresses(self, node: int) -> bool:
        """Does the node's program compute its output from fewer bytes? Then recomputing it at its uses saves memory
        traffic, even if there are several."""
        call = self.nodes[node].binding.value
        if self.nodes[node].program is None or not isinstance(call, Call):
            return False
        key = (_inputs(call, self._mod), call.ty_args)
        if key not in self._decompresses:
            self._decompresses[key] = _is_less(*key)
        return self._decompresses[key]

    def _read(self, binding: Binding) -> Node:
        escapes = not isinstance(binding.var, DataflowVar)
        value = binding.value
        opaque = Node(binding, PatternKind.OPAQUE, None, escapes=escapes)
        if isinstance(binding, MatchCast):
            return opaque
        if isinstance(value, TupleGetItem) and isinstance(value.tuple, Var):
            source = self._numbers.get(value.tuple)
            if source is None or self.nodes[source].program is None:
                return opaque
            # A value that is used outside does not end its group: it becomes an additional output.
            return Node(binding, PatternKind.ELEMENT_WISE, None, {source: PatternKind.ELEMENT_WISE})
        if not isinstance(value, Call) or type(value.op) is not CallTIR:
            return opaque
        callee, args = value.args[0], value.args[1]
        if not isinstance(callee, GlobalVar) or not isinstance(args, Tuple):
            return opaque
        program = self._mod.functions.get(callee.name)
        if not isinstance(program, PrimFunc) or needed_types(value, self._mod) is not None:
            return opaque  # a call that is not proved to fit cannot be fused
        pattern = analyse_pattern(program)
        size = length(program.func)
        node = Node(binding, pattern.kind, callee.name, length=size, escapes=escapes)
        for i, (arg, read) in enumerate(zip(args.fields, pattern.reads, strict=False)):
            source = self._source(arg)
            if source is not None:
                edge = read if pattern.kind <= PatternKind.INJECTIVE else pattern.kind
                if pattern.windows and pattern.windows[i]:
                    edge = PatternKind.OUTPUT_EWISE_FUSIBLE  # as for a convolution
                node.inputs[source] = max(edge, node.inputs.get(source, edge))
                node.times[source] += 1
        return node

    def _source(self, arg: Expr) -> int | None:
        return self._numbers.get(arg) if isinstance(arg, Var) else None

    def _post_dominators(self) -> list[PostDominator | None]:
        """Computed by least common ancestors in the post-dominator tree, which is built from the end of the block
        (users precede the values that they use). The root is the outside."""
        found: list[PostDominator | None] = [None] * len(self.nodes)
        depth = [1] * len(self.nodes)
        for number in reversed(range(len(self.nodes))):
            if self.nodes[number].escapes or not self._users[number]:
                continue
            meeting: PostDominator | None = None
            for i, user in enumerate(dict.fromkeys(self._users[number])):
                way = PostDominator(user, self.nodes[user].inputs.get(number, PatternKind.OPAQUE))
                meeting = way if i == 0 else _meet(meeting, way, found, depth)
                if meeting is None:
                    break
            found[number] = meeting
            depth[number] = 1 if meeting is None else depth[meeting.node] + 1
        return found


def decompresses(call: Call, mod: IRModule) -> bool:
    """Does a call of a tensor program compute its outputs from clearly fewer bytes?"""
    return _is_less(_inputs(call, mod), call.ty_args)


def _inputs(call: Call, mod: IRModule) -> tuple[Annotation, ...]:
    inputs = expect(Tuple, call.args[1])
    return tuple(deduce(arg, mod) for arg in inputs.fields)


def _meet(
    a: PostDominator | None,
    b: PostDominator | None,
    tree: Sequence[PostDominator | None],
    depth: Sequence[int],
) -> PostDominator | None:
    """The least common ancestor of two nodes."""
    while a is not None and b is not None and a.node != b.node:
        if depth[a.node] >= depth[b.node]:
            a = _further(a, tree)
        else:
            b = _further(b, tree)
    if a is None or b is None:
        return None
    return PostDominator(a.node, max(a.edge, b.edge))


def _further(way: PostDominator, tree: Sequence[PostDominator | None]) -> PostDominator | None:
    following = tree[way.node]
    return (
        None if following is None else PostDominator(following.node, max(way.edge, following.edge))
    )


LEAST = 64
"""Sizes below this do not matter to the question whether a program decompresses: there it takes no time."""


def _is_less(read: Sequence[object], written: Sequence[object]) -> bool:
    """Whether a program decompresses: it is proved that it reads at most three quarters of the bytes that it writes,
    for all sizes, or for those from `LEAST` on. (Ten codes a word are k // 10 + 1 words, no gain where k is small.)"""
    less, more = _bytes(read), _bytes(written)
    if less is None or more is None:
        return False
    if prove(dim_op("le", less * 4, more * 3)):
        return True
    for symbol in sorted(more.vars, key=str):
        divided = less.divide_exact(symbol.dim), more.divide_exact(symbol.dim)
        if divided[0] is not None and divided[1] is not None:
            less, more = divided[0], divided[1]
    sizes = {symbol: (LEAST, None) for symbol in {*less.vars, *more.vars}}
    return prove(dim_op("le", less * 4, more * 3), {**assumed(), **sizes})


def _bytes(annotations: Sequence[object]) -> Dim | None:
    """The size in bytes of tensors of these annotations."""
    total = Dim.of(0)
    for annotation in annotations:
        if (
            not isinstance(annotation, TensorType)
            or annotation.dims is None
            or annotation.dtype is None
        ):
            return None
        total = total + annotation.dtype.nbytes(product(annotation.dims))
    return total
