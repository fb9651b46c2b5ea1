"""The lengths of values with their names expanded, and how deeply divisions and choices are nested in them.

TVM's analyser replaces the name of an integer by its value wherever the name is used, recursively: the time doubles
with every name that is used twice in the value of another. It doubles with every division within another, too, and
more than that with a choice in the condition of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import walk

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
    deepest = 0
    inner: list[Any] = []

    def involved(part: Any) -> Any:
        inner.append(part)
        return tvm_ffi.WalkResult.SKIP

    def name(var: Any) -> None:
        nonlocal deepest
        deepest = max(deepest, of_names[var] if of_names and var in of_names else 0)

    entries = ((INVOLVED, involved), (tvm.ir.Var, name)) if of_names else ((INVOLVED, involved),)
    tvm_ffi.structural_walk(node, entries, order="pre")
    for part in inner:
        if isinstance(part, tirx.Select):
            condition = levels(part.condition, of_names)
            arms = (levels(arm, of_names) for arm in (part.true_value, part.false_value))
            deepest = max(deepest, condition + _PER_CONDITION, *arms)
        else:
            deepest = max(deepest, 1 + max(levels(each, of_names) for each in (part.a, part.b)))
    return deepest


def nested_reads(node: Any) -> int:
    """How deeply reads from memory are nested, each in the index of another."""
    reads: list[Any] = []

    def read(part: Any) -> Any:
        reads.append(part)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(node, ((tvm.ir.TensorLoad, read),), order="pre")
    return max((1 + max(map(nested_reads, part.indices), default=0) for part in reads), default=0)


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
