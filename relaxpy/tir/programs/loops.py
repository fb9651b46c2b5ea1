"""Loop nests written out by hand: what a schedule rule uses that writes a whole program instead of moving loops.

    p = Program()
    with p.loop("i", n) as i:
        p.store(c, i, load(a, i) + load(b, i))
    func = func.with_body(p.body())

Nothing here is wrapped in blocks: such a function is lowered but not scheduled further. Indices are 64-bit, buffers
are flat (one index), vectors are explicit (`lanes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from relaxpy.tir.analyzer import int64 as int64
from relaxpy.tir.name_length import DEEPEST, has_more_levels
from relaxpy.tir.nodes import with_body
from relaxpy.tir.schedule import FINISHED
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import contains, rewritten

Expr = tvm.ir.Expr
Stmt = tirx.Stmt
Buffer = tvm.ir.Var
"""A variable that carries a buffer type."""
PrimFunc = tirx.PrimFunc
Index = Expr | int

ABOUT = "relaxpy.about"
"""Annotation of a loop: about how often it runs, if its extent is known only at run time."""

GIVEN = "relaxpy_given"
"""The function whose result is its argument, in the place of an index (`relaxpy.tir.lowering.given`)."""

AGAIN = "relaxpy.again"
"""Annotation of a parallel loop that a serial loop around it launches each time: it needs what its last run has
written, and each run is worth a launch."""

ROLLED = "relaxpy.rolled"
"""Annotation of a loop of which the code generator is to keep one copy (`relaxpy.tir.lowering.rolled`)."""


def constant(value: Index) -> int | None:
    """The integer value of a constant expression; None if it depends on a variable."""
    if isinstance(value, int):
        return value
    return int(value.value) if isinstance(value, tirx.IntImm) else None


def is_constant(value: Index | None, number: int) -> bool:
    """Is it this number? None is none, and neither is an expression that depends on a variable."""
    return value is not None and constant(value) == number


def simplify(value: Index) -> Expr:
    """The expression in the analyser's normal form; as it is where that has numbers beyond 64 bits, or would take
    long."""
    value = int64(value)
    if isinstance(value, tirx.IntImm | tvm.ir.Var) or has_more_levels(value, 2 * DEEPEST):
        return value
    try:
        return tvm.sym.Analyzer().simplify(value)
    except ValueError:
        return value


def ceildiv(value: Index, divisor: Index) -> Expr:
    """`value / divisor` rounded up; the value is not negative, the divisor positive."""
    value, divisor = int64(value), _not_zero(int64(divisor))
    above = simplify(value + divisor - 1)
    found = index_of(tirx.floordiv(above, divisor))
    if _is_natural(value) and _is_natural(divisor) and contains(found, tirx.FloorDiv):
        return tirx.Div(above, at_least_one(divisor))  # it has a negative part, but is not negative
    return found


def floordiv(value: Index, divisor: Index) -> Expr:
    """`value // divisor`; the value is not negative, the divisor positive."""
    return index_of(tirx.floordiv(int64(value), _not_zero(int64(divisor))))


def floormod(value: Index, divisor: Index) -> Expr:
    """`value % divisor`; the value is not negative, the divisor positive."""
    return index_of(tirx.floormod(int64(value), _not_zero(int64(divisor))))


def index_of(value: Expr) -> Expr:
    """An index as it is computed: simplified, with divisions as the processor does them."""
    return truncating(simplify(value))


def truncating(expr: Expr) -> Expr:
    """The expression with divisions as the processor does them where both numbers have no negative part: flooring
    division would add a chain of selections. Others stay: simplified, `(16 - n) // 8` is `-n // 8 + 2`, and `(16 - n) %
    8` is `-(n % -8)`."""
    divisions = (
        (tirx.FloorDiv, lambda node: _division(node, tirx.Div)),
        (tirx.FloorMod, lambda node: _division(node, tirx.Mod)),
    )
    return rewritten(expr, *divisions)


def _division(node: Expr, truncated: type) -> Expr:
    made = truncated if _is_natural(node.a) and _is_natural(node.b) else type(node)
    return made(node.a, at_least_one(node.b))


def _is_natural(value: Expr) -> bool:
    """Is the value not negative if its variables, which are numbers of loops and sizes, are not?"""
    match value:
        case tirx.IntImm():
            return int(value.value) >= 0
        case tvm.ir.Var():
            return True
        case tirx.Add() | tirx.Mul() | tirx.Min() | tirx.Div() | tirx.FloorDiv():
            return _is_natural(value.a) and _is_natural(value.b)
        case tirx.Max():
            return _is_natural(value.a) or _is_natural(value.b)
        case tirx.Mod() | tirx.FloorMod():
            return _is_natural(value.a)
        case tirx.Select():
            return _is_natural(value.true_value) and _is_natural(value.false_value)
        case tirx.Cast():
            return _is_natural(value.value)
        case tirx.Broadcast():
            return _is_natural(value.value)
        case tirx.Ramp():
            return _is_natural(value.base) and _is_natural(value.stride)
        case _:
            return False


def at_least_one(divisor: Expr) -> Expr:
    """The divisor clamped to at least 1. It is 0 only if its loop does not run, but LLVM may divide before it knows
    that, and the processor would trap."""
    return _not_zero(divisor) if constant(divisor) is not None else tirx.Max(divisor, int64(1))


def _not_zero(divisor: Expr) -> Expr:
    """A divisor that is not a constant 0, which TVM refuses even in a loop that does not run."""
    return int64(1) if constant(divisor) == 0 else divisor


def maximum(a: Index, b: Index) -> Expr:
    """The larger of two indices, simplified."""
    return simplify(tirx.max(int64(a), int64(b)))


def minimum(a: Index, b: Index) -> Expr:
    """The smaller of two indices, simplified."""
    return simplify(tirx.min(int64(a), int64(b)))


def select(condition: Expr, yes: Index, no: Index) -> Expr:
    """One of two indices; both are evaluated."""
    return tirx.Select(condition, int64(yes), int64(no))


def equals(a: Index, b: Index) -> Expr:
    """The expression that two indices are equal."""
    return tirx.EQ(int64(a), int64(b))


def both(a: Expr, b: Expr) -> Expr:
    """The conjunction of both conditions."""
    return tirx.And(a, b)


def between(value: Index, above: Index, to: Index) -> Expr:
    """The condition `above < value <= to`."""
    return tirx.And(int64(above) < int64(value), int64(value) <= int64(to))


def finished(func: PrimFunc, body: Stmt) -> PrimFunc:
    """Return the function with a body written by a `Program`: nothing in it is left to schedule or to lower."""
    return with_body(func, body).with_attr(FINISHED, True)


def load(buffer: Buffer, index: Index, lanes: int = 1, mask: Expr | None = None) -> Expr:
    """One element of a flat buffer, or `lanes` contiguous ones as a vector.

    With a mask (a vector of bools) only the active lanes are read; the others are undefined.
    """
    at = _neighbours(index, lanes)
    if mask is None:
        return tirx.BufferLoad(buffer, [at])
    dtype = f"{buffer.dtype}x{lanes}"
    return tirx.call_intrin(dtype, "tirx.masked_load", buffer, at, mask)


def broadcast(value: Expr, lanes: int) -> Expr:
    """Broadcast the value to a vector."""
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def zero(dtype: str, lanes: int = 1) -> Expr:
    """Zero of a type, as a vector if there are lanes."""
    return broadcast(tirx.const(0, dtype), lanes)


def first_lanes(count: Expr, lanes: int) -> Expr:
    """The mask of a vector's first `count` (int32) lanes. A negative count means none, one above `lanes` all."""
    ramp = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
    return ramp < tirx.Broadcast(count, lanes)


