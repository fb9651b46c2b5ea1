"""The lengths of values with their names expanded, and how deeply divisions and choices are nested in them.

TVM's analyser replaces the name of an integer by its value wherever the name is used, recursively: the time doubles
with every name that is used twice in the value of another. It doubles with every division within another, too, and
more than that with a choice in the condition of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import outermost, walk

LONGEST = 32
"""The most variables in an integer, with names expanded, up to which the analyser may know its value."""
DEEPEST = 6
"""The most levels of an integer (`levels`), with names expanded, up to which the analyser may know its value."""
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
INVOLVED = (*_DIVISIONS, tirx.Select)
"""What the analyser takes much time for."""
_PER_CONDITION = 4
"""Levels of a choice above its condition."""


def levels(node: Any, of_names: Mapping[Any, int] | None = None) -> int:
    """How deeply divisions and choices are nested in an expression or a statement; `of_names`: levels of values of
    names."""
    return _deepest(node, INVOLVED, _operands, of_names or {})


def has_more_levels(node: Any, number: int) -> bool:
    """Are they nested more deeply than this? It is known when the first such place is found."""
    return _deepest(node, INVOLVED, _operands, {}, number) > number


def _operands(part: Any) -> list[tuple[Any, int]]:
    if isinstance(part, tirx.Select):
        return [(part.condition, _PER_CONDITION), (part.true_value, 0), (part.false_value, 0)]
    return [(part.a, 1), (part.b, 1)]


def nested_reads(node: Any) -> int:
    """How deeply reads from memory are nested, each in the index of another."""

    def inside(part: Any) -> list[tuple[Any, int]]:
        return [(index, 1) for index in part.indices]

    return _deepest(node, tvm.ir.TensorLoad, inside, {})


def _deepest(
    node: Any,
    kinds: type | tuple[type, ...],
    inside: Callable[[Any], list[tuple[Any, int]]],
    of_names: Mapping[Any, int],
    enough: float = math.inf,
) -> int:
    """The largest sum of levels on a way into the node: those that `inside` gives for the parts of each node of these
    classes, and those of the name at its end; or the first that is more than `enough`. What is shared is walked again
    only where it is found deeper."""
    largest = 0
    waiting = [(node, 0)]
    seen: dict[int, int] = {}
    while waiting and largest <= enough:
        part, depth = waiting.pop()
        if seen.get(hash(part), -1) >= depth:
            continue
        seen[hash(part)] = depth
        largest = max(largest, depth)
        if isinstance(part, kinds):
            waiting += [(each, depth + more) for each, more in inside(part)]
            continue
        names: list[tvm.ir.Var] = []
        waiting += [
            (each, depth) for each in outermost(part, kinds, names.append if of_names else None)
        ]
        largest = max([largest, *(depth + of_names.get(name, 0) for name in names)])
    return largest


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

    walk(func.body, ((tirx.Bind, tirx.Let), bind))
    return any(found)
