"""Dependence analysis: may the iterations of a loop run in parallel? They may if no iteration writes an element that
another one reads or writes.

The proof uses one dimension of each buffer that is written in the loop, or the flat index of the element. If all
accesses advance along it with the loop by the same step, and the rest of their indices spans less than a step, no two
iterations access the same element. A loop without a proof runs serially: a sum over an axis that was declared spatial,
an in-place stencil, an index that is read from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.analysis.index_facts import Facts, lanes
from relaxpy.errors import PassError
from relaxpy.ir.dim import Dim, constant_of
from relaxpy.ir.recursion import deep_recursion
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.recognise.rows import rows_of
from relaxpy.tir.schedule import with_kind
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.walk import rewritten, walk

Loop = Any

AT_ONCE = (tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED, tirx.ForKind.THREAD_BINDING)
"""Kinds of loops whose iterations run in no fixed order."""


def in_order(func: Any) -> Any:
    """Return the function with parallel and vectorised loops made serial if their iterations are not proved to be
    independent. Loops bound to threads become serial too, since processors have no such threads."""
    kinds: list[Loop] = []
    walk(func.body, (tirx.For, kinds.append))
    if not any(loop.kind in AT_ONCE for loop in kinds):
        return func
    search = _Search(func)
    with deep_recursion():
        search.visit(func.body)
    if not search.dependent:
        return func

    def serial(loop: Loop) -> Loop:
        if not any(loop.loop_var.same_as(other) for other in search.dependent):
            return loop
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, None,
            loop.annotations, loop.step,
        )  # fmt: skip

    return func.with_body(rewritten(func.body, (tirx.For, serial)))


def rows_at_once(func: Any) -> Any:
    """Return the function with those loops over rows (`relaxpy.tir.recognise.rows`) made parallel that are proved to be
    independent. All other loops stay unchanged."""
    loops = {loop.loop_var for rows in rows_of(func) for loop in rows.loops}

    def parallel(loop: Loop) -> Loop:
        return with_kind(loop, tirx.ForKind.PARALLEL) if loop.loop_var in loops else loop

    return in_order(func.with_body(rewritten(func.body, (tirx.For, parallel)))) if loops else func


@dataclass(frozen=True)
class _Access:
    buffer: Any
    indices: Sequence[Any]
    """The indices over loops and parameters. None for an index that depends on memory that the function writes; empty
    if nothing is known about the place."""
    is_store: bool
    loops: Sequence[tuple[Any, Any, Any]]
    """The loops between the loop in question and the access."""


class _Search:
    """Finds the loops that must run serially."""

    def __init__(self, func: Any) -> None:
        self.facts = Facts(func)
        self.dependent: list[Any] = []

    def visit(self, stmt: Any) -> list[_Access]:
        """The accesses in a statement, with the loops inside it that contain them."""
        match stmt:
            case tirx.SeqStmt():
                return [access for part in stmt.seq for access in self.visit(part)]
            case tirx.For():
                return self.loop(stmt)
            case tirx.IfThenElse():
                found = self.loads(stmt.condition)
                with self.facts.where(stmt.condition):
                    found += self.visit(stmt.then_case)
                if stmt.else_case is not None:
                    found += self.visit(stmt.else_case)
                return found
            case s_tir.SBlockRealize():
                return self.block(stmt)
            case tirx.BufferStore():
                found = self.loads(stmt.value, *stmt.indices)
                return [*found, self.access(stmt.buffer, stmt.indices, True)]
            case tirx.Bind():
                self.facts.let(stmt.var, stmt.value)
                return self.loads(stmt.value)
            case tirx.DeclBuffer():
                return [_Access(None, (), True, ())]
            case _:
                body = getattr(stmt, "body", None)
                values = [getattr(stmt, name, None) for name in ("value", "condition")]
                found = self.loads(*(v for v in values if isinstance(v, tvm.ir.Expr)))
                return found if body is None else found + self.visit(body)

    def block(self, realize: Any) -> list[_Access]:
        block = realize.block
        found = self.loads(realize.predicate, *realize.iter_values)
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            self.facts.let(axis.var, value)
        with self.facts.where(realize.predicate):
            if block.init is not None:
                found += self.visit(block.init)
            found += self.visit(block.body)
        if block.match_buffers:
            found.append(_Access(None, (), True, ()))
        own = set(block.alloc_buffers)
        return [a for a in found if a.buffer not in own] if own else found

    def loop(self, loop: Loop) -> list[_Access]:
        found = self.loads(loop.min, loop.extent)
        with self.facts.loop(loop):
            inner = self.visit(loop.body)
            around = self.facts.loops[-1]
            bound = loop.kind == tirx.ForKind.THREAD_BINDING
            at_once = loop.kind in AT_ONCE
            if bound or (at_once and not self.is_independent(loop, _shared(loop, inner))):
                self.dependent.append(loop.loop_var)
        return found + [_Access(a.buffer, a.indices, a.is_store, (around, *a.loops)) for a in inner]

    def loads(self, *exprs: Any) -> list[_Access]:
        found: list[Any] = []
        for expr in exprs:
            walk(expr, ((tvm.ir.TensorLoad, tvm.ir.Call), found.append))
        return [
            access
            for node in found
            for access in (
                [self.access(node.source, node.indices, False)]
                if isinstance(node, tvm.ir.TensorLoad)
                else self.handed_over(node)
            )
        ]

    def handed_over(self, call: Any) -> Iterator[_Access]:
        """A function that receives a buffer may write anywhere in it."""
        name = str(getattr(call.op, "name", ""))
        if name.endswith(("buffer_data", "call_packed")):
            yield _Access(None, (), True, ())

    def access(self, buffer: Any, indices: Sequence[Any], is_store: bool) -> _Access:
        known = [self.facts.known(int64(i)) if lanes(i) == 1 else None for i in indices]
        stable = [i if i is not None and self.facts.is_stable(i) else None for i in known]
        return _Access(buffer, stable, is_store, ())

    def is_independent(self, loop: Loop, accesses: Sequence[_Access]) -> bool:
        """Does no iteration write memory that another one accesses?"""
        if isinstance(loop.extent, tirx.IntImm) and int(loop.extent.value) <= 1:
            return True
        stores = [access for access in accesses if access.is_store]
        if any(store.buffer is None for store in stores):
            return False
        of_buffer: dict[Any, list[_Access]] = {store.buffer: [] for store in stores}
        for access in accesses:
            if access.buffer in of_buffer:
                of_buffer[access.buffer].append(access)
        return all(self.is_apart(loop.loop_var, *each) for each in of_buffer.items())

    def is_apart(self, var: Any, buffer: Any, accesses: Sequence[_Access]) -> bool:
        """Do accesses of different iterations always differ in one dimension, or in the flat index?"""
        if any(len(access.indices) != len(buffer.shape) for access in accesses):
            return False
        rank = len(buffer.shape)
        for dim in range(rank):
            if self.steps_apart(var, [(a.indices[dim], a.loops) for a in accesses]):
                return True
        if rank < 2 or any(index is None for access in accesses for index in access.indices):
            return False
        flat = [(_flat(a.indices, buffer.shape), a.loops) for a in accesses]
        return self.steps_apart(var, flat)

    def steps_apart(self, var: Any, places: Sequence[tuple[Any, Any]]) -> bool:
        facts = self.facts
        if any(place is None for place, _ in places):
            return False
        try:
            symbol = facts.dims.symbol(var)
            dims = [
                (facts.dims.to_dim(tvm.sym.Analyzer().simplify(p)), loops) for p, loops in places
            ]
            steps = {dim.substitute({symbol: symbol.dim + 1}) - dim for dim, _ in dims}
            if len(steps) != 1:
                return False
            (step,) = steps
            inner = {facts.dims.symbol(v) for _, loops in dims for v, _, _ in loops}
            if symbol in step.vars or inner.intersection(step.vars):
                return False
            ends = [
                [
                    facts.extreme(dim - step * symbol.dim, loops, largest=end)
                    for end in (True, False)
                ]
                for dim, loops in dims
            ]
        except PassError:
            return False
        highest = _furthest((high for high, _ in ends), max)
        lowest = _furthest((low for _, low in ends), min)
        if highest is None or lowest is None:
            return False
        spans = {high - low for high in highest for low in lowest}
        return any(
            all(facts.is_positive(size - 1 - span) for span in spans) for size in (step, -step)
        )


def _furthest(ends: Iterable[Dim | None], choose: Callable[[int, int], int]) -> list[Dim] | None:
    """Of ends that differ by a number, the one that `choose` prefers; None if an end is unknown."""
    found: dict[Dim, int] = {}
    for end in ends:
        if end is None:
            return None
        number = constant_of(end)
        rest = end - number
        found[rest] = choose(number, found.get(rest, number))
    return [rest + number for rest, number in found.items()]


def _shared(loop: Loop, accesses: Sequence[_Access]) -> list[_Access]:
    """The accesses of buffers that the iteration does not allocate itself."""
    own: set[Any] = set()
    walk(loop.body, (tirx.AllocBuffer, lambda stmt: own.add(stmt.buffer)))
    return [a for a in accesses if a.buffer not in own]


def _flat(indices: Sequence[Any], shape: Sequence[Any]) -> Any:
    place: Any = int64(0)
    for index, size in zip(indices, shape, strict=True):
        place = place * int64(size) + index
    return place
