"""Bounds checks: where may a tensor program access memory outside a buffer, and how is that checked?

Every index is proved to be within its dimension, from the facts known at its place (`index_facts`). An index that is
not proved (most of all one that is an element of another buffer) is checked at run time. The checks run first, in loops
of their own that compute only these indices, so that the program itself is scheduled like any other. If an index
depends on memory that the program writes, it is checked right before the access.

Values of block axes are checked in the same way, since schedule rules assume that they are in range; and so are the
regions that `T.match_buffer` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from relaxpy.analysis.index_facts import Facts, lanes
from relaxpy.errors import BuildError
from relaxpy.ir.module import CHECK_INDICES
from relaxpy.ir.recursion import deep_recursion
from relaxpy.tir.allowed import OUT_OF_RANGE, REQUIRE_MEMORY
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.recognise.stages import is_choice
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.types import Expr, Stmt
from relaxpy.tir.walk import rewritten, walk

Load = tvm.ir.TensorLoad


def is_checked(func: Any) -> bool:
    """Must the function's indices be checked at run time?"""
    return func.attrs is not None and CHECK_INDICES in func.attrs


def name_of(func: Any) -> str:
    """The name that its author gave a checked function; "" for others."""
    return str(func.attrs[CHECK_INDICES]) if is_checked(func) else ""


@lru_cache(maxsize=1024)
def checks_of(func: Any, eager: bool = False) -> tuple[Stmt, ...]:
    """The checks of everything that is not proved, as statements that run before the function; none if everything is
    proved. `eager`: both sides of `T.Select`, `and` and `or` are evaluated, as the kernel does it."""
    with deep_recursion():
        return tuple(_Checks(func, eager).of(func.body))


def with_checks_first(func: Any) -> Stmt | None:
    """The checks as one statement that may run before the function; None if they depend on values that the function
    computes, or on how far it runs."""
    checks = checks_of(func)
    facts = Facts(func)
    known = {*func.params, *_sizes(func)}
    if not all(facts.is_stable(stmt) for stmt in checks) or _may_stop(func):
        return None
    if any(var not in known for check in checks for var in _free(check)):
        return None
    first = sequence(checks)
    named: list[Any] = []
    walk(
        first,
        (tirx.For, lambda loop: named.append(loop.loop_var)),
        ((tirx.Let, tirx.Bind), lambda node: named.append(node.var)),
    )
    fresh = {var: _renamed(var) for var in named}
    return rewritten(first, (tvm.ir.Var, lambda var: fresh.get(var, var)))


def behind(first: Stmt, func: Any) -> Any:
    """Return the function with a statement that runs before it."""
    body = func.body
    if isinstance(body, s_tir.SBlockRealize) and not body.iter_values:
        root = body.block
        made = s_tir.SBlock(
            [], root.reads, root.writes, root.name_hint, tirx.SeqStmt([first, root.body]), root.init,
            root.alloc_buffers, root.match_buffers, root.annotations,
        )  # fmt: skip
        return func.with_body(s_tir.SBlockRealize([], body.predicate, made))
    return func.with_body(tirx.SeqStmt([first, body]))


def with_checks_inside(func: Any) -> Any:
    """Return the function with each check right before the statement that it guards."""
    with deep_recursion():
        return func.with_body(_Inserted(func).within(func.body))


def sequence(stmts: Sequence[Stmt]) -> Stmt:
    """Combine the statements into one."""
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(list(stmts))


