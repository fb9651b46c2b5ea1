"""Which outputs does a tensor program leave unset, in whole or in part, or read before it has written them?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from relaxpy.tir.analyzer import equal, int64
from relaxpy.tir.recognise.stages import Stage, read_stages
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, contains_any, rewritten, walk
from relaxpy.tir.written import handed_over, source_of, written_buffers


@lru_cache(maxsize=4096)
def unset_outputs(func: Any) -> frozenset[int]:
    """The positions of the buffer parameters that the program is not proved to write wholly, and before it reads
    them."""
    if (stages := read_stages(func)) is not None:
        whole = {stage.buffer for stage in stages}
        return frozenset(i for i, param in _buffers(func) if param not in whole)
    found = _read_through(func)
    return frozenset(i for i, param in _buffers(func) if not found.sets(param))


@lru_cache(maxsize=4096)
def read_before_written(func: Any) -> frozenset[int]:
    """The positions of the written parameters of which the program certainly reads an element before it has written
    any, if it does anything at all."""
    if (stages := read_stages(func)) is not None and _are_in_order(stages):
        return frozenset()
    first = _read_through(func).read_first
    return frozenset(i for i, param in enumerate(func.params) if param in first)


def _are_in_order(stages: Sequence[Stage]) -> bool:
    """Is each buffer defined before a stage reads it?"""
    later = [stage.buffer for stage in stages]
    for stage in stages:
        if any(load.source in later for load in stage.loads):
            return False
        later.remove(stage.buffer)
    return True


def _buffers(func: Any) -> list[tuple[int, Any]]:
    return [(i, p) for i, p in enumerate(func.params) if tirx.buffer.is_buffer_var(p)]


def _read_through(func: Any) -> _Reader:
    reader = _Reader(written_buffers(func))
    reader.state = [*reader.stmt(func.body)]
    return reader


_WHOLE: Any = None
"""In place of an index: all of the dimension."""
_LOAD = tvm.ir.TensorLoad
_CHOICES = (tirx.Select, tirx.And, tirx.Or)


@dataclass(frozen=True)
class _Span:
    """The indices from `low` to before `end`."""

    low: Any
    end: Any


def _is_same_index(a: Any, b: Any) -> bool:
    if a is _WHOLE or b is _WHOLE:
        return a is b
    if isinstance(a, _Span) or isinstance(b, _Span):
        return a is b
    return tvm_ffi.structural_equal(a, b)


@dataclass(frozen=True)
class _Place:
    """Elements of a buffer that are surely written: one, or many along some dimensions."""

    buffer: Any
    indices: tuple[Any, ...]

    def contains(self, buffer: Any, indices: Sequence[Any]) -> bool:
        return self.buffer.same_as(buffer) and all(
            mine is _WHOLE
            or (not isinstance(mine, _Span) and tvm_ffi.structural_equal(mine, other))
            for mine, other in zip(self.indices, indices, strict=True)
        )

    def is_same(self, other: _Place) -> bool:
        return self.buffer.same_as(other.buffer) and all(
            map(_is_same_index, self.indices, other.indices)
        )


@dataclass
class _Reader:
    """Reads a program in the order in which it runs."""

    written: set[Any]
    state: list[_Place] = field(default_factory=list[_Place])
    """What was surely written before the present statement."""
    stored: set[Any] = field(default_factory=set[Any])
    """Buffers of which an element may have been written before."""
    unclear: set[Any] = field(default_factory=set[Any])
    """Buffers that are read perhaps before they are written, or accessed in other ways than by their elements."""
    read_first: set[Any] = field(default_factory=set[Any])
    names: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Variables that are other names of variables."""
    choices: int = 0
    """The number of conditions around the present statement."""

    def sets(self, buffer: Any) -> bool:
        if buffer in self.unclear:
            return False
        own = [place.indices for place in self.state if place.buffer.same_as(buffer)]
        return any(all(index is _WHOLE for index in indices) for indices in own) or any(
            _fill(
                buffer.shape[dim], [indices[dim] for indices in own if _only_span(indices) == dim]
            )
            for dim in {_only_span(indices) for indices in own} - {-1}
        )

    def stmt(self, stmt: Any) -> Iterator[_Place]:
        """The places that the statement surely writes. Within it, `state` has them as well."""
        match stmt:
            case tirx.SeqStmt():
                yield from self.sequence(stmt.seq)
            case tirx.BufferStore():
                self.reads(stmt.value, *stmt.indices)
                self.stored.add(stmt.buffer)
                indices = map(self.named, stmt.indices)
                yield _Place(stmt.buffer, tuple(map(_only_index, indices, stmt.buffer.shape)))
            case tirx.For():
                self.reads(stmt.min, stmt.extent)
                for place in self.inside(stmt.body):
                    yield from _after_loop(place, stmt)
            case tirx.IfThenElse():
                self.reads(stmt.condition)
                self.choices += 1
                then = self.inside(stmt.then_case)
                other = [] if stmt.else_case is None else self.inside(stmt.else_case)
                self.choices -= 1
                yield from (place for place in then if any(map(place.is_same, other)))
            case s_tir.SBlockRealize():
                yield from self.block(stmt)
            case tirx.While():
                self.reads(stmt.condition)
                self.choices += 1
                self.inside(stmt.body)
                self.choices -= 1
            case tirx.AttrStmt():
                self.reads(stmt.value)
                yield from self.stmt(stmt.body)
            case tirx.Bind():
                self.reads(stmt.value)
                if isinstance(stmt.value, tvm.ir.Var):
                    self.names[stmt.var] = self.named(stmt.value)
            case tirx.DeclBuffer():
                self.unclear.update(v for v in (stmt.buffer, source_of(stmt)) if v is not None)
            case _:
                self.reads(stmt)

    def sequence(self, stmts: Sequence[Any]) -> Iterator[_Place]:
        for part in stmts:
            made = [*self.stmt(part)]
            self.state += made
            yield from made

    def inside(self, *stmts: Any) -> list[_Place]:
        """The places that a body surely writes, without effect on those before."""
        before = len(self.state)
        made = [*self.sequence(stmts)]
        del self.state[before:]
        return made

    def block(self, realize: Any) -> Iterator[_Place]:
        block = realize.block
        self.reads(realize.predicate, *realize.iter_values)
        self.unclear.update(match.source.source for match in block.match_buffers)
        self.unclear.update(match.buffer for match in block.match_buffers)
        certain = isinstance(realize.predicate, tirx.IntImm) and int(realize.predicate.value) == 1
        self.choices += not certain
        made = self.inside(*([] if block.init is None else [block.init]), block.body)
        self.choices -= not certain
        if not certain:
            return
        pairs = zip(block.iter_vars, realize.iter_values, strict=True)
        values = {axis.var: value for axis, value in pairs}
        for place in made:
            yield _Place(
                place.buffer,
                tuple(_replaced(index, values) for index in place.indices),
            )

    def reads(self, *nodes: Any) -> None:
        """Note the elements that these expressions, or statements without others inside, read."""
        for node in nodes:
            loads: list[Any] = []
            walk(
                node,
                (_LOAD, loads.append),
                (tvm.ir.Call, lambda call: self.unclear.update(handed_over(call))),
            )
            for load in loads:
                self.read(load, node)

    def named(self, index: Any) -> Any:
        return _replaced(index, self.names) if self.names else index

    def read(self, load: Any, inside: Any) -> None:
        buffer = load.source
        if buffer not in self.written:
            return
        indices = [self.named(index) for index in load.indices]
        if any(place.contains(buffer, indices) for place in self.state):
            return
        self.unclear.add(buffer)
        if buffer not in self.stored and not self.choices and not _has_choices(inside):
            self.read_first.add(buffer)


