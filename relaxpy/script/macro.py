"""`@R.macro` and `@T.macro`: statements that are written once and parsed again at each use.

A macro is hygienic by default, as in TVM: its names refer to the scope of its definition. The names of a non-hygienic
macro (`hygienic=False`) refer to the scope of its use. A macro of the graph level ends with `return` and is used as a
value. A macro of tensor programs is used as a statement, and is expanded before TVM's parser reads the program.
"""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from relaxpy.errors import ScriptError, Span
from relaxpy.script.scope import Surroundings
from relaxpy.script.source import Source

DEEPEST = 50
"""Maximum expansion depth of macros that use each other."""
MOST_USES = 2_000
"""Maximum number of macro uses in one function: fifty macros that each use the next one twice would give 2 ** 50."""


@dataclass(frozen=True, eq=False)
class Macro:
    """A macro: its definition, and the scope of its names."""

    node: ast.FunctionDef
    source: Source
    around: Surroundings
    hygienic: bool = True
    env: Mapping[str, Any] | None = None
    """For a macro defined in a function: the function's variables at that point."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ScriptError(
            "statement-place",
            f"the macro {self.node.name} can be used only in a function of the script",
            help="decorate the function that uses it with @R.function, or @T.prim_func",
        )

    def arguments(self, call: ast.Call, span: Span) -> dict[str, ast.expr]:
        """The argument expressions of this call, by parameter. Raises `ScriptError` if they do not fit."""
        names = [arg.arg for arg in self.node.args.args]
        found = dict(zip(names, call.args, strict=False))
        problem = f"{len(call.args)} arguments" if len(call.args) > len(names) else ""
        for keyword in call.keywords:
            if keyword.arg not in names or keyword.arg in found:
                problem = problem or f"the argument {keyword.arg or '**'}"
            else:
                found[str(keyword.arg)] = keyword.value
        defaults = self.node.args.defaults
        given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        found = {**given, **found}
        missing = [name for name in names if name not in found]
        if problem or missing or any(isinstance(arg, ast.Starred) for arg in call.args):
            problem = problem or (f"no {missing[0]}" if missing else "a starred argument")
            raise ScriptError(
                "op-arguments",
                f"the macro {self.node.name} takes ({', '.join(names)}), got {problem}",
                span=span,
            )
        return found


def refuse_endless(macro: Macro, depth: int, uses: int, span: Span, help: str) -> None:
    """Raise `ScriptError` for a recursive macro, or too many macro uses."""
    name = macro.node.name
    if depth == DEEPEST:
        message = f"the macro {name} is recursive, or macros are nested {DEEPEST} deep"
    elif uses > MOST_USES:
        message = f"this function expands macros more than {MOST_USES} times"
    else:
        return
    raise ScriptError("unsupported-syntax", message, span=span, help=help)


def macro(func: Any = None, *, hygienic: bool = True) -> Any:
    """Decorator that makes a macro of a definition: `@R.macro`, `@T.macro(hygienic=False)`."""
    frame = sys._getframe(1)

    def make(func: Any) -> Any:
        from relaxpy.script.parser import in_class_body, parse_decorated_macro

        return func if in_class_body(frame) else parse_decorated_macro(func, frame, hygienic)

    return make if func is None else make(func)


def expand_macros(
    node: ast.FunctionDef, source: Source, values: Mapping[str, Any], namespace: Any
) -> tuple[ast.FunctionDef, dict[str, Any]]:
    """A tensor program with its macros expanded, and the values of its names. `namespace` is the module T."""
    inner = [part for part in ast.walk(node) if _defines_macro(part)]
    if not inner and not any(isinstance(value, Macro) for value in values.values()):
        return node, dict(values)
    expander = _Expander(source, dict(values), namespace)
    expander.used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    expander.used |= {arg.arg for arg in node.args.args}
    new = expander.visit(copy.deepcopy(node))
    return new, {k: v for k, v in expander.values.items() if not isinstance(v, Macro)}


def _defines_macro(node: ast.AST) -> bool:
    """Is this a definition decorated with `@T.macro`, or `@T.inline`?"""
    match node:
        case ast.FunctionDef(decorator_list=[decorator]):
            function = decorator.func if isinstance(decorator, ast.Call) else decorator
            return isinstance(function, ast.Attribute) and function.attr in ("macro", "inline")
    return False


class _Expander(ast.NodeTransformer):
    def __init__(self, source: Source, values: dict[str, Any], namespace: Any) -> None:
        self.source = source
        self.values = values
        self.namespace = namespace
        self.used: set[str] = set()
        self.depth = self.uses = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Register a macro defined inside the program, which sees the program's names."""
        if not _defines_macro(node):
            return self.generic_visit(node)
        around = Surroundings(self.values, False)
        self.values[node.name] = Macro(node, self.source, around, hygienic=False)
        return ast.copy_location(ast.Pass(), node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        call = node.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return node
        found = self.values.get(call.func.id)
        return self.inline(found, call) if isinstance(found, Macro) else node

    def inline(self, macro: Macro, call: ast.Call) -> Sequence[ast.stmt]:
        """The expanded statements of one use."""
        self.uses += 1
        refuse_endless(macro, self.depth, self.uses, self.source.span(call), "write a loop")
        arguments = macro.arguments(call, self.source.span(call))
        body = copy.deepcopy(macro.node.body)
        parts = [part for statement in body for part in ast.walk(statement)]
        names = [part for part in parts if isinstance(part, ast.Name)]
        own = {part.id for part in names if isinstance(part.ctx, ast.Store)} - set(arguments)
        changed: dict[str, str] = {name: self.fresh(name) for name in sorted(own)}
        for name in sorted({part.id for part in names} - own - set(arguments)):
            value = macro.around.values.get(name)
            if name == "T" or value is self.namespace:
                changed[name] = "T"
            elif macro.hygienic and value is not None:
                changed[name] = self.fresh(name)
                self.values[changed[name]] = value
        replaced = _Replace(arguments, changed)
        new = [replaced.visit(statement) for statement in body]
        if macro.source.text != self.source.text:
            for part in (part for statement in new for part in ast.walk(statement)):
                ast.copy_location(part, call)  # errors are shown in the program's text
        self.depth += 1
        expanded: list[ast.stmt] = []
        for statement in new:
            more = self.visit(statement)
            expanded += more if isinstance(more, list) else [more]
        self.depth -= 1
        return expanded

    def fresh(self, name: str) -> str:
        """`name`, with a number if the program already uses it."""
        found, count = name, 0
        while found in self.used:
            count += 1
            found = f"{name}_{count}"
        self.used.add(found)
        return found


class _Replace(ast.NodeTransformer):
    def __init__(self, arguments: Mapping[str, ast.expr], names: Mapping[str, str]) -> None:
        self.arguments = arguments
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.arguments and isinstance(node.ctx, ast.Load):
            return copy.deepcopy(self.arguments[node.id])
        node.id = self.names.get(node.id, node.id)
        return node