class _Checks:
    """Walks a function in execution order and collects the checks that it needs."""

    def __init__(self, func: Any, eager: bool = False) -> None:
        self.facts = Facts(func)
        self.eager = eager
        self.name = name_of(func)
        self.given = {*func.params, *_sizes(func)}
        """Variables that the caller gives."""

    def of(self, stmt: Stmt) -> list[Stmt]:
        """The checks of a statement and everything in it."""
        match stmt:
            case tirx.SeqStmt():
                return [check for part in stmt.seq for check in self.of(part)]
            case tirx.For():
                head = self.values(stmt.min, stmt.extent)
                with self.facts.loop(stmt):
                    inner = self.of(stmt.body)
                return head + _looped(stmt, inner)
            case tirx.While():
                return self.values(stmt.condition) + self.of(stmt.body)
            case tirx.IfThenElse():
                head = self.values(stmt.condition)
                then, otherwise = self.arms(stmt.condition, stmt.then_case, stmt.else_case)
                return head + _branch(self.facts.known(stmt.condition), then, otherwise)
            case s_tir.SBlockRealize():
                return self.block(stmt)
            case _:
                head = self.values(*parts_of(stmt))
                if isinstance(stmt, tirx.BufferStore):
                    head += self.places(stmt.buffer, stmt.indices)
                if isinstance(stmt, tirx.AllocBuffer):
                    head += self.sizes(stmt.buffer)
                if isinstance(stmt, tirx.Bind):
                    self.facts.let(stmt.var, stmt.value)
                body = getattr(stmt, "body", None)
                return head if body is None else head + self.of(body)

    def arms(
        self, condition: Expr, then: Stmt, otherwise: Stmt | None
    ) -> tuple[list[Stmt], list[Stmt]]:
        with self.facts.where(condition):
            first = self.of(then)
        if otherwise is None:
            return first, []
        with self.facts.where(tirx.Not(condition)):
            return first, self.of(otherwise)

    def block(self, realize: Any) -> list[Stmt]:
        """Checks of a block: the facts inside are its predicate and the values of its axes."""
        head = self.values(realize.predicate)
        with self.facts.where(realize.predicate):
            inner = self.axes(realize)
            for buffer in realize.block.alloc_buffers:
                inner += self.sizes(buffer)
            inner += self.regions(realize.block)
            if realize.block.init is not None:
                inner += self.of(realize.block.init)
            inner += self.of(realize.block.body)
        return head + _branch(self.facts.known(realize.predicate), inner, [])

    def axes(self, realize: Any) -> list[Stmt]:
        checks: list[Stmt] = []
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            checks += self.values(value)
            if axis.dom is not None:
                name = f"axis {axis.var.name} of the block {realize.block.name_hint}"
                checks += self.place(name, -1, value, axis.dom.min, axis.dom.extent)
            self.facts.let(axis.var, value)
        return checks

    def sizes(self, buffer: Any) -> list[Stmt]:
        """Checks of an allocation: no size is negative, and memory for a size that depends on elements of tensors is
        available. (Sizes that depend on arguments' sizes are checked by the caller of the kernel.)"""
        sizes = [int64(extent) for extent in buffer.shape]
        checks = self.values(*sizes)
        for dim, size in enumerate(sizes):
            if not self.facts.is_within(size, int64(0), size + int64(1)):
                name = f"dimension {dim} of {buffer.name}"
                checks.append(self.unless(int64(0) <= self.facts.known(size), name, -2, size, size))
        known = [self.facts.known(size) for size in sizes]
        if _has_loads(*known):
            item = int64((tvm.DataType(str(buffer.ty.dtype)).bits + 7) // 8)
            call = tirx.call_packed(REQUIRE_MEMORY, self.name, str(buffer.name), item, *known)
            checks.append(tirx.Evaluate(call))
        return checks

    def regions(self, block: Any) -> list[Stmt]:
        """Checks of `T.match_buffer`: the first and the last element of each region."""
        checks: list[Stmt] = []
        for match in block.match_buffers:
            buffer = match.source.source
            for dim, (part, size) in enumerate(zip(match.source.region, buffer.shape, strict=True)):
                checks += self.values(part.min, part.extent)
                ends = (part.min, part.min + part.extent - int64(1))
                checks += [
                    c
                    for end in ends
                    for c in self.place(str(buffer.name), dim, end, int64(0), size)
                ]
            rank = len(match.buffer.shape)
            tail = list(match.source.region)[-rank:] if rank else []
            for size, part in zip(match.buffer.shape, tail, strict=True):
                if self.is_new(size):
                    self.facts.let(size, part.extent)
                elif not self.facts.at_most(self.facts.known(size), self.facts.known(part.extent)):
                    raise BuildError(
                        "tir-bounds",
                        f"{match.buffer.name} may be larger than the part of {buffer.name} that it is matched with",
                        help="use the shape of the part in T.match_buffer",
                    )
        return checks

    def is_new(self, size: Expr) -> bool:
        """Is it a variable that a view's dimension defines?"""
        loops = [var for var, _, _ in self.facts.loops]
        elsewhere = size in self.given or size in self.facts.values or size in loops
        return isinstance(size, tvm.ir.Var) and not elsewhere

    # Expressions

    def values(self, *exprs: Expr) -> list[Stmt]:
        """The checks of these expressions, in order."""
        return [check for expr in exprs for check in self.value(expr)]

    def value(self, expr: Expr) -> list[Stmt]:
        if not _has_loads(expr):
            return []
        if self.eager and isinstance(expr, _CHOICES):
            return self.values(*self.inside(expr))
        match expr:
            case Load():
                return self.values(*expr.indices) + self.places(expr.source, expr.indices)
            case tirx.Select():
                return self.choice(expr.condition, expr.true_value, expr.false_value)
            case tirx.And():
                a, b = operands(expr)
                return self.choice(a, b, None)
            case tirx.Or():
                a, b = operands(expr)
                return self.choice(a, None, b)
            case tirx.Let():
                head = self.value(expr.value)
                self.facts.let(expr.var, expr.value)
                return head + self.named(expr, self.value(expr.body))
            case tvm.ir.Call() if is_choice(expr):
                return self.choice(*expr.args)
            case _:
                return self.values(*self.inside(expr))

    def named(self, let: Any, checks: list[Stmt]) -> list[Stmt]:
        """Checks of the body of a `Let`: after its value, under a name of their own, if they mention it. It is no fact
        if it is long, or an element that the function writes."""
        if not any(var.same_as(let.var) for check in checks for var in _free(check)):
            return checks
        own = _renamed(let.var)
        body = rewritten(
            sequence(checks), (tvm.ir.Var, lambda var: own if var.same_as(let.var) else var)
        )
        return [tirx.SeqStmt([tirx.Bind(own, self.facts.known(let.value)), body])]

    def inside(self, expr: Expr) -> list[Expr]:
        """The outermost loads, lets and choices in an expression, in order. Found without recursion, since sums may
        have thousands of terms."""
        kinds = (Load, tirx.Let) if self.eager else (Load, tirx.Let, *_CHOICES)
        found: list[Expr] = []
        waiting = operands(expr)[::-1]
        while waiting:
            part = waiting.pop()
            if isinstance(part, kinds) or is_choice(part):
                found.append(part)
            else:
                waiting += operands(part)[::-1]
        return found

    def choice(self, condition: Expr, then: Expr | None, otherwise: Expr | None) -> list[Stmt]:
        """Checks of a choice between two values, only one of which is evaluated (see `with_choices`)."""
        head = self.value(condition)
        with self.facts.where(condition):
            first = [] if then is None else self.value(then)
        with self.facts.where(tirx.Not(condition)):
            second = [] if otherwise is None else self.value(otherwise)
        if lanes(condition) != 1:
            return head + first + second
        return head + _branch(self.facts.known(condition), first, second)

    def places(self, buffer: Any, indices: Sequence[Expr]) -> list[Stmt]:
        checks: list[Stmt] = []
        for dim, (index, size) in enumerate(zip(indices, buffer.shape, strict=True)):
            for end in _ends(index, buffer):
                checks += self.place(str(buffer.name), dim, end, int64(0), size)
        return checks

    def place(self, name: str, dim: int, index: Expr, low: Expr, extent: Expr) -> list[Stmt]:
        """The check of one index, if it needs one."""
        if self.facts.is_within(index, low, extent):
            return []
        index, low, extent = (self.facts.known(int64(e)) for e in (index, low, extent))
        inside = tirx.And(low <= index, index < low + extent)
        return [self.unless(inside, name, dim, index, extent)]

    def unless(self, inside: Expr, name: str, dim: int, index: Expr, extent: Expr) -> Stmt:
        """A statement that stops the function with an error unless the condition holds."""
        index, extent = self.facts.known(index), self.facts.known(extent)
        call = tirx.call_packed(OUT_OF_RANGE, self.name, name, int64(dim), index, extent)
        return tirx.IfThenElse(tirx.Not(inside), tirx.Evaluate(call), None)


class _Inserted(_Checks):
    """Rewrites the function with the checks inserted."""

    def within(self, stmt: Stmt) -> Stmt:
        match stmt:
            case tirx.SeqStmt():
                return tirx.SeqStmt([self.within(part) for part in stmt.seq])
            case tirx.For():
                head = self.values(stmt.min, stmt.extent)
                with self.facts.loop(stmt):
                    body = self.within(stmt.body)
                made = tirx.For(
                    stmt.loop_var, stmt.min, stmt.extent, tirx.ForKind.SERIAL, body, None,
                    stmt.annotations, stmt.step,
                )  # fmt: skip
                return sequence([*head, made])
            case tirx.While():
                head = self.values(stmt.condition)
                if head:
                    raise BuildError(
                        "tir-bounds",
                        "an index in the condition of a while loop cannot be bounds-checked",
                        help="bind it to a variable before the loop, and at the end of its body",
                    )
                return tirx.While(stmt.condition, self.within(stmt.body))
            case tirx.IfThenElse():
                head = self.values(stmt.condition)
                with self.facts.where(stmt.condition):
                    then = self.within(stmt.then_case)
                otherwise = None
                if stmt.else_case is not None:
                    with self.facts.where(tirx.Not(stmt.condition)):
                        otherwise = self.within(stmt.else_case)
                return sequence([*head, tirx.IfThenElse(stmt.condition, then, otherwise)])
            case s_tir.SBlockRealize():
                return self.block_within(stmt)
            case tirx.AttrStmt():
                return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, self.within(stmt.body))
            case _:
                return sequence([*self.of(stmt), stmt])

    def block_within(self, realize: Any) -> Stmt:
        """A block without axes. The former axes become bound variables, about which schedule rules assume nothing."""
        block = realize.block
        head = self.values(realize.predicate)
        with self.facts.where(realize.predicate):
            checks = self.axes(realize) + self.regions(block)
            for buffer in block.alloc_buffers:
                checks += self.sizes(buffer)
            binds = [
                tirx.Bind(axis.var, value)
                for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
            ]
            body: list[Stmt] = [*binds, *self.initial(realize), self.within(block.body)]
        inner: Stmt = sequence(body)
        if block.alloc_buffers or block.match_buffers:
            made = s_tir.SBlock(
                [], [], [], block.name_hint, inner, None, block.alloc_buffers, block.match_buffers
            )
            inner = s_tir.SBlockRealize([], tirx.const(True, "bool"), made)
        inner = sequence([*checks, inner])
        if not isinstance(realize.predicate, tirx.IntImm):
            inner = tirx.IfThenElse(realize.predicate, inner, None)
        return sequence([*head, inner])

    def initial(self, realize: Any) -> Iterator[Stmt]:
        """The initial value of a reduction, with its reduced axes at their first values."""
        block = realize.block
        if block.init is None:
            return
        condition: Expr = tirx.const(True, "bool")
        for axis in block.iter_vars:
            if int(axis.iter_type) == tirx.IterVar.CommReduce:
                condition = tirx.And(condition, tirx.EQ(int64(axis.var), int64(axis.dom.min)))
        yield tirx.IfThenElse(condition, self.within(block.init), None)


