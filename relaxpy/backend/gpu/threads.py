"""A simple schedule for every launch: one thread per element of the result, or per iteration of a parallel loop.

The independent axes of a block are bound to threads, numbered as one axis. Each thread loops over the reduced axes,
with its total in a register, and over outer axes whose positions may write one place, such as the rows of a table of
indices. Other blocks, and serial loops, run on one thread. So every program gets a correct kernel for all sizes, 0 and
1 included; rules that know more about a program produce faster ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from relaxpy.analysis.independence import in_order, rows_at_once
from relaxpy.backend.gpu.launches import outer_parallel
from relaxpy.errors import BuildError
from relaxpy.ir.module import APART
from relaxpy.tir.lowering.workspace import is_shared
from relaxpy.tir.prim_func import read_symbols
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.recognise.stages import equal_indices
from relaxpy.tir.schedule import with_kind
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.types import Expr, Stmt, Var
from relaxpy.tir.walk import contains, rewritten, walk


def bind_threads(func: tirx.PrimFunc, group: int) -> tirx.PrimFunc:
    """Return the launch (`relaxpy.backend.gpu.launches`) with its loops bound to threads in groups of `group`. A launch
    whose author bound loops to threads stays unchanged."""
    if _is_bound(func):
        return func
    func = rows_at_once(_in_root(_with_private_memory(func)))
    func = _with_root(func, _in_block(func.body.block.body))
    root = func.body.block
    rows = outer_parallel(func.body)
    sizes = set(read_symbols(func).symbols)
    nest = _read_nest(root.body, sizes)
    if nest is not None and not _is_apart(nest, func):
        nest = _in_order(nest, func)
    if nest is not None:
        body = _per_element(nest, group)
    elif rows is not None and _is_sized(rows, sizes):
        body = _threads([rows], _serial(rows.body), group)
    else:
        body = _threads([], _serial(root.body), 1)
    return _with_root(func, body)


def _with_root(func: tirx.PrimFunc, body: Stmt) -> tirx.PrimFunc:
    """The function with another body of its root block."""
    root = func.body.block
    made = s_tir.SBlock(
        [], root.reads, root.writes, root.name_hint, body, None, root.alloc_buffers, root.match_buffers,
        root.annotations,
    )  # fmt: skip
    return func.with_body(s_tir.SBlockRealize([], func.body.predicate, made))


def _is_bound(func: tirx.PrimFunc) -> bool:
    """Did its author bind loops to threads?"""
    bound = tirx.ForKind.THREAD_BINDING
    return contains(func.body, tirx.For, lambda loop: loop.kind == bound) or contains(
        func.body, tirx.AttrStmt, lambda node: node.attr_key == "thread_extent"
    )


def _in_root(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function in a root block, which TVM's passes expect around blocks."""
    if isinstance(func.body, s_tir.SBlockRealize) and not len(func.body.iter_values):
        return func
    root = s_tir.SBlock([], [], [], "root", func.body)
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), root))


