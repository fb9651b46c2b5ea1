"""A tensor program as a list of stages, the representation that the schedule rules for processors work on.

Operators are legalised to programs in which each block writes each element of one buffer once, from a scalar expression
or a reduction of one (`te.create_prim_func`). `read_stages` recovers from such a program values that can be inlined,
fused and written out again as loops. It returns None for every other program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from relaxpy.tir.analyzer import equal
from relaxpy.tir.numerics.elementary import length_of
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, Stmt, constant, int64
from relaxpy.tir.recognise.inline import with_named_reads
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, rewritten, walk

Var = tvm.ir.Var
Load = tvm.ir.TensorLoad

_COMBINERS: dict[type, str] = {
    tirx.Add: "add",
    tirx.Mul: "mul",
    tirx.Max: "max",
    tirx.Min: "min",
    tirx.And: "and",
    tirx.Or: "or",
}
_CHEAP_CALLS = frozenset(
    f"tirx.{name}"
    for name in (
        "reinterpret fabs isnan floor trunc round nearbyint shift_left shift_right"
        " bitwise_and bitwise_or bitwise_xor bitwise_not"
    ).split(" ")
)
LARGEST_VALUE = 1500
"""Inlining stops at expressions with more nodes than this."""
_LARGEST_COPIED = 200
"""Expressions with at most this many nodes are copied to each read; larger ones are computed once, under a name."""


@dataclass(frozen=True)
class Combiner:
    """The operator by which a reduction combines two values."""

    kind: str
    """`add`, `mul`, `max`, `min`, `and` or `or`, all associative and commutative but for rounding.

    `maximum` and `minimum` are max and min that pass a NaN on (`relaxpy.tir.numerics.scalar`).
    """
    init: Expr
    """The value of an empty reduction."""

    def join(self, a: Expr, b: Expr) -> Expr:
        """Combine two values; `a` is the accumulated one."""
        if self.kind in ("maximum", "minimum"):
            return _join_with_nan(a, b, tirx.GT if self.kind == "maximum" else tirx.LT)
        node = next(node for node, kind in _COMBINERS.items() if kind == self.kind)
        return node(a, b)

    def of_numbers(self) -> Combiner | None:
        """The simpler combiner for values that are not NaN; None if this one does not look for NaN."""
        simpler = {"maximum": "max", "minimum": "min"}.get(self.kind)
        return None if simpler is None else replace(self, kind=simpler)

    def neutral(self) -> Expr:
        """The neutral element, from which partial results start. For max and min the initial value serves."""
        match self.kind:
            case "add":
                return tirx.const(0, self.init.ty.dtype)
            case "mul":
                return tirx.const(1, self.init.ty.dtype)
            case _:
                return self.init


@dataclass(frozen=True)
class Stage:
    """One buffer and the definition of its elements: `buffer[axes] = value`, combined over `reduce_axes` if there are
    any.

    Axes of extent 1 are not among `axes`; `index` has a constant 0 in their place.
    """

    name: str
    buffer: Buffer
    index: tuple[Expr, ...]
    """The index in the buffer: an axis or 0 for each dimension."""
    axes: tuple[Var, ...]
    extents: tuple[Expr, ...]
    reduce_axes: tuple[Var, ...]
    reduce_extents: tuple[Expr, ...]
    value: Expr
    combiner: Combiner | None

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """All reads of the value, with repetitions."""
        return tuple(loads_of(self.value))

    @cached_property
    def is_expensive(self) -> bool:
        """Does `is_expensive` hold for its value?"""
        return is_expensive(self.value)

    @cached_property
    def size(self) -> int:
        """The number of nodes of its value."""
        return _size(self.value)

    def reads(self, buffer: Buffer) -> list[Load]:
        """The reads of this buffer."""
        return [load for load in self.loads if load.source.same_as(buffer)]


@lru_cache(maxsize=4096)  # passes and rules ask again and again
def stages_of(func: PrimFunc) -> tuple[Stage, ...] | None:
    """The stages of a program: `read_stages`, then `inline_stages`; None if it has none."""
    stages = read_stages(func)
    return None if stages is None else tuple(inline_stages(stages, func))


@lru_cache(maxsize=4096)  # so do rules that inline themselves
def read_stages(func: PrimFunc) -> tuple[Stage, ...] | None:
    """The stages of a program in order, where each buffer is written once and before it is read; None for other
    programs."""
    realize = func.body
    if not isinstance(realize, s_tir.SBlockRealize) or len(realize.iter_values) != 0:
        return None
    root = realize.block
    if len(root.match_buffers) != 0 or root.init is not None:
        return None
    stmts = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    stages: list[Stage] = []
    buffers = {*func.params, *root.alloc_buffers}
    written: set[Buffer] = set()
    read: set[Buffer] = set()
    for stmt in stmts:
        stage = _read_stage(stmt)
        if stage is None or stage.buffer in written:
            return None
        read.update(load.source for load in stage.loads)
        if stage.buffer in read or not buffers.issuperset(load.source for load in stage.loads):
            return None
        if any(buffer.strides or constant(buffer.elem_offset) != 0 for buffer in _touched(stage)):
            return None
        written.add(stage.buffer)
        stages.append(stage)
    return tuple(stages)


def is_output(stage: Stage, func: PrimFunc) -> bool:
    """Does the stage write a parameter of the function?"""
    return any(stage.buffer.same_as(param) for param in func.params)


def inline_stages(stages: Sequence[Stage], func: PrimFunc) -> list[Stage]:
    """Inline element-wise intermediates into their uses, so that they need no memory.

    Expensive values that would be recomputed often are not inlined: a value per row that is used for every element (it
    stays a stage), and a value used by several stages that can be stored in the output (`share_output`).
    """
    inlining = _Inlining(share_output(list(stages), func), func)
    # Long values that several stages read wait until these are one stage: each copy would double at every further such
    # value. If the stages never become one, the values are copied in the end.
    for copying in (False, True):
        while any([inlining.inline(number, copying) for number in [*inlining.stages]]):
            pass
    return [*inlining.stages.values()]


class _Inlining:
    """The stages that are left, and who reads which buffer."""

    def __init__(self, stages: Sequence[Stage], func: PrimFunc) -> None:
        self.stages = dict(enumerate(stages))
        self._outputs = set(func.params)
        self._readers: dict[Buffer, set[int]] = {}
        self._is_too_large = any(stage.size > LARGEST_VALUE for stage in stages)
        for number, stage in self.stages.items():
            self._note(number, stage)

    def _note(self, number: int, stage: Stage) -> None:
        for load in stage.loads:
            self._readers.setdefault(load.source, set()).add(number)

    def inline(self, number: int, copying: bool) -> bool:
        """Inline the value of a stage into its uses, if that is allowed; long values into several stages only with
        `copying`."""
        producer = self.stages[number]
        if producer.combiner is not None or producer.buffer in self._outputs or self._is_too_large:
            return False
        users = [n for n in self._readers.get(producer.buffer, ()) if n > number]
        if not all(_may_inline(producer, self.stages[user]) for user in users):
            return False
        if len(users) > 1 and not copying and len(users) * producer.size > _LARGEST_COPIED:
            return False
        inlined = {user: inlined_into(producer, self.stages[user]) for user in users}
        if any(stage.size > LARGEST_VALUE for stage in inlined.values()):
            return False
        for load in producer.loads:
            self._readers[load.source].discard(number)
        for user, stage in inlined.items():
            self.stages[user] = stage
            self._note(user, stage)
        del self.stages[number]
        return True


def share_output(stages: list[Stage], func: PrimFunc) -> list[Stage]:
    """Store an expensive intermediate that several stages read in the last stage's output, element by element.

    For softmax, the exponentials are stored where the quotients will be written, so they are computed once and need no
    memory of their own.
    """
    last = stages[-1]
    if last.combiner is not None or not is_output(last, func):
        return stages
    for stage in stages[:-1]:
        readers = [other for other in stages if other.reads(stage.buffer)]
        if (
            stage.combiner is not None
            or is_output(stage, func)
            or len(readers) < 2
            or not stage.is_expensive
            or str(stage.buffer.dtype) != str(last.buffer.dtype)
            or not same_extents(stage.buffer.shape, last.buffer.shape)
            or not last.reads(stage.buffer)
            or not all(equal_indices(load.indices, last.index) for load in last.reads(stage.buffer))
        ):
            continue
        return [_rebuffered(other, stage.buffer, last.buffer) for other in stages]
    return stages


def common_rows(stages: Sequence[Stage]) -> int:
    """The number of leading dimensions that all stages share as independent rows.

    Along them a stage reads only the row of another's buffer that it computes, so one loop over rows can contain all
    stages.
    """
    first = stages[0]
    limit = min(len(stage.index) for stage in stages)
    rows = 0
    while rows < limit and all(_row_agrees(first, stage, rows) for stage in stages):
        if not all(_reads_own_row(stage, stages, rows) for stage in stages):
            break
        rows += 1
    return rows


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return the expression with variables replaced. Variables that it binds itself are renamed."""
    if isinstance(expr, Var):
        return values.get(expr, expr)
    table = dict(values)

    def let(node: tirx.Let) -> Expr:
        var = tirx.Var(node.var.name, node.var.ty.dtype)
        body = rewritten(node.body, (Var, lambda v: var if v.same_as(node.var) else v))
        return tirx.Let(var, node.value, body)

    if table:
        expr = rewritten(expr, (Var, lambda var: table.get(var, var)))
    return rewritten(expr, (tirx.Let, let))