def with_choices(func: Any) -> Any:
    """Return the function with `T.if_then_else` for choices that read memory. `T.Select`, `and` and `or` evaluate both
    sides, and so may read memory that the condition is meant to exclude."""

    def select(node: Any) -> Expr:
        if lanes(node.condition) != 1 or not _has_loads(node.true_value, node.false_value):
            return node
        return tirx.if_then_else(node.condition, node.true_value, node.false_value)

    def both(node: Any) -> Expr:
        if lanes(node) != 1 or not _has_loads(node.b):
            return node
        return tirx.if_then_else(node.a, node.b, tirx.const(False, "bool"))

    def either(node: Any) -> Expr:
        if lanes(node) != 1 or not _has_loads(node.b):
            return node
        return tirx.if_then_else(node.a, tirx.const(True, "bool"), node.b)

    body = rewritten(func.body, (tirx.Select, select), (tirx.And, both), (tirx.Or, either))
    return func if body.same_as(func.body) else func.with_body(body)


_CHOICES = (tirx.Select, tirx.And, tirx.Or)
"""Operators that evaluate both sides though one would do."""


def operands(expr: Expr) -> list[Expr]:
    """The operands of an expression."""
    if isinstance(expr, tvm.ir.Call):
        return [arg for arg in expr.args if isinstance(arg, tvm.ir.Expr)]
    names = ("a", "b", "value", "base", "stride", "condition", "true_value", "false_value")
    found = [getattr(expr, name, None) for name in names]
    several = [*(getattr(expr, "vectors", None) or ()), *(getattr(expr, "indices", None) or ())]
    return [part for part in (*found, *several) if isinstance(part, tvm.ir.Expr)]


