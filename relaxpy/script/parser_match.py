"""Python's `match` over data types, tuples and numbers.

It becomes tests and branches, as a loop becomes a function: a clause asks which constructor made the value
(`R.data.made_by`), its names are fields (`R.data.field`), and the next clause is the other branch. So passes and
machines know `if` only.

    match xs:                        if R.data.made_by(xs, List.Nil):
        case Nil():                      y = zero
            y = zero                 else:
        case Cons(head, tail):           head = R.data.field(xs, List.Cons, 0)
            y = head                     y = head
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from relaxpy.errors import RelaxError
from relaxpy.ir.annotation import DataType, ObjectType
from relaxpy.ir.expr import Expr, If, PrimValue, SeqExpr, Tuple, TupleGetItem, is_leaf
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.op.data import data_field, made_by, own_types
from relaxpy.script.parser_pattern import PatternParser
from relaxpy.script.parser_signature import mark_scalars
from relaxpy.script.parser_statement import last_target
from relaxpy.script.parser_value import returns
from relaxpy.script.patterns import (
    ANY,
    Case,
    Literal,
    Parts,
    Pattern,
    example,
    names_of,
    refutable,
)
from relaxpy.script.scope import Skip


class MatchParser(PatternParser):
    """Parses `match`."""

    def stmt_Match(self, node: ast.Match) -> None:
        if self.in_dataflow:
            self.fail(
                "dataflow-if",
                "a dataflow block has no control flow",
                node.subject,
                "move the match out of the block",
            )
        for found in () if self.in_branch else returns([node]):
            self.stmt_Return(found)
        subject = self.as_expr(self.leaf(node.subject), node.subject)
        annotation = self.annotation_of(subject)
        patterns: list[Pattern | None] = []
        for case in node.cases:
            patterns.append(None)
            with self.bag.collect(self.span(case.pattern)):
                patterns[-1] = self.whole_pattern(case, annotation)
        name = self.match_name(node)
        known = [pattern for pattern in patterns if pattern is not None]
        if len(known) < len(patterns):
            raise Skip
        self.check_clauses(node, known)
        declared = self.declared.pop(name, None)
        clauses = list(zip(node.cases, known, strict=True))
        before = dict(self.env)
        try:
            value = self.decide(clauses, subject, name, node)
        finally:
            self.env = before
        if is_leaf(value) and declared is None:
            self.env[name] = value
        else:
            self.env[name] = self.bind(name, value, node.subject, declared)

    def match_name(self, node: ast.Match) -> str:
        """The name that all clauses bind in their last statement."""
        names = [last_target(case.body) for case in node.cases]
        if names[0] is None or len({*names}) > 1:
            self.fail(
                "if-branches",
                "all clauses of a match must bind the same name in their last statement",
                node.subject,
                "write y = … as the last statement of every clause: it is the value of the match",
                [f"they bind {', '.join(each or 'nothing' for each in names)}"],
            )
        return names[0]

    def check_clauses(self, node: ast.Match, patterns: Sequence[Pattern]) -> None:
        """Every clause must be reached by a value, and every value have a clause."""
        rows: list[list[Pattern]] = []
        found = len(self.bag.errors)
        for case, pattern in zip(node.cases, patterns, strict=True):
            if example(rows, [pattern]) is None:
                self.report(
                    "match-unreachable",
                    "no value reaches this clause: the clauses before match all that it matches",
                    case.pattern,
                    "remove it, or write it before them",
                )
            rows.append([pattern])
        missed = example(rows, [ANY])
        if missed is not None:
            self.report(
                "match-missing",
                f"no clause matches {missed[0]}",
                node.subject,
                f"add a clause: case {missed[0]}:",
            )
        if len(self.bag.errors) > found:
            raise Skip

    def decide(
        self,
        clauses: Sequence[tuple[ast.match_case, Pattern]],
        subject: Expr,
        name: str,
        node: ast.Match,
    ) -> Expr:
        """The value of the first clause that matches."""
        (case, pattern), *rest = clauses
        if not rest:
            return self.clause(case, pattern, subject, name)
        cond = self.holds([(pattern, subject)])
        then = self.arm(lambda: self.clause(case, pattern, subject, name))
        otherwise = self.arm(lambda: self.decide(rest, subject, name, node))
        if then is None or otherwise is None:
            raise Skip
        value = If(cond, then, otherwise, span=self.span(node))
        return value if clauses[0][0] is node.cases[0] else self.bind(name, value, node.subject)

    def clause(self, case: ast.match_case, pattern: Pattern, subject: Expr, name: str) -> Expr:
        """The value of a clause whose pattern matches."""
        errors = len(self.bag.errors)
        self.take(pattern, subject)
        for statement in case.body[:-1]:
            self.statement(statement)
        value = self.last_value(case.body[-1], name)
        if value is None or len(self.bag.errors) > errors:
            raise Skip
        return value

    def arm(self, write: Callable[[], Expr]) -> SeqExpr | None:
        """A branch as a body of its own; None if there was an error in it."""
        before, outer = dict(self.env), self.in_branch
        self.in_branch = True
        try:
            with self.bb.seq() as building:
                building.result(write())
            return building.seq
        except Skip:
            return None
        except RelaxError as error:
            self.bag.add(error)
            return None
        finally:
            self.env, self.in_branch = before, outer

    def holds(self, tests: Sequence[tuple[Pattern, Expr]]) -> Expr:
        """Do values match patterns? At least one of them may not."""
        (pattern, value), *rest = [test for test in tests if refutable(test[0])]
        match pattern:
            case Parts(parts=parts):
                return self.holds([*zip(parts, self.parts(pattern, value), strict=True), *rest])
            case Case(decl=decl, index=index, node=node):
                inner = [i for i, part in enumerate(pattern.parts) if refutable(part)]
                cond = None
                if len(decl.constructors) > 1:
                    cond = self.emit(made_by(decl, index, value), node)  # type: ignore[arg-type]
            case _:
                assert isinstance(pattern, Literal)
                inner, cond = [], self.is_literal(value, pattern)

        def further() -> Expr:
            fields = self.fields(pattern, value, inner) if isinstance(pattern, Case) else {}
            return self.holds([*((pattern.parts[i], fields[i]) for i in inner), *rest])  # type: ignore[union-attr]

        if not inner and not rest:
            assert cond is not None
            return cond
        if cond is None:
            return further()
        then, otherwise = self.arm(further), self.arm(lambda: PrimValue(False))
        if then is None or otherwise is None:
            raise Skip
        return self.emit(If(cond, then, otherwise, span=self.span(pattern.node)), pattern.node)  # type: ignore[arg-type, union-attr]

    def is_literal(self, value: Expr, pattern: Literal) -> Expr:
        outer = self.env
        self.env = {**outer, "value of a match": value}
        left = ast.copy_location(ast.Name("value of a match", ast.Load()), pattern.node)
        test = ast.copy_location(ast.Compare(left, [ast.Eq()], [pattern.node]), pattern.node)
        try:
            return self.condition(self.eval(test), pattern.node)
        finally:
            self.env = outer

    def take(self, pattern: Pattern, value: Expr) -> None:
        """Bind the names of a pattern that the value matches."""
        if pattern.name is not None:
            self.env[pattern.name] = value
        match pattern:
            case Parts(parts=parts):
                for part, field in zip(parts, self.parts(pattern, value), strict=True):
                    self.take(part, field)
            case Case(parts=parts):
                wanted = [i for i, part in enumerate(parts) if any(names_of(part))]
                for i, field in self.fields(pattern, value, wanted).items():
                    self.take(parts[i], field)
            case _:
                pass

    def parts(self, pattern: Parts, value: Expr) -> list[Expr]:
        """The values of a tuple."""
        if isinstance(value, Tuple):
            return list(value.fields)
        items = [TupleGetItem(value, i) for i in range(len(pattern.parts))]
        wanted = [any(names_of(part)) or refutable(part) for part in pattern.parts]
        return [
            self.emit(item, pattern.node) if needed else item  # type: ignore[arg-type]
            for item, needed in zip(items, wanted, strict=True)
        ]

    def fields(self, pattern: Case, value: Expr, wanted: Sequence[int]) -> dict[int, Expr]:
        """The fields `wanted` of a value that the pattern's constructor made. Symbols of its own get their values, and
        are visible by their names if there are no others of these."""
        decl, index, node = pattern.decl, pattern.index, pattern.node
        annotation = self.annotation_of(value)
        args = (
            annotation.args
            if isinstance(annotation, DataType)
            else (ObjectType(),) * len(decl.params)
        )
        types, own = own_types(decl, index, args, self.symbols.new)
        sized = [
            i for i, kind in enumerate(types) if {*own.values()}.intersection(free_sym_vars([kind]))
        ]
        if {*sized}.intersection(wanted):
            wanted = sorted({*wanted, *sized})
        found: dict[int, Expr] = {}
        for i in wanted:
            name = self.bb.fresh_name(decl.constructors[index].fields[i])
            call = data_field(decl, index, value, annotation, i)
            found[i] = self.bind(name, call, node)  # type: ignore[arg-type]
            if i in sized:
                mark_scalars([types[i]], {*own.values()})
                found[i] = self.cast(found[i], types[i], name, self.span(node), False)
        for name, symbol in own.items():
            if (
                {*sized}.intersection(wanted)
                and name not in self.env
                and self.symbols.lookup(name) is None
            ):
                self.env[name] = symbol.dim
        return found
