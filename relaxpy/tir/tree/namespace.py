"""The namespace of tensor programs in a syntax tree: `T`, under any name that it was imported as."""

from __future__ import annotations

import ast


def name_of_namespace(node: ast.FunctionDef) -> str:
    """The name of the tensor programs' namespace here: that in the decorator, `T.prim_func(…)`."""
    for decorator in node.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.value.id
    return "T"


def attribute(base: str, name: str) -> ast.Attribute:
    return ast.Attribute(ast.Name(base, ast.Load()), name, ast.Load())


def t_attribute(node: ast.AST) -> str | None:
    """`name` for the expression `T.name`, else None."""
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "T"
    ):
        return node.attr
    return None


def call_attribute(node: ast.AST) -> str | None:
    return t_attribute(node.func) if isinstance(node, ast.Call) else None


class Rename(ast.NodeTransformer):
    """Renames the namespace to `T`."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id == self.alias:
            node.id = "T"
        return node