def parts_of(stmt: Stmt) -> list[Expr]:
    """The expressions of a statement that contains no other statements, in order of evaluation."""
    match stmt:
        case tirx.BufferStore():
            return [stmt.value, *stmt.indices]
        case tirx.Bind() | tirx.Evaluate():
            return [stmt.value]
        case tirx.AssertStmt():
            return [stmt.condition]
        case _:
            return []


def _has_loads(*exprs: Expr) -> bool:
    found: list[Any] = []
    for expr in exprs:
        walk(expr, (Load, found.append))
    return bool(found)


def _ends(index: Expr, buffer: Any) -> list[Expr]:
    """The index; for a vector of indices, the first and the last."""
    if lanes(index) == 1:
        return [index]
    found: Any = tvm.sym.Analyzer().simplify(index)
    if isinstance(found, tirx.Broadcast):
        return [found.value]
    if isinstance(found, tirx.Ramp):
        ramp: Any = found
        return [ramp.base, ramp.base + ramp.stride * (lanes(index) - 1)]
    raise BuildError(
        "tir-bounds",
        f"a vector of indices of {buffer.name} is not a T.Ramp, so it cannot be bounds-checked",
        help="write a loop over T.vectorized(…)",
    )


def _looped(loop: Any, inner: list[Stmt]) -> list[Stmt]:
    """Checks in a loop; only once if they do not depend on the loop variable."""
    if not inner:
        return []
    used: list[Any] = []
    for check in inner:
        walk(check, (tvm.ir.Var, used.append))
    if any(var.same_as(loop.loop_var) for var in used):
        kind, body = tirx.ForKind.SERIAL, sequence(inner)
        return [tirx.For(loop.loop_var, loop.min, loop.extent, kind, body, step=loop.step)]
    return _branch(loop.extent >= tirx.const(1, loop.extent.ty.dtype), inner, [])