def lanes_between(first: Expr, end: Expr, lanes: int) -> Expr:
    """The mask of a vector's lanes from `first` up to, not including, `end` (int32, any values)."""
    ramp = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
    return tirx.And(tirx.Broadcast(first, lanes) <= ramp, ramp < tirx.Broadcast(end, lanes))


def lanes_within(place: Expr, size: Expr, lanes: int) -> Expr:
    """The mask of the lanes for which place + lane is within `size`. An unsigned comparison of 32-bit words tests both
    ends at once, for sizes below 2**32."""
    if (known := constant(place)) is not None and known < 0:  # TVM converts no negative constant
        first = tirx.const(min(-known, lanes), "int32")
        return lanes_between(first, clamped_int32(size - place, lanes), lanes)
    ramp = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
    at = tirx.Broadcast(place.astype("int32"), lanes) + ramp
    words = f"uint32x{lanes}"
    return at.astype(words) < tirx.Broadcast(size.astype("uint32"), lanes)


def guarded(condition: Expr, value: Expr) -> Expr:
    """The value if the condition holds, else zero; it is read only if the condition holds."""
    return tirx.if_then_else(condition, value, tirx.const(0, value.ty.dtype))


def clamped_int32(value: Index, upper: int) -> Expr:
    """The index clamped to 0 … `upper`, in 32 bits, so that vector comparisons of indices take one register."""
    return minimum(maximum(value, 0), upper).astype("int32")


