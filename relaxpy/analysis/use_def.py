"""Use-def chains: the definition and the uses of each variable of a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from relaxpy.ir.expr import Binding, Expr, Function, MatchCast, SeqExpr, Var, VarBinding
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor

Definition: TypeAlias = "Binding | Function"
"""A binding, or the function that a variable is a parameter of."""
Use: TypeAlias = "Binding | SeqExpr"
"""The innermost binding whose value (or cast) mentions a variable, or the body that returns it."""


@dataclass
class UseDef:
    """The result of `use_def`. A variable that is not in `definitions` is defined outside."""

    definitions: dict[Var, Definition] = field(default_factory=dict[Var, Definition])
    uses: dict[Var, list[Use]] = field(default_factory=dict[Var, list[Use]])
    """Users in order of evaluation, each once. Defined variables without uses have an empty list."""

    def users(self, var: Var) -> Sequence[Use]:
        """The users of a variable."""
        return self.uses.get(var, ())

    def is_dead(self, var: Var) -> bool:
        """Has the variable no uses?"""
        return not self.users(var)


def use_def(function: Function) -> UseDef:
    """The definitions and uses of all variables in a function, including its branches and local functions."""
    collector = _Collector()
    with deep_recursion():
        collector.visit(function)
    return collector.found


class _Collector(Visitor):
    def __init__(self) -> None:
        self.found = UseDef()
        self.users: list[Use] = []
        """The bindings and bodies that enclose the visited place."""

    def visit_Function(self, node: Function) -> None:
        for param in node.params:
            self._define(param, node)
        self.visit(node.body)

    def visit_SeqExpr(self, node: SeqExpr) -> None:
        for block in node.blocks:
            self.visit(block)
        self._inside(node, node.body)

    def visit_VarBinding(self, node: VarBinding) -> None:
        self._define(node.var, node)
        self._inside(node, node.value)

    def visit_MatchCast(self, node: MatchCast) -> None:
        self._define(node.var, node)
        self.users.append(node)
        self.visit(node.value)
        self.visit_annotation(node.annotation)
        self.users.pop()

    def visit_Var(self, node: Var) -> None:
        users = self.found.uses.setdefault(node, [])
        if self.users and not (users and users[-1] is self.users[-1]):
            users.append(self.users[-1])

    visit_DataflowVar = visit_Var

    def _inside(self, user: Use, value: Expr) -> None:
        self.users.append(user)
        self.visit(value)
        self.users.pop()

    def _define(self, var: Var, definition: Definition) -> None:
        self.found.definitions[var] = definition
        self.found.uses.setdefault(var, [])