def _branch(condition: Expr, then: list[Stmt], otherwise: list[Stmt]) -> list[Stmt]:
    """Checks of a conditional with two arms."""
    if not then and not otherwise:
        return []
    if isinstance(condition, tirx.IntImm) and int(condition.value):
        return then
    if not then:
        return _branch(tirx.Not(condition), otherwise, [])
    last = sequence(otherwise) if otherwise else None
    return [tirx.IfThenElse(condition, sequence(then), last)]


def _free(stmt: Stmt) -> list[Any]:
    """The free variables of a check."""
    used: list[Any] = []
    bound: list[Any] = []
    walk(
        stmt,
        (tvm.ir.Var, used.append),
        (tirx.For, lambda loop: bound.append(loop.loop_var)),
        ((tirx.Let, tirx.Bind), lambda node: bound.append(node.var)),
    )
    return [var for var in used if var not in bound]


def _may_stop(func: Any) -> bool:
    """May the function stop early, or skip a part under a condition that is not known before it runs?"""
    found: list[Any] = []

    def call(node: Any) -> None:
        if str(getattr(node.op, "name", "")).endswith(
            ("break_loop", "continue_loop", "call_packed")
        ):
            found.append(node)

    stops = (tirx.While, tirx.Break, tirx.Continue, tirx.Return, tirx.AssertStmt)
    walk(func.body, (stops, found.append), (tvm.ir.Call, call))
    return bool(found)


def _sizes(func: Any) -> list[Any]:
    """The variables that are dimensions of arguments."""
    found: list[Any] = []
    for param in func.params:
        for size in getattr(param.ty, "shape", None) or ():
            walk(size, (tvm.ir.Var, found.append))
    return found


def _renamed(var: Any) -> Any:
    return tirx.Var(str(var.name), str(var.ty.dtype))