class Program:
    """A program under construction. Statements are added to the innermost open `with`."""

    def __init__(self) -> None:
        self._open: list[list[Stmt]] = [[]]

    def body(self) -> Stmt:
        """All statements so far."""
        (stmts,) = self._open
        return sequence(stmts)

    def add(self, stmt: Stmt) -> None:
        """A statement made elsewhere."""
        self._add(stmt)

    def store(
        self, buffer: Buffer, index: Index, value: Expr, lanes: int = 1, mask: Expr | None = None
    ) -> None:
        """Store one element of a flat buffer, or `lanes` contiguous ones, masked if there is a mask."""
        at = _neighbours(index, lanes)
        if mask is None:
            self._add(tirx.BufferStore(buffer, value, [at]))
            return
        call = tirx.call_intrin("void", "tirx.masked_store", buffer, value, at, mask)
        self._add(tirx.Evaluate(call))

    def prefetch(
        self, buffer: Buffer, index: Index, *, writing: bool = False, level: int = 1
    ) -> None:
        """Prefetch the cache line of an element of a flat buffer, which need not exist; `writing` if it is to be
        written. `level` is that of the nearest cache that gets it: 1, 2 or 3."""
        place = tirx.address_of(tirx.BufferLoad(buffer, [int64(index)]))
        use, near, data = (tirx.IntImm("int32", number) for number in (int(writing), 4 - level, 1))
        name = "llvm.prefetch.p0"
        self._add(tirx.Evaluate(tirx.call_llvm_intrin("void", name, place, use, near, data)))

    def let(self, name: str, value: Expr) -> Expr:
        """Compute the value here and bind it to a name; a constant or a variable is returned unchanged."""
        if isinstance(value, tirx.IntImm | tvm.ir.Var):
            return value
        var = tirx.Var(name, value.ty)
        self._add(tirx.Bind(var, value))
        return var

    def given(self, name: str, index: Index) -> Expr:
        """As `let`, of an index from which a loop computes the addresses of many rows: they become sums of the index
        and what stays, instead of pointers that are moved on one by one."""
        return self.let(name, tirx.call_pure_extern("int64", GIVEN, int64(index)))

    def allocate(self, name: str, size: Index, dtype: str) -> Buffer:
        """Allocate a flat buffer that lives to the end of the innermost `with`. All threads of a loop inside share it.

        Below 1024 bytes it is on the stack, and in registers if every index into it is constant: TVM's code generator
        does so for the scope "global". Above, it is a workspace of the thread.
        """
        buffer = tirx.decl_buffer([simplify(size)], dtype, name, scope="global", layout=None)
        self._add(tirx.AllocBuffer(buffer))
        return buffer

    def flat_view(self, buffer: Buffer, dtype: str | None = None) -> Buffer:
        """A flat view of a compact buffer, or of its bits as another type of the same width.

        The view is aligned to an element, which is all that a kernel may assume about its parameters.
        """
        # Passes that replace expressions in the declaration create a new view and lose masked accesses to this one. So
        # it has a pointer of its own and, as nothing reads it, a size without variables.
        pointer = tirx.buffer.buffer_data(buffer)
        if dtype is not None:
            kind = tvm.ir.PointerType(tvm.ir.PrimType(dtype))
            pointer = tirx.reinterpret(kind, pointer)
        data = self.let(f"{buffer.name}_data", pointer)
        dtype = dtype or str(buffer.dtype)
        align = max(1, tvm.DataType(dtype).bits // 8)
        name = f"{buffer.name}_flat"
        view = tirx.decl_buffer(
            [int64(1 << 40)], dtype, name, data=data, data_alignment=align, layout=None
        )
        self._add(tirx.DeclBuffer(view, data=data))
        return view

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A scope for statements with buffers of their own."""
        self._open.append([])
        yield
        self._add(sequence(self._open.pop()))

    @contextmanager
    def loop(
        self,
        name: str,
        extent: Index,
        *,
        parallel: bool = False,
        about: Index | None = None,
        rolled: bool = False,
        again: bool = False,
    ) -> Iterator[Expr]:
        """`for name in range(extent)`; an extent of the constant 1 makes no loop. `about` is how often it runs, for
        the estimate of work (`relaxpy.tir.recognise.cost`), where the extent does not say. `rolled` is for a loop that
        copies or stores, or whose time is that of a loop inside: several copies of it would not be faster. `again` is
        for a parallel loop that runs many times, each time with what the last one has written."""
        var = tirx.Var(name, "int64")
        self._open.append([])
        yield int64(0) if constant(extent) == 1 else var
        body = sequence(self._open.pop())
        if constant(extent) != 1:
            kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
            annotations = {} if about is None else {ABOUT: int64(about)}
            if rolled:
                annotations[ROLLED] = int64(1)
            if again:
                annotations[AGAIN] = int64(1)
            body = tirx.For(var, int64(0), int64(extent), kind, body, annotations=annotations)
        self._add(body)

    @contextmanager
    def repeat(self, condition: Expr) -> Iterator[None]:
        """`while condition`."""
        self._open.append([])
        yield
        self._add(tirx.While(condition, sequence(self._open.pop())))

    @contextmanager
    def when(self, condition: Expr | bool) -> Iterator[None]:
        """`if condition`. If the analyser decides the condition, there is no branch, or no code."""
        self._open.append([])
        yield
        body = sequence(self._open.pop())
        known = _truth(condition)
        if known is None:
            self._add(tirx.IfThenElse(condition, body, None))
        elif known:
            self._add(body)

    @contextmanager
    def otherwise(self, condition: Expr | bool) -> Iterator[None]:
        """`if not condition`."""
        negated = not condition if isinstance(condition, bool) else tirx.Not(condition)
        with self.when(negated):
            yield

    def _add(self, stmt: Stmt) -> None:
        self._open[-1].append(stmt)


def sequence(stmts: Sequence[Stmt]) -> Stmt:
    """Combine the statements into one."""
    if not stmts:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(stmts)


def _neighbours(index: Index, lanes: int) -> Expr:
    start = int64(index)
    return start if lanes == 1 else tirx.Ramp(start, int64(1), lanes)


def _truth(condition: Expr | bool) -> bool | None:
    """The constant truth value of the condition; None if it is not constant."""
    if isinstance(condition, bool):
        return condition
    known = tvm.sym.Analyzer().simplify(condition)
    return bool(known.value) if isinstance(known, tirx.IntImm) else None
