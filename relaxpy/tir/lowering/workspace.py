"""Workspaces: memory that a tensor program needs beside its parameters (paper §4.4), as parameters of it, and programs
split into several launches that share such memory.

An allocation in global memory, outside of loops, is shared by the whole program. If the caller allocates it, it becomes
part of the memory plan. A program lists its workspace parameters in the attribute `GIVEN`. A workspace that only a
schedule rule uses is a parameter that the program's text does not use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.errors import PassError
from relaxpy.ir.dim import SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.module import BufferParam, TensorProgram
from relaxpy.tir.analyzer import equal
from relaxpy.tir.extents import whole
from relaxpy.tir.prim_func import GIVEN, PrimFunc, given_workspaces, read_symbols
from relaxpy.tir.schedule import is_scheduled
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.walk import rewritten, walk

_MOST_JOINED = 16
"""Longer programs are not searched for statements that can be one launch."""
SMALL = 1024
"""Smaller buffers of constant size are allocated on the kernel's stack."""


@dataclass(frozen=True)
class Launch:
    """A part of a program that runs by itself."""

    program: PrimFunc
    args: tuple[int | SymVar, ...]
    """The arguments of its parameters: the argument of this number in a call of the whole program, a workspace
    (numbered after the arguments), or the value of a symbol of the whole program."""


@dataclass(frozen=True)
class Launches:
    """A program split into launches that run one after the other, with the memory allocated for them."""

    launches: tuple[Launch, ...]
    workspaces: tuple[BufferParam, ...]
    """The workspaces. Their shapes mention symbols of the whole program."""


def lifted(
    program: PrimFunc, buffers: Sequence[Any], most_buffers: int | None = None
) -> Launches | None:
    """Return the program as one launch, with these buffers as parameters before the first one that it writes: buffers
    that it allocates outside of loops, and those that only its schedule uses. None if the size of none of them is a
    formula of the parameters' sizes. If a launch may take only `most_buffers` buffers, only the first ones are lifted,
    and the kernel allocates the others."""
    func: Any = program.func
    known = [(b, shape) for b in buffers if (shape := _shape(program, b)) is not None]
    if most_buffers is not None:
        known = known[: max(most_buffers - buffer_count(program), 0)]
    if not known:
        return None
    given = [buffer for buffer, _ in known]
    count = len(func.params)
    at = min(program.written, default=count)
    params = [*func.params[:at], *given, *func.params[at:]]
    made = tirx.PrimFunc(params, _without(func.body, given), func.ret_type, attrs=func.attrs)
    if not is_scheduled(func):
        numbers = [*_moved(given_workspaces(func), at, len(given)), *range(at, at + len(given))]
        made = made.with_attr(GIVEN, sorted(numbers))
    args = (*range(at), *range(count, count + len(given)), *range(at, count))
    return Launches((Launch(PrimFunc(made, program.span), args),), tuple(p for _, p in known))


def buffer_count(program: TensorProgram) -> int:
    """The number of buffers that a program takes."""
    return sum(isinstance(param, BufferParam) for param in program.params)


def _moved(numbers: Iterable[int], at: int, count: int) -> Iterator[int]:
    """Renumber parameters after `count` more were inserted before number `at`."""
    yield from (number + count if number >= at else number for number in numbers)


def source(program: PrimFunc) -> PrimFunc:
    """The program with all its workspaces as allocations of its root block, in the order of their first use. The result
    is the same whether or not they were lifted."""
    func: Any = program.func
    body = func.body
    if not isinstance(body, s_tir.SBlockRealize) or len(body.iter_values) != 0:
        return program
    numbers = given_workspaces(func)
    there = [buffer for block in _outer_blocks(body) for buffer in block.alloc_buffers]
    all_of_them = {*there, *(func.params[number] for number in numbers)}
    if not all_of_them:
        return program
    bare = _without(body, there)
    order = [var for var in _used(bare.block.body) if var in all_of_them]
    params = [param for number, param in enumerate(func.params) if number not in numbers]
    made = tirx.PrimFunc(params, _with_root(bare, order), func.ret_type, attrs=func.attrs)
    return PrimFunc(made.without_attr(GIVEN) if numbers else made, program.span)


def with_given(func: Any, arranged: Any, workspaces: Sequence[Any]) -> Any:
    """Return the scheduled `func` with its workspace parameters in place of the allocations."""
    table = _given(func, workspaces)
    if not table:
        return arranged
    given = set(table.values())
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    body = rewritten(
        arranged.body,
        (tvm.ir.Var, lambda var: table.get(var, var)),
        (tirx.AllocBuffer, lambda stmt: nothing if stmt.buffer in given else stmt),
    )
    return arranged.with_body(body)