def rebuffer(expr: Expr, change: Mapping[Buffer, tuple[Buffer, int]]) -> Expr:
    """Return the expression reading other buffers. `change` gives for each buffer the new one, and the number of
    leading indices to drop."""

    def load(node: Load) -> Expr:
        if node.source not in change:
            return node
        buffer, dropped = change[node.source]
        indices = list(node.indices)[dropped:]
        if not indices and len(buffer.shape):
            indices = [int64(0)]  # a scalar's memory, which has one element
        return tirx.BufferLoad(buffer, indices)

    return rewritten(expr, (Load, load))


def map_loads(expr: Expr, change: Callable[[Load], Expr]) -> Expr:
    """Return the expression with every read replaced."""
    return rewritten(expr, (Load, change))


def loads_of(node: Expr | Stmt) -> list[Load]:
    """Every read in an expression or statement."""
    found: list[Load] = []
    walk(node, (Load, lambda load: found.append(load)))
    return found


def step(indices: Sequence[Expr], shape: Sequence[Expr], var: Var) -> int | None:
    """The stride of an access to a compact buffer along `var`, in elements; None if it varies."""
    analyzer = tvm.sym.Analyzer()
    offset = flat_index(indices, shape)
    if any(loads_var(index, var) for index in indices):
        return None
    moved = rewritten(offset, (Var, lambda v: v + int64(1) if v.same_as(var) else v))
    return constant(analyzer.simplify(moved - offset))


