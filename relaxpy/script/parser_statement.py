"""Statements of functions: calls for their effect, dataflow blocks, branches. Statements that bind names are in
`parser_binding.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from relaxpy.analysis.purity import is_pure
from relaxpy.errors import RelaxError, ScriptError, Span
from relaxpy.ir.annotation import (
    VOID,
    ObjectType,
    PrimType,
    TensorType,
)
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import (
    Call,
    Expr,
    GlobalVar,
    If,
    SeqExpr,
    ShapeExpr,
    Tuple,
    Var,
    is_leaf,
)
from relaxpy.ir.vdevice import VDevice
from relaxpy.script import relax as namespace_r
from relaxpy.script.describe import describe
from relaxpy.script.parser_binding import BindingParser
from relaxpy.script.parser_value import known_scalar, returns
from relaxpy.script.scope import (
    POISON,
    Skip,
    suggest,
)

REFUSED: dict[type[ast.stmt], tuple[str, str]] = {
    ast.Try: ("try", "there are no exceptions; check conditions with R.assert_op"),
    ast.Raise: ("raise", "use R.assert_op(condition)"),
    ast.Assert: ("assert", "write R.assert_op(condition)"),
    ast.Delete: ("del", "memory is freed automatically"),
    ast.Import: ("import", "import at the top of the file"),
    ast.ImportFrom: ("import", "import at the top of the file"),
    ast.Global: ("global", "pass the value as an argument"),
    ast.Nonlocal: ("nonlocal", "read variables of the enclosing function, and return new values"),
    ast.ClassDef: ("a class", "define functions with @R.function"),
    ast.AsyncFunctionDef: ("async def", "write def"),
    ast.AsyncFor: ("a for loop", "unroll it"),
    ast.AsyncWith: ("async with", "write with R.dataflow():"),
}


class StatementParser(BindingParser):
    """Parses statements. Errors go to `bag`; after an error, parsing continues with the next statement."""

    def statement(self, node: ast.stmt) -> None:
        """Parse one statement; an error is collected, and the names that the statement would define are poisoned."""
        try:
            method = getattr(self, "stmt_" + type(node).__name__, None)
            if method is None:
                what, help = REFUSED.get(type(node), (type(node).__name__, "see docs/language.md"))
                self.refuse(what, node, help)
            method(node)
            return
        except Skip:
            pass
        except RelaxError as error:
            self.bag.add(error.located(self.span(node)))
        except RecursionError:
            self.report(
                "unsupported-syntax",
                "this expression is nested too deeply",
                node,
                "bind parts of it to variables",
            )
        for name in targets(node):
            self.env[name] = POISON

    def stmt_Pass(self, node: ast.Pass) -> None:
        """Do nothing."""

    def stmt_Expr(self, node: ast.Expr) -> None:
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return  # a docstring
        if isinstance(value, ast.Call):
            word = self.statement_word(value)
            if word is namespace_r.func_attr:
                self.func_attr(value)
                return
            if word is namespace_r.output:
                self.fail(
                    "dataflow-output",
                    "R.output is allowed only as the last statement of a dataflow block",
                    value,
                    "write it at the end of `with R.dataflow():`",
                )
        found = self.for_effect(self.eval(value))
        if isinstance(found, Tuple) and not found.fields:  # R.tuple(): nothing, as a statement
            self.env["_"] = self.bind("_", found, value)
            return
        if not isinstance(found, Call):
            self.unused(value)
        deduced = self.deduced(found, value)
        if deduced != VOID and is_pure(found, self.mod):
            self.unused(value, [f"it is {deduced}, and the call has no side effect"])
        self.env["_"] = self.bind("_", found, value)

    def unused(self, node: ast.expr, notes: Sequence[str] = ()) -> NoReturn:
        self.fail(
            "unused-value",
            "this value is not used",
            node,
            "bind it to a variable, y = …, or remove it",
            notes,
        )

    def func_attr(self, node: ast.Call) -> None:
        attrs = self.eval(node.args[0]) if len(node.args) == 1 else None
        if not isinstance(attrs, dict):
            self.fail("bad-value", "R.func_attr takes a dict", node, namespace_r.func_attr.usage)
        self.attrs.update({str(key): literal_attr(value) for key, value in attrs.items()})

    # Blocks

    def stmt_With(self, node: ast.With) -> None:
        if len(node.items) != 1:
            self.refuse("with several contexts", node, "write with R.dataflow():")
        context = node.items[0]
        call = context.context_expr
        word = self.statement_word(call) if isinstance(call, ast.Call) else None
        if word is not namespace_r.dataflow or context.optional_vars is not None:
            self.refuse("this with", context.context_expr, "the only context is R.dataflow()")
        if self.in_dataflow:
            self.fail(
                "dataflow-nested",
                "dataflow blocks cannot be nested",
                call,
                "end the outer block first",
            )
        self.dataflow(node.body)

    def dataflow(self, body: list[ast.stmt]) -> None:
        """Parse the statements of a dataflow block; the last one lists the variables visible after it, or is the
        function's return, which is then read after the block."""
        output: ast.Call | None = None
        last = body[-1]
        call = last.value if isinstance(last, ast.Expr) else None
        if isinstance(call, ast.Call) and self.statement_word(call) is namespace_r.output:
            output, body = call, body[:-1]
        names: list[str] = []
        if last is self.last_return:
            body = body[:-1]
            names = [part.id for part in ast.walk(last) if isinstance(part, ast.Name)]
        for arg in output.args if output is not None else ():
            if isinstance(arg, ast.Name):
                names.append(arg.id)
            else:
                self.report(
                    "dataflow-output",
                    "R.output takes variables of the block",
                    arg,
                    "bind the value to a variable first",
                )
        before = dict(self.env)
        defined = {name: statement for statement in body for name in targets(statement)}
        self.outputs = {name: defined[name] for name in names if name in defined}
        self.in_dataflow = True
        try:
            with self.bb.dataflow():
                for statement in body:
                    self.statement(statement)
        finally:
            self.in_dataflow = False
            self.outputs = {}
        inner, self.env = self.env, before
        for name, statement in defined.items():
            value = inner.get(name)
            if name in names or not isinstance(value, Var):
                self.env[name] = value
            elif not isinstance(self.env.get(name), Var):
                self.env[name] = Hidden(name, self.span(statement))
        for arg in output.args if output is not None else ():
            if isinstance(arg, ast.Name) and arg.id not in defined:
                self.report(
                    "dataflow-output",
                    f"{arg.id} is not defined in this dataflow block",
                    arg,
                    suggest(arg.id, defined) or "R.output takes variables that the block defines",
                )

    def eval_Name(self, node: ast.Name) -> Any:
        value = super().eval_Name(node)
        if isinstance(value, Hidden):
            self.fail(
                "dataflow-output",
                f"{node.id} is visible only inside its dataflow block",
                node,
                f"end the block with R.output({node.id})",
                [f"it is defined at {value.span}"],
            )
        return value

    def stmt_Return(self, node: ast.Return) -> None:
        self.fail(
            "return-place",
            "a function has one return, as its last statement",
            node,
            "end the block with R.output(y), and return y after it"
            if self.in_dataflow
            else "bind the value to the same name in both branches, and return it after them",
        )

    def stmt_If(self, node: ast.If) -> None:
        if self.in_dataflow:
            self.fail(
                "dataflow-if",
                "a dataflow block has no control flow",
                node.test,
                "move the if out of the block, or use R.where",
            )
        cond = self.eval(node.test)
        if isinstance(cond, bool):  # known at parse time
            for statement in node.body if cond else node.orelse:
                self.statement(statement)
            return
        cond = self.condition(cond, node.test)
        name = self.branch_name(node)
        declared = self.declared.pop(name, None)
        then = self.branch(node.body, name)
        otherwise = self.branch(node.orelse, name)
        if then is None or otherwise is None:
            raise Skip
        value = If(cond, then, otherwise, span=self.span(node))
        self.env[name] = self.bind(name, value, node.test, declared)

    def choice(self, node: ast.IfExp, test: Expr | Dim) -> Any:
        """`a if test else b`: a dimension where both are, and nothing is computed for them; else an `If`."""
        if self.in_annotation:
            return super().choice(node, test)
        sides = self.each(self.side, (node.body, node.orelse))
        if not any(seq.blocks for seq, _ in sides):
            found = self.chosen_dim(node, test, [known_scalar(value) for _, value in sides])
            if found is not None:
                return found
        if self.in_dataflow:
            self.fail(
                "dataflow-if",
                "a dataflow block has no control flow",
                node,
                "write R.where(c, a, b), which computes both values, or choose before the block",
            )
        cond = self.condition(test, node.test)
        return If(cond, sides[0][0], sides[1][0], span=self.span(node))

    def side(self, node: ast.expr) -> tuple[SeqExpr, Any]:
        """One side of a choice, as a body of its own and as it was evaluated."""
        with self.bb.seq() as building:
            value = self.leaf(node)
            building.result(self.as_expr(value, node))
        return building.seq, value

    def condition(self, value: Any, node: ast.expr) -> Expr:
        """The condition of an `If`, bound to a variable if it is computed."""
        cond = self.as_expr(value, node)
        if not is_leaf(cond):
            cond = self.emit(cond, node)
        self.check_condition(cond, node)
        return cond

    def check_condition(self, cond: Expr, node: ast.expr) -> None:
        annotation = self.annotation_of(cond)
        match annotation:
            case PrimType(dtype="bool"):
                return
            case ObjectType() if type(annotation) is ObjectType:
                return
            case TensorType(dtype=dtype, ndim=ndim) if dtype in (None, "bool") and ndim in (-1, 0):
                return
        self.fail(
            "if-condition",
            f"the condition must be a scalar boolean, got {annotation}",
            node,
            'its annotation must be R.Tensor((), "bool"); for an elementwise selection use R.where',
        )

    def branch_name(self, node: ast.If) -> str:
        """The name that both branches bind in their last statement: the name of the if's value."""
        for found in () if self.in_branch else returns([node]):
            self.stmt_Return(found)
        if not node.orelse:
            self.fail(
                "if-branches",
                "an if needs an else branch, since it has a value",
                node.test,
                "add else:, and bind the same name in both branches",
            )
        names = [last_target(node.body), last_target(node.orelse)]
        if names[0] is None or names[0] != names[1]:
            self.fail(
                "if-branches",
                "both branches must bind the same name in their last statement",
                node.test,
                "write y = … as the last statement of both branches: it is the value of the if",
                [f"they bind {names[0] or 'nothing'} and {names[1] or 'nothing'}"],
            )
        return names[0]

    def branch(self, body: Sequence[ast.stmt], name: str) -> SeqExpr | None:
        """One branch as a body of its own; None if there was an error in it."""
        before, errors = dict(self.env), len(self.bag.errors)
        outer, self.in_branch = self.in_branch, True
        try:
            with self.bb.seq() as building:
                for statement in body[:-1]:
                    self.statement(statement)
                value = self.last_value(body[-1], name)
                if value is None or len(self.bag.errors) > errors:
                    raise Skip
                building.result(value)
            return building.seq
        except Skip:
            return None
        finally:
            self.env, self.in_branch = before, outer

    def last_value(self, node: ast.stmt, name: str) -> Expr | None:
        """The value of a branch's last statement; a leaf needs no binding of its own."""
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.value, (ast.Name, ast.Constant, ast.Tuple, ast.Call))
            and not (isinstance(node.value, ast.Call) and self.statement_word(node.value))
        ):
            with self.quietly(name):
                value = self.expr(node.value)
                if is_leaf(value) and name not in self.declared:
                    return value
                self.define(name, value, node.value, None, node)
                return self.env[name]
            return None
        self.statement(node)
        value = self.env.get(name)
        return self.as_expr(value, node) if value is not None and value is not POISON else None

    @contextmanager
    def quietly(self, name: str) -> Iterator[None]:
        """Collect an error raised in the block, and poison the name."""
        try:
            yield
        except Skip:
            self.env[name] = POISON
        except RelaxError as error:
            self.bag.add(error)
            self.env[name] = POISON

    def report(self, code: str, message: str, node: ast.AST, help: str) -> None:
        self.bag.add(ScriptError(code, message, span=self.span(node), help=help))