def not_given(func: Any, workspaces: Sequence[Any]) -> list[Any]:
    """The workspaces that `func` will use and that are not parameters yet."""
    table = _given(func, workspaces)
    return [buffer for buffer in workspaces if buffer not in table]


def _given(func: Any, workspaces: Sequence[Any]) -> dict[Any, Any]:
    """The workspaces that are parameters of `func`, with these parameters. A workspace that the text does not use is
    the first parameter of the same dtype and size."""
    numbers = given_workspaces(func)
    if not numbers or not workspaces:
        return {}
    used = _used(func.body)
    free = [func.params[number] for number in numbers if func.params[number] not in used]
    table: dict[Any, Any] = {}
    for buffer in workspaces:
        found = next((given for given in free if _are_alike(buffer, given)), None)
        if found is not None:
            free.remove(found)
            table[buffer] = found
    return table


def _are_alike(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and len(a.shape) == len(b.shape) and all(map(equal, a.shape, b.shape))


def allocated(func: Any) -> list[Any]:
    """The buffers that a program scheduled by its author allocates in global memory, outside of loops."""
    body = func.body
    if isinstance(body, s_tir.SBlockRealize):
        found = list(body.block.alloc_buffers) if len(body.iter_values) == 0 else []
    else:
        stmts = body.seq if isinstance(body, tirx.SeqStmt) else [body]
        found = [stmt.buffer for stmt in stmts if isinstance(stmt, tirx.AllocBuffer)]
    return [buffer for buffer in found if is_shared(buffer)]


def handed_on(func: Any) -> list[Any]:
    """The buffers that a program allocates outside of loops and that several of its statements use: one writes what
    another reads. Such a buffer keeps its declared size; lowering shrinks or privatises a buffer that one statement
    alone uses."""
    found: list[Any] = []
    for block in _outer_blocks(func.body):
        candidates = [buffer for buffer in block.alloc_buffers if is_shared(buffer)]
        if candidates and isinstance(block.body, tirx.SeqStmt):
            uses = [_used(stmt) for stmt in block.body.seq]
            found += [b for b in candidates if sum(b in used for used in uses) > 1]
    return found


def _outer_blocks(stmt: Any) -> Iterator[Any]:
    """The root block, and the blocks without axes in it that are not inside a loop."""
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _outer_blocks(part)
    elif isinstance(stmt, s_tir.SBlockRealize) and len(stmt.iter_values) == 0:
        yield stmt.block
        yield from _outer_blocks(stmt.block.body)


def split(program: PrimFunc, joins: Callable[[Any], bool] | None = None) -> Launches | None:
    """Split the program into one launch per statement of its root block, for devices on which only the end of a launch
    synchronises all threads, and whose kernels cannot allocate. Its allocations there become workspaces, except for
    small ones that one launch alone uses. `joins` says of the function of several statements whether it can be one
    launch that needs no workspaces; then it is. None for one launch without workspaces, or if anything else is between
    the statements."""
    stmts = _statements(program.func)
    if stmts is None:
        return None
    runs = [[stmt] for stmt in stmts]
    if (
        joins is not None and 2 < len(stmts) <= _MOST_JOINED
    ):  # all of them together were tried before
        runs = _joined(program, stmts, joins)
    alone = {stmt for run in runs if len(run) == 1 for stmt in run}
    inside = {var for stmt in stmts if stmt not in alone for var in _used(stmt)}
    return _launches(program, runs, lambda buffer: is_shared(buffer) and buffer not in inside)


def _joined(
    program: PrimFunc, stmts: Sequence[Any], joins: Callable[[Any], bool]
) -> list[list[Any]]:
    """The statements in runs that can be one launch each: the next one joins if it can."""
    runs: list[list[Any]] = []
    for n, stmt in enumerate(stmts):
        if runs:
            tried = [*runs[:-1], [*runs[-1], stmt], *([other] for other in stmts[n + 1 :])]
            made = _launches(program, tried, lambda _: False)
            if made is not None and joins(made.launches[len(runs) - 1].program.func):
                runs[-1].append(stmt)
                continue
        runs.append([stmt])
    return runs


def divided(program: PrimFunc, most_buffers: int) -> Launches | None:
    """Split the program into as few launches as possible that each take at most `most_buffers` buffers: the next
    statement joins as long as it fits. None for a single launch, for a program scheduled by its author, or if anything
    else is between the statements. A statement that exceeds the limit is a launch by itself."""
    stmts = None if is_scheduled(program.func) else _statements(program.func)
    if stmts is None or len(stmts) == 1:
        return None
    uses = [_used(stmt) for stmt in stmts]
    given = {var for var in program.func.params if tirx.buffer.is_buffer_var(var)}
    allocated_here = set(program.func.body.block.alloc_buffers)
    users = Counter(var for used in uses for var in used if var in allocated_here)
    runs: list[list[Any]] = []
    seen = Counter[Any]()
    for stmt, used in zip(stmts, uses, strict=True):
        new = seen + Counter(var for var in used if var in given or var in allocated_here)
        taken = sum(var in given or count < users[var] for var, count in new.items())
        if runs and taken <= most_buffers:
            runs[-1].append(stmt)
            seen = new
        else:
            runs.append([stmt])
            seen = Counter(var for var in used if var in given or var in allocated_here)
    return _launches(program, runs, lambda _: False) if len(runs) > 1 else None


def _statements(func: Any) -> list[Any] | None:
    """The statements of a program's root block; None if there is no such block, or if it does more than run them."""
    body = func.body
    if not isinstance(body, s_tir.SBlockRealize) or len(body.iter_values) != 0:
        return None
    block = body.block
    if block.init is not None or block.match_buffers:
        return None
    stmts = list(block.body.seq) if isinstance(block.body, tirx.SeqStmt) else [block.body]
    plain = all(isinstance(stmt, tirx.For | s_tir.SBlockRealize) for stmt in stmts)
    return stmts if plain else [block.body]


def _launches(
    program: PrimFunc, runs: Sequence[Sequence[Any]], is_given: Callable[[Any], bool]
) -> Launches | None:
    """One launch for each run of statements. The workspaces are the buffers that several launches use, and those of the
    others that must be passed to kernels. None for one launch without workspaces."""
    func: Any = program.func
    stmts = [run[0] if len(run) == 1 else tirx.SeqStmt(list(run)) for run in runs]
    uses = [_used(stmt) for stmt in stmts]
    allocated = func.body.block.alloc_buffers
    users = {b: [n for n, used in enumerate(uses) if b in used] for b in allocated}
    between = [b for b, found in users.items() if found and (len(found) > 1 or is_given(b))]
    if len(stmts) == 1 and not between:
        return None
    shapes = [_shape(program, buffer) for buffer in between]
    workspaces = tuple(shape for shape in shapes if shape is not None)
    if len(workspaces) != len(between):
        return None
    given = [*func.params, *between]
    launches: list[Launch] = []
    for number, stmt in enumerate(stmts):
        own = [b for b, found in users.items() if found == [number] and b not in between]
        launches.append(_launch(program, stmt, given, uses[number], own))
    return Launches(tuple(launches), workspaces)


def _launch(
    program: PrimFunc, stmt: Any, given: Sequence[Any], used: Mapping[Any, None], own: Sequence[Any]
) -> Launch:
    """A run of statements as a program, with the buffers and scalars that it uses, and with the sizes that none of
    those buffers defines."""
    func: Any = program.func
    written = _written(stmt)

    def place(number: int) -> tuple[bool, bool]:
        """Order of parameters: buffers that are only read, other buffers, scalars."""
        return not tirx.buffer.is_buffer_var(given[number]), given[number] in written

    numbers = sorted((n for n, var in enumerate(given) if var in used), key=place)
    args: list[int | SymVar] = [*numbers]
    params = [given[number] for number in numbers]
    buffers = [var for var in params if tirx.buffer.is_buffer_var(var)]
    said = {size for buffer in buffers for size in buffer.shape if isinstance(size, tvm.ir.Var)}
    shapes = [size for buffer in (*buffers, *own) for size in buffer.shape]
    symbols = read_symbols(func).symbols
    for var in dict.fromkeys(var for part in (stmt, *shapes) for var in _used(part)):
        if var in symbols and var not in said and var not in params:
            params.append(var)
            args.append(symbols[var])
    made = tirx.PrimFunc(params, _with_root(func.body, own, stmt), func.ret_type, attrs=func.attrs)
    if GIVEN in (func.attrs or {}):
        made = made.without_attr(GIVEN)
    return Launch(PrimFunc(_renewed(made), program.span), tuple(args))


def _renewed(func: Any) -> Any:
    """Return the function with fresh variables, also in the annotations of its loops, which TVM forgets."""
    new = s_tir.renew_defs(func)
    again: dict[Any, Any] = {}
    for old, own in zip(func.params, new.params, strict=True):
        again[old] = own
        if tirx.buffer.is_buffer_var(old):
            again |= dict(zip(old.shape, own.shape, strict=True))
    known = {old: own for old, own in again.items() if isinstance(old, tvm.ir.Var)}

    def value(said: Any) -> Any:
        if not isinstance(said, tvm.ir.Expr):
            return said
        return rewritten(said, (tvm.ir.Var, lambda var: known.get(var, var)))

    def loop(node: Any) -> Any:
        if not len(node.annotations):
            return node
        annotations = {name: value(said) for name, said in node.annotations.items()}
        return tirx.For(
            node.loop_var, node.min, node.extent, node.kind, node.body, node.thread_binding, annotations, node.step
        )  # fmt: skip

    return new.with_body(rewritten(new.body, (tirx.For, loop)))


def is_shared(buffer: Any) -> bool:
    """Is it an allocation outside of the stack?"""
    return str(buffer.scope()) == "global" and not is_small(buffer)


def is_small(buffer: Any) -> bool:
    """Is it allocated on the stack?"""
    size = tvm.DataType(str(buffer.dtype)).bits // 8
    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm):
            return False
        size *= int(extent.value)
    return size < SMALL