def loads_var(expr: Expr, var: Var) -> bool:
    """Does the expression read memory at an index that depends on `var`?"""
    return any(uses(index, var) for load in loads_of(expr) for index in load.indices)


def uses(expr: Expr, var: Var) -> bool:
    """Whether the variable occurs in the expression."""
    found: list[Var] = []

    def visit(other: Var) -> None:
        if other.same_as(var):
            found.append(other)

    walk(expr, (Var, visit))
    return bool(found)


def is_choice(node: Expr) -> bool:
    """Is the node `tirx.if_then_else`? Only one of its two values is evaluated, so only one is read."""
    return (
        isinstance(node, tvm.ir.Call) and str(getattr(node.op, "name", "")) == "prim.if_then_else"
    )


def has_choice(expr: Expr) -> bool:
    """Does the expression guard reads that must not happen elsewhere?"""
    return contains(expr, tvm.ir.Call, is_choice)


def is_expensive(expr: Expr, along: Var | None = None) -> bool:
    """Does the value take much longer to compute than to read? Divisions, roots, elementary functions and choices
    do; where an axis is given, only those that vary along it."""

    def counts(node: Expr) -> bool:
        is_cheap = isinstance(node, tvm.ir.Call) and node.op.name in _CHEAP_CALLS
        return not is_cheap and (along is None or uses(node, along))

    return contains(expr, (tvm.ir.Call, tirx.Div, tirx.Let), counts)


