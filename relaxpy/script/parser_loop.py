"""`while` and `for` in functions: sugar for a local function that calls itself in the end (`relaxpy.op.loop`).

    for i in range(n):              @R.function
        y = R.add(x, y)             def for_loop(i: R.Prim(value="i"), y: R.Tensor(…)) -> …:
                                        if i < n:
                                            y1 = R.add(x, y)
                                            r = for_loop(i + 1, y1)
                                        else:
                                            r = y
                                        return r

                                    y = for_loop(0, y)

The parameters are the names that the body binds and that have values before the loop. `break` and `continue` are other
ends of a step, so what follows the `if` around them is part of its other branch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from relaxpy.errors import ErrorBag, RelaxError, Span
from relaxpy.ir.annotation import PrimType, TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.expr import Expr, If, is_leaf
from relaxpy.ir.names import FreshNames
from relaxpy.op.intrinsic import TensorToScalar
from relaxpy.op.loop import Loop, as_dim, build_loop
from relaxpy.script.parser_macro import MacroParser
from relaxpy.script.parser_statement import targets
from relaxpy.script.parser_value import known_scalar, returns
from relaxpy.script.scope import POISON, Skip
from relaxpy.shape.prove import prove

MOST_COPIES = 64
"""The most copies of statements behind `if`s with `break` or `continue` in both branches."""


@dataclass
class _Step:
    """One step of a loop, while it is parsed."""

    loop: Loop
    carried: Sequence[str]
    """The names of its variables, without the counter."""
    counter: Sequence[Any]
    """The counter of the next step, of a `for`."""
    node: ast.stmt
    copies: int = 0
    binds: dict[str, ast.stmt] = field(default_factory=dict[str, ast.stmt])


class LoopParser(MacroParser):
    """Parses loops."""

    step: _Step | None = None
    """The innermost loop around the current statement."""
    pure: bool = True
    """Whether the function is declared to have no effects."""

    def stmt_While(self, node: ast.While) -> None:
        self.check_loop(node, "while")
        test = node.test
        if isinstance(test, ast.Constant) and not any(jumps(node.body, ast.Break)):
            if not test.value:
                return
            self.fail(
                "unsupported-syntax",
                "this loop never ends",
                test,
                "write a condition, or leave it with break",
            )

        def write(parser: LoopParser, step: _Step) -> Expr:
            cond = parser.eval(test)
            if cond is True:
                return parser.rest(node.body, step)
            cond = parser.condition(cond, test)
            return parser.either(
                cond, test, partial(parser.rest, node.body, step), partial(parser.ended, step)
            )

        self.loop(node, "while_loop", write, [])

    def stmt_For(self, node: ast.For) -> None:
        self.check_loop(node, "for")
        target = node.target
        if not isinstance(target, ast.Name):
            self.refuse("this loop variable", target, "write one name: for i in range(n):")
        start, stop, step = self.range(node.iter)

        def write(parser: LoopParser, written: _Step) -> Expr:
            at = as_dim(written.loop.params[0])
            parser.env[target.id] = at
            written.counter = (at + step,)
            ends = (
                dim_op("lt", at, stop)
                if prove(dim_op("lt", Dim.of(0), step))
                else dim_op("lt", stop, at)
            )
            cond = parser.as_expr(ends, node.iter)
            return parser.either(
                cond,
                node.iter,
                partial(parser.rest, node.body, written),
                partial(parser.ended, written),
            )

        self.loop(node, "for_loop", write, [start], target)

    def stmt_Break(self, node: ast.Break) -> None:
        self.misplaced(node, "break")

    def stmt_Continue(self, node: ast.Continue) -> None:
        self.misplaced(node, "continue")

    def misplaced(self, node: ast.stmt, word: str) -> None:
        self.fail(
            "unsupported-syntax",
            f"{word} is not part of the language here",
            node,
            f"{word} ends a branch of an if in the body of a loop"
            if self.step is not None
            else "it belongs into a loop",
        )

    def check_loop(self, node: ast.While | ast.For, word: str) -> None:
        """Refuse what a loop cannot have."""
        if self.in_dataflow:
            self.fail(
                "dataflow-if",
                f"a dataflow block has no control flow, as this {word}",
                node.test if isinstance(node, ast.While) else node.iter,
                "end the block with R.output(…) before the loop",
            )
        for found in returns(node.body):
            self.fail(
                "return-place",
                "a loop contains no return",
                found,
                "bind the value, leave the loop with break, and return the value as the last statement",
            )
        if node.orelse:
            self.refuse("else of a loop", node.orelse[0], "write its statements after the loop")

    def range(self, node: ast.expr) -> tuple[Dim, Dim, Dim]:
        """Start, stop and step of `range(…)`."""
        match node:
            case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]) if 1 <= len(args) <= 3:
                pass
            case _:
                self.refuse(
                    "a for loop over this",
                    node,
                    "write for i in range(stop), range(start, stop) or range(start, stop, step); "
                    "repeat the statements for items that are known",
                )
        numbers = [self.limit(arg) for arg in args]
        start, stop = numbers[:2] if len(numbers) > 1 else (Dim.of(0), numbers[0])
        step = numbers[2] if len(numbers) > 2 else Dim.of(1)
        zero = Dim.of(0)
        if not prove(dim_op("lt", zero, step)) and not prove(dim_op("lt", step, zero)):
            self.fail(
                "bad-value",
                "range: the step must not be 0"
                if step == zero
                else f"range: is the step {step} above or below 0?",
                args[2],
                "write a number, 1 or -1",
            )
        return start, stop, step

    def limit(self, node: ast.expr) -> Dim:
        """An integer of a range: a number, a dimension, or a scalar of the program."""
        value = known_scalar(self.leaf(node))
        if isinstance(value, Expr):
            known = self.annotation_of(value)
            if isinstance(known, TensorType) and known.ndim == 0 and known.dtype is not None:
                value = self.emit(TensorToScalar()(value), node) if known.dtype.is_int else value
                known = self.annotation_of(value)
            if isinstance(known, PrimType) and known.dtype.is_int:
                return self.named_scalar(value, known.dtype, node)
        elif isinstance(value, (Dim, int)) and not isinstance(value, bool):
            return Dim.of(value)
        return self.fail(
            "bad-value",
            f"range takes integers, got {ast.unparse(node)}",
            node,
            "write a number, a symbolic variable, or a scalar of int64",
        )

    # Steps

    def loop(
        self,
        node: ast.While | ast.For,
        name: str,
        write: Callable[[LoopParser, _Step], Expr],
        counter: Sequence[Dim],
        target: ast.Name | None = None,
    ) -> None:
        """Parse a loop, and bind the last values of its variables."""
        bound = {each: found for found in reversed(node.body) for each in targets(found)}
        carried = [
            each
            for each in bound
            if self.is_carried(each) and (target is None or each != target.id)
        ]
        span = self.span(node.test if isinstance(node, ast.While) else node.iter)
        poisoned = [each for each in carried if self.env[each] is POISON]
        if poisoned:
            raise Skip
        bags: list[ErrorBag] = []

        def step(loop: Loop) -> Expr:
            bags.append(ErrorBag())
            parser = type(self)(self.source, self.around, bags[-1], self.functions, self.mod, self)
            parser.pure, parser.in_branch, parser.symbols.mode = self.pure, True, "use"
            for param, each in zip(loop.params[len(counter) :], carried, strict=True):
                parser.env[each] = as_dim(param)
            for param in loop.params:
                value = as_dim(param)
                if isinstance(value, Dim) and value.symbol is not None:
                    parser.symbols.symbols[value.symbol.name] = value.symbol
            parser.step = _Step(loop, carried, (), node)
            result = write(parser, parser.step)
            if bags[-1].errors:
                raise Skip
            return result

        names = FreshNames(self.symbols.names())
        try:
            found = build_loop(
                self.bb,
                [*counter, *(self.env[each] for each in carried)],
                [*([] if target is None else [target.id]), *carried],
                step,
                counters=len(counter),
                name=name,
                fresh=names.fresh,
                pure=self.pure,
                span=span,
            )
        except RelaxError as error:
            raise error.located(span) from None
        finally:
            if bags:
                for error in bags[-1].errors:
                    self.bag.add(error)
        for each, value in zip(carried, found, strict=True):
            self.env[each] = self.last_value_of(value)
        for each, statement in bound.items():
            if each not in self.env:
                self.env[each] = OnlyInLoop(each, self.span(statement), "")
        if target is not None:
            place = self.span(target)
            self.env[target.id] = OnlyInLoop(target.id, place, "the loop's counter, ")

    def last_value_of(self, value: Expr) -> Any:
        found = as_dim(value)
        if isinstance(found, Dim) and found.symbol is not None:
            self.symbols.symbols.setdefault(found.symbol.name, found.symbol)
        return found

    def is_carried(self, name: str) -> bool:
        """Does a name that the body of a loop binds have a value of the program before the loop?"""
        value = self.env.get(name)
        return value is POISON or isinstance(value, (Expr, Dim, bool, int, float))

    def rest(self, statements: Sequence[ast.stmt], step: _Step) -> Expr:
        """Parse the rest of a step; return its result."""
        for at, statement in enumerate(statements):
            match statement:
                case ast.Break() | ast.Continue():
                    for later in statements[at + 1 : at + 2]:
                        word = "break" if isinstance(statement, ast.Break) else "continue"
                        self.report(
                            "unsupported-syntax", f"there is code after {word}", later, "remove it"
                        )
                    return (
                        self.ended(step) if isinstance(statement, ast.Break) else self.again(step)
                    )
                case ast.If() if any(jumps([statement], (ast.Break, ast.Continue))):
                    return self.jumping(statement, statements[at + 1 :], step)
                case _:
                    self.statement(statement)
        return self.again(step)

    def jumping(self, node: ast.If, after: Sequence[ast.stmt], step: _Step) -> Expr:
        """An `if` with an arm that ends the step. What follows it is part of both arms."""
        step.copies += 1
        if step.copies > MOST_COPIES:
            self.refuse(
                f"a loop with more than {MOST_COPIES} ifs around break or continue",
                node.test,
                "combine the conditions, or bind a boolean and test that in the while",
            )
        cond = self.eval(node.test)
        arms = [body if ends(body) else [*body, *after] for body in (node.body, node.orelse)]
        if isinstance(cond, bool):  # known at parse time
            return self.rest(arms[not cond], step)
        cond = self.condition(cond, node.test)
        return self.either(cond, node.test, *(partial(self.rest, arm, step) for arm in arms))

    def condition(self, value: Any, node: ast.expr) -> Expr:
        cond = self.as_expr(value, node)
        if not is_leaf(cond):
            cond = self.emit(cond, node)
        self.check_condition(cond, node)
        return cond

    def either(
        self, cond: Expr, node: ast.expr, then: Callable[[], Expr], otherwise: Callable[[], Expr]
    ) -> Expr:
        """The value of a branch with these arms."""
        arms = []
        for arm in (then, otherwise):
            before = dict(self.env)
            try:
                with self.bb.seq() as building:
                    building.result(arm())
            finally:
                self.env = before
            arms.append(building.seq)
        return self.bind(self.bb.fresh_name("r"), If(cond, *arms, span=self.span(node)), node)

    def again(self, step: _Step) -> Expr:
        return step.loop.again([*step.counter, *self.values(step)], span=self.span(step.node))

    def ended(self, step: _Step) -> Expr:
        counter = step.loop.params[: len(step.counter)]
        return step.loop.done([*counter, *self.values(step)], span=self.span(step.node))

    def values(self, step: _Step) -> list[Any]:
        """The values of the loop's variables at this point."""
        found = [self.env[name] for name in step.carried]
        if any(value is POISON for value in found):
            raise Skip
        return found

    def eval_Name(self, node: ast.Name) -> Any:
        value = super().eval_Name(node)
        if isinstance(value, OnlyInLoop):
            self.fail(
                "loop-variable",
                f"{node.id} has no value here: it is {value.what}bound in the body of a loop, which may take no step",
                node,
                f"bind {node.id} before the loop, too",
                [f"the loop binds it at {value.span}"],
            )
        return value


@dataclass(frozen=True)
class OnlyInLoop:
    """A variable that only the body of a loop binds, used after it."""

    name: str
    span: Span
    what: str


def ends(statements: Sequence[ast.stmt]) -> bool:
    """Does every way through these statements end the step?"""
    match statements[-1:]:
        case [ast.Break() | ast.Continue()]:
            return True
        case [ast.If(body=body, orelse=orelse)]:
            return ends(body) and ends(orelse)
        case _:
            return False


def jumps(
    statements: Sequence[ast.stmt], kinds: type[ast.stmt] | tuple[type[ast.stmt], ...]
) -> Iterator[ast.stmt]:
    """The statements of these kinds (`break`, `continue`) that belong to the loop around them."""
    for statement in statements:
        if isinstance(statement, kinds):
            yield statement
        elif isinstance(statement, ast.If):
            yield from jumps((*statement.body, *statement.orelse), kinds)