def _only_index(index: Any, size: Any) -> Any:
    """The index; the whole dimension if it has only this one."""
    is_one = isinstance(size, tirx.IntImm) and int(size.value) == 1
    return _WHOLE if is_one and isinstance(index, tirx.IntImm) and int(index.value) == 0 else index


def _depends(index: Any, var: Any) -> bool:
    if isinstance(index, _Span):
        return _depends(index.low, var) or _depends(index.end, var)
    return index is not _WHOLE and contains(index, tvm.ir.Var, var.same_as)


def _only_span(indices: Sequence[Any]) -> int:
    """The dimension along which these are a span, if they are the whole of all others; else -1."""
    spans = [dim for dim, index in enumerate(indices) if index is not _WHOLE]
    return spans[0] if len(spans) == 1 and isinstance(indices[spans[0]], _Span) else -1


def _fill(size: Any, spans: Sequence[_Span]) -> bool:
    """Do the spans, one after the other, reach from 0 to the size?"""
    rest, end = list(spans), int64(0)
    while rest:
        following = next((span for span in rest if equal(span.low, end)), None)
        if following is None:
            return False
        rest.remove(following)
        end = following.end
        if equal(end, size):
            return True
    return False


def _after_loop(place: _Place, loop: Any) -> Iterator[_Place]:
    """What a loop surely writes, from what each iteration does."""
    used = [index for index in place.indices if _depends(index, loop.loop_var)]
    if not used:
        runs = isinstance(loop.extent, tirx.IntImm) and int(loop.extent.value) > 0
        if runs:
            yield place
        return
    if len(used) > 1 or isinstance(used[0], _Span) or loop.step is not None:
        return
    shift = tvm.sym.Analyzer().simplify(used[0] - loop.loop_var)
    if _depends(shift, loop.loop_var):
        return
    at = next(i for i, index in enumerate(place.indices) if index is used[0])
    low = shift + loop.min
    found: Any = _Span(low, low + loop.extent)
    if equal(found.low, int64(0)) and equal(found.end, place.buffer.shape[at]):
        found = _WHOLE
    yield _Place(place.buffer, (*place.indices[:at], found, *place.indices[at + 1 :]))


def _replaced(index: Any, values: dict[Any, Any]) -> Any:
    if index is _WHOLE:
        return index
    if isinstance(index, _Span):
        return _Span(_replaced(index.low, values), _replaced(index.end, values))
    return rewritten(index, (tvm.ir.Var, lambda var: values.get(var, var)))


def _has_choices(node: Any) -> bool:
    return contains_any(
        node,
        (_CHOICES, lambda _: True),
        (tvm.ir.Call, lambda call: str(getattr(call.op, "name", "")).endswith("if_then_else")),
    )