def same_extents(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Are two shapes provably equal?"""
    if len(a) != len(b):
        return False
    return all(equal(int64(x), int64(y)) for x, y in zip(a, b, strict=True))


def equal_indices(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Are two indices structurally equal?"""
    if len(a) != len(b):
        return False
    return all(tvm_ffi.structural_equal(x, y) for x, y in zip(a, b, strict=True))


def flat_index(indices: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """The flat index of an element in a compact buffer."""
    offset: Expr = int64(0)
    for index, extent in zip(indices, shape, strict=True):
        offset = offset * int64(extent) + int64(index)
    return offset


def _read_stage(stmt: Stmt) -> Stage | None:
    loops: dict[Var, Expr] = {}
    while isinstance(stmt, tirx.For):
        if (
            stmt.kind != tirx.ForKind.SERIAL
            or constant(stmt.min) != 0
            or len(stmt.annotations) != 0
        ):
            return None
        loops[stmt.loop_var] = stmt.extent
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or constant(stmt.predicate) != 1:
        return None
    block = stmt.block
    store = block.body
    if not isinstance(store, tirx.BufferStore) or len(block.alloc_buffers) != 0:
        return None
    if len(block.match_buffers) != 0 or len(block.annotations) != 0:
        return None
    spatial: dict[Var, Expr] = {}
    reduce: dict[Var, Expr] = {}
    unit: dict[Var, Expr] = {}
    for iter_var, value in zip(block.iter_vars, stmt.iter_values, strict=True):
        extent = iter_var.dom.extent
        if constant(extent) == 1 and constant(value) in (0, None):
            unit[iter_var.var] = int64(0)
            if isinstance(value, Var) and constant(loops.pop(value, int64(1))) != 1:
                return None
            continue
        length = loops.pop(value, None) if isinstance(value, Var) else None
        if length is None or not _same_extent(length, extent):
            return None
        kinds = {tirx.IterVar.DataPar: spatial, tirx.IterVar.CommReduce: reduce}
        if iter_var.iter_type not in kinds:
            return None
        kinds[iter_var.iter_type][iter_var.var] = int64(extent)
    if any(constant(extent) != 1 for extent in loops.values()):
        return None
    folded = [v.var for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
    if folded and not reduce:  # a reduction keeps an axis, even of extent 1
        del unit[folded[-1]]
        reduce[folded[-1]] = int64(1)
    index = tuple(substitute(i, unit) for i in store.indices)
    if not _covers(index, store.buffer, spatial):
        return None
    combined = _read_value(store, block.init)
    if combined is None or (combined[1] is None and reduce):
        return None
    value, combiner = combined
    return Stage(
        block.name_hint,
        store.buffer,
        index,
        tuple(spatial),
        tuple(spatial.values()),
        tuple(reduce),
        tuple(reduce.values()),
        substitute(value, unit) if unit else value,
        combiner,
    )


def _same_extent(a: Expr, b: Expr) -> bool:
    """Does a loop cover all of an axis? Nearly always both extents are written the same."""
    return tvm_ffi.structural_equal(a, b) or same_extents([a], [b])


def _covers(index: Sequence[Expr], buffer: Buffer, axes: Mapping[Var, Expr]) -> bool:
    """Is the index the axes in order, each as long as its dimension, and 0 for dimensions of 1?"""
    rest = list(axes.items())
    for place, extent in zip(index, buffer.shape, strict=True):
        if constant(place) == 0 and constant(extent) == 1:
            continue
        if not rest or not isinstance(place, Var) or not place.same_as(rest[0][0]):
            return False
        if not same_extents([rest.pop(0)[1]], [extent]):
            return False
    return not rest


def _read_value(store: tirx.BufferStore, init: Stmt | None) -> tuple[Expr, Combiner | None] | None:
    """The value of an element-wise block, or the operand and combiner of a reduction."""
    own = [load for load in loads_of(store.value) if load.source.same_as(store.buffer)]
    if init is None:
        return None if own else (store.value, None)
    if not isinstance(init, tirx.BufferStore) or not init.buffer.same_as(store.buffer):
        return None
    if loads_of(init.value) or not all(equal_indices(load.indices, store.indices) for load in own):
        return None
    joined = _read_join(store.value, store.buffer)
    if joined is None or any(load.source.same_as(store.buffer) for load in loads_of(joined[1])):
        return None
    kind, operand = joined
    return operand, Combiner(kind, init.value)


def _read_join(value: Expr, total: Buffer) -> tuple[str, Expr] | None:
    """The kind of combiner and the operand of a block that combines an accumulated `total` with an operand."""

    def is_total(expr: Expr) -> bool:
        return isinstance(expr, Load) and expr.source.same_as(total)

    if type(value) in _COMBINERS:
        for gathered, operand in ((value.a, value.b), (value.b, value.a)):
            if is_total(gathered):
                return _COMBINERS[type(value)], operand
        return None
    if not isinstance(value, tirx.Select) or type(value.condition) not in (tirx.GT, tirx.LT):
        return None
    gathered, operand = value.condition.a, value.condition.b
    node = type(value.condition)
    if is_total(gathered) and tvm_ffi.structural_equal(
        _select_with_nan(gathered, operand, node), value
    ):
        return "maximum" if node is tirx.GT else "minimum", operand
    return None


def _select_with_nan(a: Expr, b: Expr, compare: type) -> Expr:
    return tirx.Select(compare(a, b), a, tirx.Select(tirx.isnan(a), a, b))


def _join_with_nan(a: Expr, b: Expr, compare: type) -> Expr:
    """The larger or smaller of two numbers or vectors, each computed once; NaN if either is NaN."""
    x, y = tirx.Var("a", a.ty), tirx.Var("b", b.ty)
    # A comparison in front of its choice is one instruction of most processors.
    joined = tirx.Select(tirx.isnan(x), x, tirx.Select(compare(x, y), x, y))
    return tirx.Let(x, a, tirx.Let(y, b, joined))


def _touched(stage: Stage) -> list[Buffer]:
    return [stage.buffer, *(load.source for load in stage.loads)]


def _may_inline(producer: Stage, user: Stage) -> bool:
    """Is inlining the producer into every read in `user` at most a few times the work?"""
    if not producer.is_expensive:
        return True
    axes = [*user.axes, *user.reduce_axes]
    return all(
        any(uses(index, axis) for index in load.indices)
        for load in user.reads(producer.buffer)
        for axis in axes
    )


def inlined_into(producer: Stage, user: Stage) -> Stage:
    """Return the user with the producer's value inlined; the producer must be element-wise.

    A short value is copied to each read: rules recognise programs by such values, and LLVM removes the repetition. A
    value that would grow long is computed once per element read, under a name.
    """

    def value(indices: Sequence[Expr]) -> Expr:
        values = {
            axis: index
            for axis, index in zip(producer.index, indices, strict=True)
            if isinstance(axis, Var)
        }
        return substitute(producer.value, values)

    def load(node: Load) -> Expr:
        return value(node.indices) if node.source.same_as(producer.buffer) else node

    copies = len(user.reads(producer.buffer))
    if copies > 1 and user.size + copies * producer.size > _LARGEST_COPIED:
        return replace(user, value=with_named_reads(user.value, producer.buffer, value))
    return replace(user, value=rewritten(user.value, (Load, load)))


def _rebuffered(stage: Stage, old: Buffer, new: Buffer) -> Stage:
    buffer = new if stage.buffer.same_as(old) else stage.buffer
    return replace(stage, buffer=buffer, value=rebuffer(stage.value, {old: (new, 0)}))


def _row_agrees(first: Stage, stage: Stage, row: int) -> bool:
    a, b = first.index[row], stage.index[row]
    if isinstance(a, Var) != isinstance(b, Var):
        return False
    return same_extents([first.buffer.shape[row]], [stage.buffer.shape[row]])


def _reads_own_row(stage: Stage, stages: Sequence[Stage], row: int) -> bool:
    own = stage.index[row]
    for other in stages:
        for load in stage.reads(other.buffer):
            if not tvm_ffi.structural_equal(load.indices[row], own):
                return False
    return True


def _size(expr: Expr) -> int:
    """The number of nodes of an expression, with elementary functions expanded."""
    count = 0

    def visit(node: Expr) -> None:
        nonlocal count
        count += length_of(node) if isinstance(node, tvm.ir.Call) else 1

    walk(expr, (tvm.ir.Expr, visit))
    return count
