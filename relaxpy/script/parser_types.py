"""Parsing of `@R.type` declarations: first the names of all types of a module, then the fields of their constructors,
so that types may refer to each other."""

from __future__ import annotations

import ast

from relaxpy.errors import ErrorBag, ScriptError, Source
from relaxpy.ir.annotation import Annotation, TypeParam
from relaxpy.ir.data import TABLE, Constructor, TypeDecl
from relaxpy.ir.dim import SymVar
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.script import relax as namespace_r
from relaxpy.script.data import TypeRef
from relaxpy.script.parser_expr import ExprParser
from relaxpy.script.scope import Surroundings, Symbols
from relaxpy.shape.defined import defined_symbols

USAGE = 'write def Cons(head: A, tail: "List[A]"): ... for each constructor, and A = R.type_param() for a parameter'


class TypeParser:
    """Parses the types of one module."""

    def __init__(self, source: Source, around: Surroundings, bag: ErrorBag) -> None:
        self.source, self.around, self.bag = source, around, bag
        self.refs: dict[str, TypeRef] = {}
        self.nodes: dict[str, ast.ClassDef] = {}

    def declare(self, node: ast.ClassDef, kind: str | None, late: bool) -> TypeRef:
        """The name of a type, whose constructors are not known yet. `kind` is that of its decorator; `late`: there are
        functions before it."""
        scope = ExprParser(self.source, self.around, Symbols())
        if kind != "type":
            problem = f"the class {node.name} in a module has no @R.type"
            scope.fail("missing-decorator", problem, node, "add @R.type for a data type")
        if late:
            scope.fail(
                "data-type",
                f"the type {node.name} is declared after a function",
                node,
                "declare types first: annotations name them, which Python reads in order",
            )
        if node.name in self.refs:
            scope.fail("duplicate-name", f"there are two types called {node.name}", node)
        for base in (*node.bases, *node.keywords):
            where = base if isinstance(base, ast.expr) else base.value
            scope.refuse("a base class of a type", where, USAGE)
        params = tuple(
            statement.targets[0].id
            for statement in node.body
            if isinstance(statement, ast.Assign)
            and self.is_parameter(statement, scope)
            and isinstance(statement.targets[0], ast.Name)
        )
        self.nodes[node.name] = node
        self.refs[node.name] = TypeRef(node.name, params)
        return self.refs[node.name]

    @staticmethod
    def is_parameter(node: ast.Assign, scope: ExprParser) -> bool:
        """Is this `A = R.type_param()`?"""
        value = node.value
        return (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and scope.eval(value.func) is namespace_r.type_param
            and isinstance(scope.eval(value), TypeParam)
        )

    def read(self) -> dict[str, tuple[TypeDecl, ...]]:
        """The types with their constructors, for `IRModule.global_infos`; none if one is wrong. Errors are
        collected."""
        errors = len(self.bag.errors)
        for name, node in self.nodes.items():
            ref = self.refs[name]
            cases: dict[str, Constructor] = {}
            for statement in node.body:
                with self.bag.collect(self.source.span(statement)):
                    self.member(statement, ref, cases)
            span = self.source.span(node)
            if not cases:
                self.bag.add(
                    ScriptError(
                        "data-type", f"the type {name} has no constructor", span=span, help=USAGE
                    )
                )
            ref.decl = TypeDecl(name, ref.params, tuple(cases.values()), span)
        if not self.refs or len(self.bag.errors) > errors:
            return {}
        return {TABLE: tuple(ref.decl for ref in self.refs.values())}

    def member(self, node: ast.stmt, ref: TypeRef, cases: dict[str, Constructor]) -> None:
        """A statement in the class of a type."""
        scope = ExprParser(self.source, self.around, Symbols())
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Assign() if self.is_parameter(node, scope):
                pass
            case ast.FunctionDef(name=name):
                if name in cases:
                    scope.fail(
                        "duplicate-name", f"{ref.name} has two constructors called {name}", node
                    )
                cases[name] = Constructor(name, (), ())
                cases[name] = self.constructor(node, ref, scope)
            case _:
                scope.refuse("this statement in a type", node, USAGE)

    def constructor(self, node: ast.FunctionDef, ref: TypeRef, scope: ExprParser) -> Constructor:
        args = node.args
        extras = [*args.posonlyargs, *args.kwonlyargs, *args.defaults, args.vararg, args.kwarg]
        extras += [*node.decorator_list, node.returns]
        for extra in extras:
            if extra is not None:
                scope.refuse("this in a constructor", extra, USAGE)
        for statement in node.body:
            match statement:
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    pass
                case _:
                    scope.refuse("a body of a constructor", statement, USAGE)
        scope.env = {**self.refs, **{name: TypeParam(name) for name in ref.params}}
        names, types = [arg.arg for arg in args.args], list[Annotation]()
        known: set[SymVar] = set()
        for i, arg in enumerate(args.args):
            with self.bag.collect(self.source.span(arg)):
                if arg.arg in names[:i] or arg.arg.startswith("_"):
                    problem = "is there twice" if arg.arg in names[:i] else "begins with _"
                    scope.fail("data-type", f"the field {arg.arg} {problem}", arg)
                if arg.annotation is None:
                    scope.fail(
                        "missing-annotation", f"the field {arg.arg} needs an annotation", arg
                    )
                types.append(scope.annotation(arg.annotation, "define"))
                known |= defined_symbols([types[-1]], known)
                unknown = next((s for s in free_sym_vars([types[-1]]) if s not in known), None)
                if unknown is not None:
                    scope.fail(
                        "symbol-undefined",
                        f"the value of {unknown.name} cannot be determined from the fields before it and {arg.arg}",
                        arg.annotation,
                        f'make it a dimension of a field before: "{unknown.name}"',
                    )
        return Constructor(node.name, tuple(names[: len(types)]), tuple(types))
