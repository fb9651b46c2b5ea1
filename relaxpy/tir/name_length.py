"""The lengths of values with their names expanded, and how deeply divisions and choices are nested in them.

TVM's analyser replaces the name of an integer by its value wherever the name is used, recursively: the time doubles
with every name that is used twice in the value of another. It doubles with every division within another, too, and
more than that with a choice in the condition of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relaxpy.tir.nodes import DIVISIONS, address_of
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import outermost, walk

LONGEST = 32
"""The most variables in an integer, with names expanded, up to which the analyser may know its value."""
DEEPEST = 6
"""The most levels of an integer (`levels`), with names expanded, up to which the analyser may know its value."""
INVOLVED = (*DIVISIONS, tirx.Select)
"""What the analyser takes much time for."""
_PER_CONDITION = 4
"""Levels of a choice above its condition."""


def levels(node: Any, of_names: Mapping[Any, int] | None = None) -> int:
    """How deeply divisions and choices are nested in an expression or a statement; `of_names`: levels of values of
    names."""
    return Levels(of_names=of_names).of(node)


def has_more_levels(node: Any, number: int) -> bool:
    """Are they nested more deeply than this?"""
    return levels(node) > number


def nested_reads(node: Any) -> int:
    """How deeply reads from memory are nested, each in the index of another."""

    def inside(part: Any) -> list[tuple[Any, int]]:
        return [(index, 1) for index in part.indices]

    return Levels(tvm.ir.TensorLoad, inside).of(node)


def _operands(part: Any) -> list[tuple[Any, int]]:
    if isinstance(part, tirx.Select):
        return [(part.condition, _PER_CONDITION), (part.true_value, 0), (part.false_value, 0)]
    return [(part.a, 1), (part.b, 1)]


class Levels:
    """How deeply nodes of these classes are nested, each in the parts of another: divisions and choices, if no others
    are given. Each node is looked at once, however often is asked about what contains it."""

    def __init__(
        self,
        kinds: type | tuple[type, ...] = INVOLVED,
        inside: Callable[[Any], list[tuple[Any, int]]] = _operands,
        of_names: Mapping[Any, int] | None = None,
    ) -> None:
        self._stops = (*(kinds if isinstance(kinds, tuple) else (kinds,)), tirx.Let)
        self._inside = inside
        """The parts of a node, and how many levels they are below it."""
        self._of_names = of_names or {}
        self._found: dict[int, tuple[Any, int]] = {}
        """Address of a node → the node, kept alive, and its levels."""

    def of(self, node: Any) -> int:
        """The largest sum of levels on a way into the node, and of the name at its end."""
        nodes, names = self._outermost(node)
        self._look_at(nodes)
        return self._largest(nodes, names)

    def _look_at(self, nodes: list[Any]) -> None:
        """Finds the levels of the nodes, each after what it contains."""
        waiting: list[tuple[Any, list[tuple[list[Any], int, int]] | None]]
        waiting = [(each, None) for each in nodes]
        while waiting:
            node, below = waiting.pop()
            if address_of(node) in self._found:
                continue
            if below is not None:
                sums = (more + self._largest(each, names) for each, names, more in below)
                self._found[address_of(node)] = node, max(sums, default=0)
                continue
            parts = (
                [(node.value, 0), (node.body, 0)]
                if isinstance(node, tirx.Let)
                else self._inside(node)
            )
            below = [(*self._outermost(part), more) for part, more in parts]
            waiting += [(node, below), *((inner, None) for each, _, _ in below for inner in each)]

    def _largest(self, nodes: list[Any], names: int) -> int:
        return max([names, *(self._found[address_of(each)][1] for each in nodes)])

    def _outermost(self, node: Any) -> tuple[list[Any], int]:
        """The nodes that are in no other, and the most levels of names outside of them."""
        names: list[tvm.ir.Var] = []
        found = outermost(node, self._stops, names.append if self._of_names else None)
        return found, max((self._of_names.get(name, 0) for name in names), default=0)


class NameLengths:
    """The lengths and levels of names whose values are known. Others, and plain variables, have length 1, level 0."""

    def __init__(self) -> None:
        self._lengths: dict[tvm.ir.Var, int] = {}
        self._levels: dict[tvm.ir.Var, int] = {}

    def keeps(self, var: tvm.ir.Var, value: Any) -> bool:
        """Is the value short enough for the analyser to know it? Call it in the order of definitions, once for each
        name."""
        length = 0

        def count(used: tvm.ir.Var) -> None:
            nonlocal length
            length += self._lengths.get(used, 1)

        def within(node: tirx.Let) -> None:
            if node.var not in self._lengths:
                self.keeps(node.var, node.value)

        walk(value, (tirx.Let, within), (tvm.ir.Var, count))
        depth = levels(value, self._levels)
        is_short = length <= LONGEST and depth <= DEEPEST
        self._lengths[var] = max(1, length) if is_short else 1
        if is_short and depth:
            self._levels[var] = depth
        return is_short


def has_long_values(func: tirx.PrimFunc) -> bool:
    """Does the function bind an integer that is too long with names expanded?"""
    lengths = NameLengths()
    found: list[bool] = []

    def bind(node: tirx.Bind | tirx.Let) -> None:
        found.append(not lengths.keeps(node.var, node.value))

    # Definitions precede uses in this order, also where a `Let` is in the body of another.
    tvm_ffi.structural_walk(func.body, ((tirx.Bind, tirx.Let), bind), order="pre")
    return any(found)