def _shape(program: PrimFunc, buffer: Any) -> BufferParam | None:
    """The buffer with its shape over the program's symbols; None if it depends on something else."""
    table = read_symbols(program.func)
    free: list[Any] = []
    for size in buffer.shape:
        walk(size, (tvm.ir.Var, free.append))
    if any(var not in table.symbols for var in free):
        return None
    try:
        shape = tuple(table.to_dim(size) for size in buffer.shape)
    except PassError:
        return None
    return BufferParam(str(buffer.name), shape, DType(str(buffer.dtype)))


def _used(stmt: Any) -> dict[Any, None]:
    """The variables in a statement, including buffers."""
    found: list[Any] = []
    walk(stmt, (tvm.ir.Var, found.append))
    return dict.fromkeys(found)


def _written(stmt: Any) -> set[Any]:
    """The buffers that a statement writes."""
    found: list[Any] = []
    walk(stmt, (tirx.BufferStore, lambda store: found.append(store.buffer)))
    return set(found)


def _without(body: Any, buffers: Sequence[Any]) -> Any:
    """The body of a function without the allocations of these buffers."""
    gone = set(buffers)

    def smaller(block: Any) -> Any:
        kept = [buffer for buffer in block.alloc_buffers if buffer not in gone]
        if len(kept) == len(block.alloc_buffers):
            return block
        made = _with_allocated(block, kept)
        if not block.reads and not block.writes:
            return made
        # Memory passed from outside is among the block's reads and writes.
        moved = [_whole(buffer) for buffer in block.alloc_buffers if buffer in gone]
        return s_tir.SBlock(
            made.iter_vars, [*made.reads, *moved], [*made.writes, *moved], made.name_hint, made.body,
            made.init, made.alloc_buffers, made.match_buffers, made.annotations,
        )  # fmt: skip

    def shorter(stmts: Any) -> Any:
        kept = [s for s in stmts.seq if not isinstance(s, tirx.AllocBuffer) or s.buffer not in gone]
        return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)

    if not gone:
        return body
    entries = (s_tir.SBlock, smaller), (tirx.SeqStmt, shorter)
    if not isinstance(body, s_tir.SBlockRealize):
        return rewritten(body, *entries)
    kept = [buffer for buffer in body.block.alloc_buffers if buffer not in gone]
    return _with_root(body, kept, rewritten(body.block.body, *entries))


def _whole(buffer: Any) -> Any:
    """The whole buffer as a region."""
    return tirx.BufferRegion(buffer, [whole(size) for size in buffer.shape])


def _with_allocated(block: Any, buffers: Sequence[Any], body: Any = None) -> Any:
    """A block with other allocations, and perhaps another body."""
    return s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body or block.body,
        block.init, list(buffers), block.match_buffers, block.annotations,
    )  # fmt: skip


def _with_root(realize: Any, allocated: Sequence[Any], body: Any = None) -> Any:
    """A root block with other allocations, and perhaps another body."""
    root = _with_allocated(realize.block, allocated, body)
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, root)
