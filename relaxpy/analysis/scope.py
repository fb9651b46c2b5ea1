"""What the variables of a block, or of any bindings, stand for, and who uses them."""

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
"""An expression, or the operator that a call calls."""
Bindings: TypeAlias = "Scope | BindingBlock | Function | Iterable[Binding]"


class Scope:
    """Bindings that patterns are searched in: what their variables stand for, and who uses them."""

    def __init__(self, bindings: Sequence[Binding], mod: IRModule | None, result: Expr | None):
        self.bindings = bindings
        self.mod = mod
        self.position = {binding.var: i for i, binding in enumerate(bindings)}
        self.values = {b.var: b.value for b in bindings if isinstance(b, VarBinding)}
        self.users: list[list[int]] = [[] for _ in bindings]
        """For each binding, the positions of those that use its value, in order."""
        self.escapes = [
            result is None and not isinstance(binding.var, DataflowVar) for binding in bindings
        ]
        """For each binding: is its value used behind these?"""
        used = UsedVars()
        for i, binding in enumerate(bindings):
            for var in used(binding.value):
                if var in self.position:
                    self.users[self.position[var]].append(i)
        for var in () if result is None else used(result):
            if var in self.position:
                self.escapes[self.position[var]] = True

    def value(self, expr: Expr) -> tuple[Expr, tuple[Var, ...]]:
        """What an expression stands for, and the variables on the way there."""
        way: list[Var] = []
        while isinstance(expr, Var) and expr in self.values:
            way.append(expr)
            expr = self.values[expr]
        return expr, tuple(way)

    def same(self, a: Value, b: Value) -> bool:
        """Do both stand for one value: one variable, or equal leaves?"""
        if isinstance(a, Operator) or isinstance(b, Operator):
            return a == b
        a, b = self._leaf(a), self._leaf(b)
        return a is b or (not isinstance(a, Var) and is_leaf(a) and structural_equal(a, b))

    def _leaf(self, expr: Expr) -> Expr:
        """The first variable, or the leaf, that an expression is another name of."""
        while isinstance(expr, Var) and expr in self.values and is_leaf(self.values[expr]):
            expr = self.values[expr]
        return expr


def scope_of(bindings: Bindings, mod: IRModule | None = None) -> Scope:
    """The scope of a block, of all of a function, or of bindings whose variables are not used elsewhere unless they are
    visible outside of their block."""
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
    """For each binding, the positions of those that must come before it: that compute variables it uses, define symbols
    it mentions (`match_cast`), or check dimensions, on which what follows relies. `uses` are those of `uses_of`, where
    they are at hand."""
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
            needed.add(check)  # which comes behind the one before it
        found.append(needed - {i})
        if isinstance(binding.value, Call) and isinstance(binding.value.op, CheckDim):
            check = i
    return found


def _definitions(bindings: Sequence[Binding]) -> dict[SymVar, int]:
    """The symbols that the bindings define, and the position of the `match_cast` that does."""
    last = max((i for i, b in enumerate(bindings) if isinstance(b, MatchCast)), default=-1)
    definition: dict[SymVar, int] = {}
    mentioned: set[SymVar] = set()
    for i, binding in enumerate(bindings[: last + 1]):
        if isinstance(binding, MatchCast):
            # what was mentioned before is defined outside, and only checked here
            mentioned.update(used_symbols(binding.value))
            for symbol in free_sym_vars([binding.annotation]):
                if symbol not in mentioned:
                    definition[symbol] = i
        mentioned.update(used_symbols(binding))
    return definition
