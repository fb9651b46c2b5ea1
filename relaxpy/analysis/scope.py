"""The values and users of variables, for a block or a sequence of bindings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    DataflowVar,
    Expr,
    Function,
    MatchCast,
    SeqExpr,
    Var,
    VarBinding,
    is_leaf,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.op import Operator
from relaxpy.ir.structural import structural_equal
from relaxpy.ir.visitor import UsedVars, free_sym_vars, used_symbols
from relaxpy.op.memory import CheckDim

Value: TypeAlias = Expr | Operator
"""An expression, or the operator of a call."""
Bindings: TypeAlias = "Scope | BindingBlock | Function | Iterable[Binding]"


class Scope:
    """Bindings in which patterns are matched: the values of their variables, and the users of these."""

    def __init__(self, bindings: Sequence[Binding], mod: IRModule | None, result: Expr | None):
        self.bindings = bindings
        self.mod = mod
        self.position = {binding.var: i for i, binding in enumerate(bindings)}
        self.values = {b.var: b.value for b in bindings if isinstance(b, VarBinding)}
        self.users: list[list[int]] = [[] for _ in bindings]
        """For each binding, the positions of the bindings that use its value, in order."""
        self.escapes = [
            result is None and not isinstance(binding.var, DataflowVar) for binding in bindings
        ]
        """For each binding: is its value used after these bindings?"""
        used = UsedVars()
        for i, binding in enumerate(bindings):
            for var in used(binding.value):
                if var in self.position:
                    self.users[self.position[var]].append(i)
        for var in () if result is None else used(result):
            if var in self.position:
                self.escapes[self.position[var]] = True

    def value(self, expr: Expr) -> tuple[Expr, tuple[Var, ...]]:
        """The value of an expression, and the variables on the way to it."""
        way: list[Var] = []
        while isinstance(expr, Var) and expr in self.values:
            way.append(expr)
            expr = self.values[expr]
        return expr, tuple(way)

    def same(self, a: Value, b: Value) -> bool:
        """Do both denote one value: one variable, or equal leaves?"""
        if isinstance(a, Operator) or isinstance(b, Operator):
            return a == b
        a, b = self._leaf(a), self._leaf(b)
        return a is b or (not isinstance(a, Var) and is_leaf(a) and structural_equal(a, b))

    def _leaf(self, expr: Expr) -> Expr:
        """The first variable, or the leaf, that an expression aliases."""
        while isinstance(expr, Var) and expr in self.values and is_leaf(self.values[expr]):
            expr = self.values[expr]
        return expr


def scope_of(bindings: Bindings, mod: IRModule | None = None) -> Scope:
    """The scope of a block, of a whole function, or of bindings. Variables of bindings count as used elsewhere only if
    they are visible outside their block."""
    match bindings:
        case Scope():
            return bindings
        case BindingBlock():
            return Scope(bindings.bindings, mod, None)
        case Function(body=SeqExpr(body=result) as body):
            return Scope(tuple(body.bindings), mod, result)
        case _:
            return Scope(tuple(bindings), mod, None)


def uses_of(bindings: Iterable[Binding]) -> list[tuple[Var, ...]]:
    """For each binding, the variables that its value uses."""
    used = UsedVars()
    return [used(binding.value) for binding in bindings]


def dependencies(
    bindings: Sequence[Binding], uses: Sequence[tuple[Var, ...]] | None = None
) -> list[set[int]]:
    """For each binding, the positions of the bindings that must precede it: those that compute variables that it uses,
    define symbols that it mentions (`match_cast`), or check dimensions that later bindings rely on. `uses` is the
    result of `uses_of`, if already computed."""
    position = {binding.var: i for i, binding in enumerate(bindings)}
    definition = _definitions(bindings)
    check: int | None = None
    found: list[set[int]] = []
    used = uses_of(bindings) if uses is None else uses
    for i, (binding, variables) in enumerate(zip(bindings, used, strict=True)):
        needed = {position[var] for var in variables if var in position}
        if definition:
            needed |= {definition[s] for s in used_symbols(binding) if s in definition}
        if check is not None:
            needed.add(check)  # it follows the one before it
        found.append(needed - {i})
        if isinstance(binding.value, Call) and isinstance(binding.value.op, CheckDim):
            check = i
    return found


def _definitions(bindings: Sequence[Binding]) -> dict[SymVar, int]:
    """The symbols that the bindings define, and the position of the defining `match_cast`."""
    last = max((i for i, b in enumerate(bindings) if isinstance(b, MatchCast)), default=-1)
    definition: dict[SymVar, int] = {}
    mentioned: set[SymVar] = set()
    for i, binding in enumerate(bindings[: last + 1]):
        if isinstance(binding, MatchCast):
            # a symbol that was mentioned before is defined outside, and only checked here
            mentioned.update(used_symbols(binding.value))
            for symbol in free_sym_vars([binding.annotation]):
                if symbol not in mentioned:
                    definition[symbol] = i
        mentioned.update(used_symbols(binding))
    return definition