@dataclass(frozen=True)
class Hidden:
    """A variable of a dataflow block that is used outside of it."""

    name: str
    span: Span


def targets(node: ast.AST) -> Iterator[str]:
    """Names that a statement, or a nested one, binds."""
    match node:
        case ast.Assign(targets=found):
            for target in found:
                names = (child for child in ast.walk(target) if isinstance(child, ast.Name))
                yield from (name.id for name in names if isinstance(name.ctx, ast.Store))
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            yield name
        case ast.FunctionDef(name=name):
            yield name
        case ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.split(".")[0] for alias in names)
        case _:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.stmt, ast.match_case, ast.excepthandler)):
                    yield from targets(child)


def last_target(body: Sequence[ast.stmt]) -> str | None:
    """The name that the last statement of a branch binds, or None."""
    if not body:
        return None
    match body[-1]:
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr())
        ):
            return name
        case ast.AugAssign(target=ast.Name(id=name)) | ast.FunctionDef(name=name):
            return name
        case ast.Expr(ast.Call()):
            return "_"  # a statement for its effect
        case ast.If(body=inner) | ast.Match(cases=[ast.match_case(body=inner), *_]):
            return last_target(inner)
        case ast.With(body=inner) if inner and isinstance(inner[-1], ast.Expr):
            call = inner[-1].value
            if (
                isinstance(call, ast.Call)
                and len(call.args) >= 1
                and isinstance(call.args[-1], ast.Name)
            ):
                return call.args[-1].id
    return None


def literal_attr(value: Any) -> Any:
    """An attribute's value as plain Python."""
    if isinstance(value, Dim) and value.value is not None:
        return value.value
    if isinstance(value, ShapeExpr):
        return [literal_attr(dim) for dim in value.dims]
    if isinstance(value, (list, tuple)):
        return [literal_attr(item) for item in value]
    if isinstance(value, dict):
        return {str(key): literal_attr(item) for key, item in value.items()}
    if isinstance(value, GlobalVar):
        return value.name
    plain = getattr(value, "value", value)
    if plain is None or isinstance(plain, (bool, int, float, str, VDevice)):
        return plain
    raise ScriptError(
        "bad-value",
        f"{describe(value)} cannot be an attribute",
        help="attributes are numbers, strings, None, and lists and dicts of these",
    )
