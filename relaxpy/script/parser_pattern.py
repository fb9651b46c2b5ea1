"""Parsing of the patterns of `match`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from relaxpy.errors import did_you_mean
from relaxpy.ir.annotation import Annotation, DataType, PrimType, TensorType, TupleType
from relaxpy.ir.data import TypeDecl
from relaxpy.script.data import ConstructorRef
from relaxpy.script.parser_loop import LoopParser
from relaxpy.script.patterns import ANY, Anything, Case, Literal, Parts, Pattern, names_of


class PatternParser(LoopParser):
    """Reads patterns, each for a value of known annotation."""

    def whole_pattern(self, case: ast.match_case, annotation: Annotation) -> Pattern:
        """The pattern of a clause, for a value of this annotation."""
        if case.guard is not None:
            self.refuse("a condition of a clause", case.guard, "write an if in the clause")
        pattern = self.pattern(case.pattern, annotation)
        names = list(names_of(pattern))
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            self.fail("match-pattern", f"the pattern binds {twice} twice", case.pattern)
        return pattern

    def pattern(self, node: ast.pattern, annotation: Annotation) -> Pattern:
        match node:
            case ast.MatchAs(pattern=None, name=None):
                return ANY
            case ast.MatchAs(pattern=None, name=str() as name):
                self.refuse_constructor(name, node, annotation)
                return Anything(name)
            case ast.MatchAs(pattern=ast.pattern() as inner, name=str() as name):
                found = self.pattern(inner, annotation)
                if found.name is not None:
                    self.fail(
                        "match-pattern", "this value has two names", node, "write one of them"
                    )
                return Anything(name) if isinstance(found, Anything) else replace(found, name=name)
            case ast.MatchClass():
                return self.constructor_pattern(node, annotation)
            case ast.MatchSequence(patterns=parts):
                return self.tuple_pattern(node, parts, annotation)
            case ast.MatchValue(value=value):
                return self.literal_pattern(value, self.eval(value), annotation)
            case ast.MatchSingleton(value=bool() as value):
                constant = ast.copy_location(ast.Constant(value), node)
                return self.literal_pattern(constant, value, annotation)
            case ast.MatchOr():
                return self.refuse("`|` in a pattern", node, "write a clause for each")
            case _:
                pass
        return self.refuse(
            "this pattern",
            node,
            "patterns are constructors, tuples, numbers, names and _: case Cons(head, _):",
        )

    def refuse_constructor(self, name: str, node: ast.pattern, annotation: Annotation) -> None:
        """Refuse `case Nil:`, which Python takes for a new name, and names that differ from a constructor by a
        letter."""
        decl = self.types.get(annotation.name) if isinstance(annotation, DataType) else None
        decls = [decl] if decl is not None else list(self.types.values())
        cases = {case.name: case for each in decls for case in each.constructors}
        close = name if name in cases else None
        if close is None and name[:1].isupper() and did_you_mean(name, cases, str):
            close = next((known for known in cases if _differ_by_one(name, known)), None)
        if close is not None:
            inner = ", ".join("_" * len(cases[close].fields))
            self.fail(
                "match-pattern",
                f"{name} is a new name here, which matches anything"
                + (", not the constructor" if close == name else ""),
                node,
                f"write case {close}({inner}):",
            )

    def constructor_pattern(self, node: ast.MatchClass, annotation: Annotation) -> Pattern:
        decl, name = self.constructor_of(node.cls, annotation)
        index = ConstructorRef(decl, name, None).index
        if not isinstance(annotation, DataType) or annotation.name != decl.name:
            self.fail(
                "match-pattern", f"{decl.name}.{name} is no pattern for {annotation}", node.cls
            )
        case = decl.constructors[index]
        given: dict[str, ast.pattern] = dict(zip(case.fields, node.patterns, strict=False))
        for field, inner in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            if field in given or field not in case.fields:
                problem = "is given twice" if field in given else f"is no field of {name}"
                self.fail(
                    "match-pattern",
                    f"{field} {problem}",
                    inner,
                    did_you_mean(field, case.fields, str),
                )
            given[field] = inner
        if len(node.patterns) > len(case.fields) or (
            not node.kwd_attrs and len(given) < len(case.fields)
        ):
            fields = ", ".join(case.fields) or "none"
            self.fail(
                "match-pattern",
                f"{name} has {len(case.fields)} field{'s' * (len(case.fields) != 1)} ({fields}), the pattern "
                f"{len(node.patterns)}",
                node,
                f"write {name}({', '.join('_' * len(case.fields))})",
            )
        types = decl.fields_of(index, annotation.args)
        parts = [
            self.pattern(given[field], kind) if field in given else ANY
            for field, kind in zip(case.fields, types, strict=True)
        ]
        return Case(decl, index, tuple(parts), node)

    def constructor_of(self, node: ast.expr, annotation: Annotation) -> tuple[TypeDecl, str]:
        """The type and the name that `Cons` or `List.Cons` stands for."""
        match node:
            case ast.Name(id=name):
                decl = self.types.get(annotation.name) if isinstance(annotation, DataType) else None
                if decl is None:
                    decl = next((d for d in self.types.values() if d.find(name) >= 0), None)
                if decl is not None:
                    return decl, name
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in self.types:
                return self.types[owner], name
            case _:
                pass
        return self.fail(
            "match-pattern",
            f"{ast.unparse(node)} is no constructor",
            node,
            "a pattern is a constructor of a type that the module declares: case Cons(head, tail):",
        )

    def tuple_pattern(
        self, node: ast.pattern, parts: Sequence[ast.pattern], annotation: Annotation
    ) -> Pattern:
        if not isinstance(annotation, TupleType):
            self.fail("match-pattern", f"a tuple is no pattern for {annotation}", node)
        if len(parts) != len(annotation.fields):
            self.fail(
                "match-pattern",
                f"the tuple has {len(annotation.fields)} values, the pattern {len(parts)}",
                node,
            )
        pairs = zip(parts, annotation.fields, strict=True)
        return Parts(tuple(self.pattern(each, kind) for each, kind in pairs), node)

    def literal_pattern(self, node: ast.expr, value: Any, annotation: Annotation) -> Pattern:
        if not isinstance(value, (bool, int, float)):
            self.fail("match-pattern", "a pattern of a value is a number, or True or False", node)
        match annotation:
            case PrimType(dtype=dtype):
                pass
            case TensorType(ndim=0, dtype=dtype) if dtype is not None:
                pass
            case _:
                self.fail("match-pattern", f"a number is no pattern for {annotation}", node)
        fits = isinstance(value, bool) if dtype.is_bool else not isinstance(value, bool)
        if not fits or (dtype.is_int and isinstance(value, float)):
            self.fail("match-pattern", f"{value!r} is no pattern for {annotation}", node)
        return Literal(float(value) if dtype.is_float else value, node)


def _differ_by_one(a: str, b: str) -> bool:
    """Do two words differ by one letter, which is changed, missing, or there once more?"""
    if abs(len(a) - len(b)) > 1:
        return False
    start = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    return any(a[start + i :] == b[start + j :] for i, j in ((1, 1), (1, 0), (0, 1)))