def _with_private_memory(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with its allocations in each thread's private memory; larger ones are parameters by now.

    Raises: BuildError (`device-scratch`) for memory whose size was not known before.
    """
    found: list[Any] = []
    walk(
        func.body,
        (s_tir.SBlock, lambda block: found.extend(block.alloc_buffers)),
        (tirx.AllocBuffer, lambda alloc: found.append(alloc.buffer)),
    )
    own: dict[Var, Var] = {}
    for buffer in found:
        if str(buffer.scope()) != "global":
            continue
        if is_shared(buffer):
            raise BuildError(
                "device-scratch",
                f"{buffer.name} has a size that the program computes itself, so that it cannot be allocated "
                "before the launch",
                help="allocate an upper bound of the size, in terms of the dimensions of the arguments",
            )
        own[buffer] = tirx.decl_buffer(
            list(buffer.shape), str(buffer.dtype), buffer.name, scope="local"
        )
    if not own:
        return func
    return func.with_body(rewritten(func.body, (tvm.ir.Var, lambda var: own.get(var, var))))


@dataclass(frozen=True)
class _Nest:
    """Loops around one block whose axes are independent or reduced."""

    apart: tuple[Any, ...]
    """The loops of independent axes, outermost first."""
    folded: tuple[Any, ...]
    """The other loops."""
    realize: Any
    ordered: tuple[Any, ...] = ()
    """Loops that each thread runs in order, around the folded ones."""
    inner: tuple[Any, ...] = ()
    """Loops of independent axes whose range the host does not know, as that of a triangle: each thread runs them."""


def _in_block(stmt: Stmt) -> Stmt:
    """Plain loops around one store, perhaps with conditions between them, as a nest of one block whose axes are all
    declared independent (which `_is_apart` proves or refutes); other statements unchanged."""
    loops: list[Any] = []
    conditions: list[Expr] = []
    inner = stmt
    while True:
        if isinstance(inner, tirx.For) and inner.kind == tirx.ForKind.SERIAL:
            loops.append(inner)
            inner = inner.body
        elif isinstance(inner, tirx.IfThenElse) and inner.else_case is None:
            conditions.append(inner.condition)
            inner = inner.then_case
        else:
            break
    if not isinstance(inner, tirx.BufferStore) or not loops or _reads(conditions, inner.buffer):
        return stmt
    axes = {loop.loop_var: tirx.Var(f"v_{loop.loop_var.name}", loop.loop_var.ty) for loop in loops}
    for condition in reversed(conditions):
        inner = tirx.IfThenElse(condition, inner, None)
    body = rewritten(inner, (tvm.ir.Var, lambda var: axes.get(var, var)))
    iters = [
        tirx.IterVar(
            tvm.ir.Range.from_min_extent(loop.min, loop.extent),
            axes[loop.loop_var],
            tirx.IterVar.DataPar,
        )
        for loop in loops
    ]
    block = s_tir.SBlock(iters, [], [], "element", body)
    values = [loop.loop_var for loop in loops]
    return _in_loops(loops, s_tir.SBlockRealize(values, tirx.const(True, "bool"), block))


def _reads(values: Sequence[Expr], buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for value in values for load in _loads(value))


def _read_nest(stmt: Stmt, sizes: set[Var]) -> _Nest | None:
    """The statement as a nest of axes that its author declares independent or reduced; None for other statements. The
    host knows the `sizes`."""
    loops: list[Any] = []
    while isinstance(stmt, tirx.For) and stmt.kind in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL):
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or not len(stmt.iter_values):
        return None
    block = stmt.block
    if len(block.match_buffers) or contains(block.body, s_tir.SBlock):
        return None
    apart: set[Var] = set()
    folded: set[Var] = set()
    kinds = {tirx.IterVar.DataPar: apart, tirx.IterVar.CommReduce: folded}
    for axis, value in zip(block.iter_vars, stmt.iter_values, strict=True):
        if axis.iter_type not in kinds:
            return None
        walk(value, (tvm.ir.Var, kinds[axis.iter_type].add))
    if apart & folded or (folded and not _has_one_element(block)):
        return None
    others = [loop for loop in loops if loop.loop_var not in apart]
    given = [loop for loop in loops if loop.loop_var in apart and _is_sized(loop, sizes)]
    inner = [loop for loop in loops if loop.loop_var in apart and loop not in given]
    if any(_uses_other(loop, others) for loop in inner):
        return None
    return _Nest(tuple(given), tuple(others), stmt, inner=tuple(inner))


def _is_sized(loop: Any, sizes: set[Var]) -> bool:
    """Is the range of a loop a formula of sizes?"""
    return not any(
        contains(bound, tvm.ir.TensorLoad) or contains(bound, tvm.ir.Var, lambda v: v not in sizes)
        for bound in (loop.min, loop.extent)
    )


def _is_apart(nest: _Nest, func: tirx.PrimFunc) -> bool:
    """Do different positions of the independent axes never write what another reads or writes? The author's declaration
    may be wrong, so it is proved, as for loops on processors, unless the block says that it was checked (`APART`)."""
    if APART in nest.realize.block.annotations:
        return True
    wide = [loop.loop_var for loop in (*nest.apart, *nest.inner) if not _is_one(loop.extent)]

    def parallel(loop: Any) -> Any:
        among = any(loop.loop_var.same_as(var) for var in wide)
        return with_kind(loop, tirx.ForKind.PARALLEL) if among else loop

    spread = func.with_body(rewritten(func.body, (tirx.For, parallel)))
    return in_order(spread).same_as(spread)


def _in_order(nest: _Nest, func: tirx.PrimFunc) -> _Nest | None:
    """The nest with its outermost axes in order in each thread, as few as make the others apart; None if there is no
    such. What a table of indices writes to is of this kind: two of its rows may be one place, but elements of a row are
    apart."""
    if nest.folded or nest.inner:
        return None
    for count in range(1, len(nest.apart)):
        ordered, apart = nest.apart[:count], nest.apart[count:]
        moved = replace(nest, apart=apart, ordered=ordered)
        if _is_apart(moved, _with_root(func, _in_loops((*apart, *ordered), nest.realize))):
            return moved
    return None


def _uses_other(loop: Any, loops: Sequence[Any]) -> bool:
    """Does the range of a loop depend on others?"""
    names = [other.loop_var for other in loops]
    return any(
        contains(bound, tvm.ir.Var, lambda var: any(var.same_as(name) for name in names))
        for bound in (loop.min, loop.extent)
    )


def _is_one(extent: Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent.value) == 1


def _has_one_element(block: Any) -> bool:
    """Does a reduction block access, in each buffer that it writes, only one element, independent of the reduced axes?
    Then that element can be a register."""
    folded = {axis.var for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce}
    own = _own_buffers(block)
    stores, loads = _stores(block.body), _loads(block.body)
    for buffer, indices in _first_stores(block).items():
        if buffer in own:
            continue
        places = [list(s.indices) for s in stores if s.buffer.same_as(buffer)]
        places += [list(load.indices) for load in loads if load.source.same_as(buffer)]
        if not all(equal_indices(indices, other) for other in places):
            return False
        if any(contains(i, tvm.ir.Var, folded.__contains__) for i in indices):
            return False
    return True


def _own_buffers(block: Any) -> set[Var]:
    """The buffers that a block allocates."""
    own = set(block.alloc_buffers)
    walk(block.body, (tirx.AllocBuffer, lambda node: own.add(node.buffer)))
    return own


def _first_stores(block: Any) -> dict[Var, list[Expr]]:
    """Every buffer that a block writes, with its first store."""
    first: dict[Var, list[Expr]] = {}
    for store in _stores(block.body):
        first.setdefault(store.buffer, list(store.indices))
    return first


def _stores(node: Any) -> list[Any]:
    found: list[Any] = []
    walk(node, (tirx.BufferStore, found.append))
    return found


def _loads(node: Any) -> list[Any]:
    found: list[Any] = []
    walk(node, (tvm.ir.TensorLoad, found.append))
    return found


def _per_element(nest: _Nest, group: int) -> Stmt:
    """The nest with one thread per position of its independent axes."""
    realize, block = nest.realize, nest.realize.block
    values = {
        axis.var: value for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
    }

    def placed(node: Any) -> Any:
        return rewritten(node, (tvm.ir.Var, lambda var: values.get(var, var)))

    inner = placed(block.body)
    if contains(realize.predicate, tvm.ir.Var):
        inner = tirx.IfThenElse(realize.predicate, inner, None)
    for buffer in block.alloc_buffers:
        inner = _sequence([tirx.AllocBuffer(buffer), inner])
    if nest.folded:
        first = {buffer: list(map(placed, at)) for buffer, at in _first_stores(block).items()}
        before = {
            store.buffer: placed(store.value)
            for store in (_stores(block.init) if block.init is not None else [])
        }
        inner = _folded(nest, inner, first, before)
    elif block.init is not None:
        inner = _sequence([placed(block.init), inner])
    inner = _in_loops((*nest.ordered, *nest.inner), inner)
    return _threads(nest.apart, inner, group if nest.apart else 1)


def _folded(
    nest: _Nest, inner: Stmt, first: dict[Var, list[Expr]], before: dict[Var, Expr]
) -> Stmt:
    """The reduction loops, with the elements that they write kept in registers until the end."""
    local = {
        buffer: tirx.decl_buffer([1], str(buffer.dtype), f"{buffer.name}_total", scope="local")
        for buffer in first
    }
    zero = [int64(0)]

    def load(node: Any) -> Any:
        return tirx.BufferLoad(local[node.source], zero) if node.source in local else node

    def store(node: Any) -> Any:
        if node.buffer not in local:
            return node
        return tirx.BufferStore(local[node.buffer], node.value, zero)

    inner = rewritten(inner, (tvm.ir.TensorLoad, load), (tirx.BufferStore, store))
    inner = _in_loops(nest.folded, inner)
    start: list[Stmt] = []
    end: list[Stmt] = []
    for buffer, indices in first.items():
        value = before.get(buffer)
        if value is None:
            value = tirx.BufferLoad(buffer, indices)
        start += [tirx.AllocBuffer(local[buffer]), tirx.BufferStore(local[buffer], value, zero)]
        end.append(tirx.BufferStore(buffer, tirx.BufferLoad(local[buffer], zero), indices))
    return _sequence([*start, inner, *end])


def _in_loops(loops: Sequence[Any], body: Stmt) -> Stmt:
    """The body in the loops, outermost first, each in order."""
    for loop in reversed(loops):
        body = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body, None, {})
    return body


def _threads(loops: Sequence[Any], body: Stmt, group: int) -> Stmt:
    """The body for all iterations of the loops, one thread each, in groups of this size."""
    number, thread = tirx.Var("group", "int64"), tirx.Var("thread", "int64")
    total: Expr = int64(1)
    for loop in loops:
        total = total * loop.extent
    if loops:
        element = tirx.Var("element", "int64")
        named: list[Stmt] = []
        rest: Expr = element
        for loop in reversed(loops[1:]):
            # No thread exists if an extent is 0, but a compiler may divide before it checks that.
            extent = int64(loop.extent)
            is_known = isinstance(extent, tirx.IntImm)
            divisor = int64(max(int(extent.value), 1)) if is_known else tirx.max(extent, int64(1))
            outer = tirx.Var("rest", "int64")
            named.append(_bind(loop, tirx.truncmod(rest, divisor)))
            named.append(tirx.Bind(outer, tirx.truncdiv(rest, divisor)))
            rest = outer
        named.append(_bind(loops[0], rest))
        body = tirx.IfThenElse(element < total, _sequence([*named, body]), None)
        body = _sequence([tirx.Bind(element, number * int64(group) + thread), body])
    groups = tirx.floordiv(total + int64(group - 1), int64(group)) if group > 1 else total
    inner = _thread_loop(thread, int64(group), "threadIdx.x", body)
    return _thread_loop(number, groups, "blockIdx.x", inner)


def _bind(loop: Any, index: Expr) -> Any:
    """The loop's variable, bound to its iteration number `index`."""
    value = int64(loop.min) + index
    dtype = str(loop.loop_var.ty.dtype)
    return tirx.Bind(loop.loop_var, value if dtype == "int64" else tirx.Cast(dtype, value))


def _sequence(stmts: Sequence[Stmt]) -> Stmt:
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(list(stmts))


def _serial(stmt: Stmt) -> Stmt:
    """The statement with its parallel loops serial."""

    def serial(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        kind = tirx.ForKind.SERIAL
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, kind, loop.body, None, loop.annotations
        )

    return rewritten(stmt, (tirx.For, serial))


def _thread_loop(var: Var, extent: Expr, tag: str, body: Stmt) -> Any:
    binding = tirx.IterVar(None, tirx.Var(tag, "int64"), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, int64(0), extent, tirx.ForKind.THREAD_BINDING, body, binding, {})
