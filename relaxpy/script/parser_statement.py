"""Statements of functions: bindings, casts, dataflow blocks, branches.

A declared annotation of a variable is compared with the deduced one: if it can never hold it is refused; if it
always holds it is what the variable gets (it may be coarser, as written); if it may hold it is checked at run
time, by a `match_cast` put in after the value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from relaxpy.analysis.purity import is_pure
from relaxpy.errors import DeduceError, RelaxError, ScriptError, Span
from relaxpy.ir.annotation import (
    VOID,
    Annotation,
    ObjectType,
    PrimType,
    TensorType,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    DataflowVar,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    Var,
    VarBinding,
    is_leaf,
)
from relaxpy.ir.module import TensorProgram, VDevice
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import CallDPS
from relaxpy.script import ir as namespace_i
from relaxpy.script import relax as namespace_r
from relaxpy.script.describe import describe
from relaxpy.script.intrinsics import Statement
from relaxpy.script.parser_signature import SignatureParser, mark_scalars
from relaxpy.script.parser_value import holds_expr, returns
from relaxpy.script.scope import (
    POISON,
    ModuleRef,
    Skip,
    suggest,
)
from relaxpy.shape.defined import defined_symbols
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal

REFUSED: dict[type[ast.stmt], tuple[str, str]] = {
    ast.For: (
        "a for loop",
        "write the steps out, call a recursive function, or loop in a @T.prim_func",
    ),
    ast.While: ("a while loop", "call a function that calls itself"),
    ast.Try: ("try", "a program has no exceptions; check with R.assert_op"),
    ast.Raise: ("raise", "check with R.assert_op"),
    ast.Assert: ("assert", "write R.assert_op(condition)"),
    ast.Delete: ("del", "values are freed by themselves"),
    ast.Import: ("import", "import at the top of the file"),
    ast.ImportFrom: ("import", "import at the top of the file"),
    ast.Global: ("global", "pass the value as an argument"),
    ast.Nonlocal: ("nonlocal", "values of the function around are seen inside; return what is new"),
    ast.ClassDef: ("a class", "define functions with @R.function"),
    ast.AsyncFunctionDef: ("async def", "write def"),
    ast.AsyncFor: ("a for loop", "write the steps out"),
    ast.AsyncWith: ("async with", "write with R.dataflow():"),
    ast.Match: ("match", "write if and else"),
    ast.Break: ("break", "there are no loops"),
    ast.Continue: ("continue", "there are no loops"),
}


class StatementParser(SignatureParser):
    """Reads statements. Errors go to `bag`; after one, reading goes on with the next statement."""

    def statement(self, node: ast.stmt) -> None:
        """Read one statement; its error is collected, and the names that it would define are poisoned."""
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
                "this is nested too deeply to be read",
                node,
                "bind parts of it to names",
            )
        for name in targets(node):
            self.env[name] = POISON

    def stmt_Pass(self, node: ast.Pass) -> None:
        """Nothing."""

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
                    "R.output is the last line of a dataflow block",
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
            self.unused(value, [f"it is {deduced}, and the call has no effect"])
        self.env["_"] = self.bind("_", found, value)

    def unused(self, node: ast.expr, notes: Sequence[str] = ()) -> NoReturn:
        self.fail(
            "unused-value", "this value is not used", node, "bind it: y = …, or remove it", notes
        )

    def is_tensor_program(self, callee: Any) -> bool:
        return isinstance(callee, GlobalVar) and isinstance(
            self.mod.functions.get(callee.name), TensorProgram
        )

    def statement_word(self, node: ast.Call) -> Statement | None:
        """The statement of R that a call names, or None."""
        if isinstance(node.func, ast.Attribute):
            try:
                word = self.eval(node.func)
            except (RelaxError, Skip):
                return None
            return word if isinstance(word, Statement) else None
        return None

    def func_attr(self, node: ast.Call) -> None:
        attrs = self.eval(node.args[0]) if len(node.args) == 1 else None
        if not isinstance(attrs, dict):
            self.fail("bad-value", "R.func_attr takes a dict", node, namespace_r.func_attr.usage)
        self.attrs.update({str(key): literal_attr(value) for key, value in attrs.items()})

    def stmt_Assign(self, node: ast.Assign) -> None:
        if len(node.targets) > 1:
            self.refuse("a = b = …", node, "bind one name in each line")
        self.assign(node.targets[0], node.value, None, node)

    def stmt_AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            self.refuse_target(node.target)
        load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
        self.assign(node.target, value, None, node)

    def stmt_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            if not isinstance(node.target, ast.Name):
                self.fail("assign-target", "only names can be declared", node.target)
            self.declared[node.target.id] = (self.annotation(node.annotation), node.annotation)
            return
        self.assign(node.target, node.value, node.annotation, node)

    def assign(
        self, target: ast.expr, value_node: ast.expr, annotation: ast.expr | None, node: ast.stmt
    ) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            self.assign_parts(target, value_node, node)
            return
        if not isinstance(target, ast.Name):
            self.refuse_target(target)
        if (
            isinstance(value_node, ast.Call)
            and self.statement_word(value_node) is namespace_r.match_cast
        ):
            self.assign_cast(target.id, value_node, annotation, node)
            return
        if self.names_meta_var(value_node):
            self.env[target.id] = self.eval(value_node)
            return
        value = self.plain(self.eval(value_node), value_node)
        if target.id.startswith("_"):
            value = self.for_effect(value)
        self.define(target.id, value, value_node, annotation, node)

    def names_meta_var(self, node: ast.expr) -> bool:
        """Is this `I.meta_var(…)`, which names a value and binds nothing?"""
        match node:
            case ast.Call(func=ast.Attribute(attr="meta_var") as func):
                return self.eval(func) is namespace_i.meta_var
        return False

    def for_effect(self, value: Any) -> Any:
        """`cls.f(x, out)` of a tensor program writes memory: a call of its own kind."""
        if isinstance(value, Call) and self.is_tensor_program(value.op):
            return CallDPS()(value.op, *value.args)
        return value

    def refuse_target(self, node: ast.expr) -> NoReturn:
        if isinstance(node, (ast.Tuple, ast.List)):
            self.refuse(
                "a pattern inside a pattern", node, "bind it to one name, and take that apart"
            )
        help = "bind the new value to a name of its own"
        if isinstance(node, ast.Subscript):
            help += ": y = R.scatter_nd(x, indices, updates), or R.where(mask, value, x)"
        shown = ast.unparse(node)
        self.fail(
            "assign-target", f"{shown} cannot be assigned to: values do not change", node, help
        )

    def define(
        self,
        name: str,
        value: Any,
        value_node: ast.expr,
        annotation: ast.expr | None,
        node: ast.stmt,
    ) -> None:
        """Bind a name to a value: of the program, with a binding; of Python, in the scope only."""
        if isinstance(value, Dim) and value.symbol is not None and not value.symbol.name:
            self.env[name] = self.declared_symbol(name, value.symbol.dtype, value_node)
            return
        known = isinstance(value, (Dim, SymVar, ModuleRef, str, dict)) or callable(value)
        if isinstance(value, (tuple, list)):
            known = not holds_expr(value)
        if isinstance(value, Expr):
            known = False
        elif annotation is None and (
            known or value is None or isinstance(value, (bool, int, float))
        ):
            self.env[name] = value
            return
        declared = None
        if annotation is not None:
            declared = (self.annotation(annotation), annotation)
        elif name in self.declared:
            declared = self.declared.pop(name)
        if declared is not None and isinstance(declared[0], PrimType):
            value = as_scalar(value, declared[0].dtype)
        expr = self.as_expr(value, value_node)
        var = self.bind(name, expr, value_node, declared, self.outputs.get(name) is node)
        if isinstance(expr, ExternFunc):
            self.externs[var] = expr
        self.env[name] = var

    def declared_symbol(self, name: str, dtype: str, node: ast.expr) -> Dim:
        """`n = T.int64()`: the symbolic variable of this name."""
        before = self.symbols.lookup(name)
        found = self.symbols.declare(name, dtype)
        if before is None and found.symbol is not None:
            self.symbols.open.add(found.symbol)
        known = found.symbol.dtype if found.symbol is not None else dtype
        if known != dtype or not DType(dtype).is_int:
            problem = (
                f"{name} is {known} already, as dimensions are"
                if known != dtype
                else f"a symbolic variable is an integer, not {dtype}"
            )
            self.fail("bad-value", problem, node, f"write {name} = T.int64()")
        return found

    def assign_parts(
        self, target: ast.Tuple | ast.List, value_node: ast.expr, node: ast.stmt
    ) -> None:
        """`a, b = value`"""
        for item in target.elts:
            if isinstance(item, ast.Starred):
                self.refuse("a name with a star", item, "bind every item to a name of its own")
        value = self.leaf(value_node)
        count = len(target.elts)
        if isinstance(value, Tuple):
            value = value.fields
        if isinstance(value, Expr):
            fields = getattr(self.annotation_of(value), "fields", None)
            if fields is None or len(fields) != count:
                shown = self.annotation_of(value)
                self.fail("tuple-index", f"{count} names for a value that is {shown}", target)
            value = tuple(self.item(value, i, value_node) for i in range(count))
        if not isinstance(value, (tuple, list)) or len(value) != count:
            self.fail("tuple-index", f"{count} names for {describe(value)}", target)
        for item, part in zip(target.elts, value, strict=True):
            if not isinstance(item, ast.Name):
                self.refuse_target(item)
            self.define(item.id, part, value_node, None, node)

    def assign_cast(
        self, name: str, call: ast.Call, annotation: ast.expr | None, node: ast.stmt
    ) -> None:
        """`y = R.match_cast(x, annotation)`"""
        given = dict(zip(("value", "ty"), call.args, strict=False))
        given |= {k.arg or "": k.value for k in call.keywords}
        if set(given) != {"value", "ty"}:
            self.fail(
                "op-arguments",
                "R.match_cast takes a value and an annotation",
                call,
                namespace_r.match_cast.usage,
            )
        value = self.as_expr(self.leaf(given["value"]), given["value"])
        before = self.symbols.count()
        target = self.annotation(given["ty"], "define")
        new = self.symbols.since(before)
        self.check_determined(target, new)
        mark_scalars([target], new | self.symbols.open)
        self.symbols.open.difference_update(free_sym_vars([target]))
        actual = self.annotation_of(value)
        if fits(target, actual) is Verdict.NO:
            error = ScriptError(
                "match-cast", f"{actual} can never be {target}", span=self.span(given["ty"])
            )
            raise error.show(f"{ast.unparse(given['value'])} is {actual}", value.span)
        if annotation is not None:
            declared = self.annotation(annotation)
            if fits(declared, target) is Verdict.NO:
                self.fail(
                    "annotation-mismatch", f"declared {declared}, but cast to {target}", annotation
                )
        self.env[name] = self.cast(
            value, target, name, self.span(node), self.outputs.get(name) is node
        )

    def check_determined(self, target: Annotation, new: set[SymVar]) -> None:
        """Every symbol that a `match_cast` introduces (`new`) must follow from the value."""
        used = set(free_sym_vars([target]))
        missing = (used & new) - defined_symbols([target], used - new)
        for symbol in sorted(missing, key=lambda symbol: symbol.key):
            raise ScriptError(
                "symbol-undefined",
                f"the value of {symbol} does not follow from the value that is matched",
                span=self.symbols.first_use.get(symbol),
                help=f'let it stand alone as a dimension: "{symbol}", or be the one unknown of a linear one',
            )

    def cast(self, value: Expr, target: Annotation, name: str, span: Span, output: bool) -> Var:
        kind = DataflowVar if self.in_dataflow and not output else Var
        var = kind(name, target, span=span)
        self.bb.emit_binding(MatchCast(var, value, target, span=span))
        return var

    def bind(
        self,
        name: str,
        value: Expr,
        node: ast.expr,
        declared: tuple[Annotation, ast.expr] | None = None,
        output: bool = False,
    ) -> Var:
        """Bind a value to a new variable; see the module's text for `declared`."""
        span = self.span(node)
        if isinstance(value, Call) and any(not is_leaf(arg) for arg in value.args):
            value = self.bb.normalize(value)  # made by a Python function, in one piece
        deduced = self.deduced(value, node)
        annotation = deduced
        if declared is not None:
            annotation, where = declared
            verdict = fits(annotation, deduced)
            if verdict is Verdict.NO:
                self.fail(
                    "annotation-mismatch",
                    f"{name} is declared {annotation}, but the value is {deduced}",
                    where,
                    "correct the declaration, or leave it out: it is deduced",
                )
            if verdict is Verdict.MAYBE:
                inner = self.bind(name, value, node)
                return self.cast(inner, annotation, name, span, output)
        kind = DataflowVar if self.in_dataflow and not output else Var
        var = kind(name, annotation, span=span)
        self.bb.emit_binding(VarBinding(var, value, span=span))
        return var

    def deduced(self, value: Expr, node: ast.expr) -> Annotation:
        try:
            return deduce(value, self.mod)
        except DeduceError as error:
            raise self.at_argument(error, node, getattr(value, "op", None)) from None

    def emit(self, value: Expr, node: ast.expr) -> Expr:
        return self.bind(self.bb.fresh_name("lv"), value, node)

    def named_scalar(self, value: Expr, dtype: DType, node: ast.expr) -> Dim:
        name = self.bb.fresh_name("index")
        symbol = self.symbols.declare(name)
        assert symbol.symbol is not None
        symbol.symbol.signed = True
        self.cast(value, PrimType(dtype, symbol), name, self.span(node), False)
        return symbol

    def annotation_of(self, value: Expr) -> Annotation:
        return deduce(value, self.mod)

    def global_function(self, name: str, value: Any, span: Span) -> Expr:
        if isinstance(value, Function):
            return value
        raise ScriptError(
            "bad-value",
            f"{name} is a tensor program, and a function on its own has no module to hold it",
            span=span,
            help="put both into a class decorated with @I.ir_module",
        )

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
                "a dataflow block cannot stand inside another",
                call,
                "close it first",
            )
        self.dataflow(node.body)

    def dataflow(self, body: list[ast.stmt]) -> None:
        """The statements of a dataflow block; its last says which variables are seen after it."""
        output: ast.Call | None = None
        last = body[-1]
        call = last.value if isinstance(last, ast.Expr) else None
        if isinstance(call, ast.Call) and self.statement_word(call) is namespace_r.output:
            output, body = call, body[:-1]
        names: list[str] = []
        for arg in output.args if output is not None else ():
            if isinstance(arg, ast.Name):
                names.append(arg.id)
            else:
                self.report(
                    "dataflow-output",
                    "R.output takes variables of the block",
                    arg,
                    "bind the value first",
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
                    suggest(arg.id, defined) or "R.output names variables that the block binds",
                )

    def eval_Name(self, node: ast.Name) -> Any:
        value = super().eval_Name(node)
        if isinstance(value, Hidden):
            self.fail(
                "dataflow-output",
                f"{node.id} is seen inside its dataflow block only",
                node,
                f"end the block with R.output({node.id})",
                [f"it is defined at {value.span}"],
            )
        return value

    def stmt_Return(self, node: ast.Return) -> None:
        self.fail(
            "return-place",
            "return stands in the middle: a function has one, as its last line",
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
                "move the if out of it",
            )
        cond = self.eval(node.test)
        if isinstance(cond, bool):  # known while reading
            for statement in node.body if cond else node.orelse:
                self.statement(statement)
            return
        cond = self.as_expr(cond, node.test)
        if not is_leaf(cond):
            cond = self.emit(cond, node.test)
        self.check_condition(cond, node.test)
        name = self.branch_name(node)
        declared = self.declared.pop(name, None)
        then = self.branch(node.body, name)
        otherwise = self.branch(node.orelse, name)
        if then is None or otherwise is None:
            raise Skip
        value = If(cond, then, otherwise, span=self.span(node))
        self.env[name] = self.bind(name, value, node.test, declared)

    def check_condition(self, cond: Expr, node: ast.expr) -> None:
        annotation = self.annotation_of(cond)
        match annotation:
            case ObjectType() | PrimType(dtype="bool"):
                return
            case TensorType(dtype=dtype, ndim=ndim) if dtype in (None, "bool") and ndim in (-1, 0):
                return
        self.fail(
            "if-condition",
            f"the condition must be one boolean, got {annotation}",
            node,
            'its annotation must be R.Tensor((), "bool"); to choose element by element use R.where',
        )

    def branch_name(self, node: ast.If) -> str:
        """The name that both branches bind in their last statement: the value of the if."""
        for found in () if self.in_branch else returns([node]):
            self.stmt_Return(found)
        if not node.orelse:
            self.fail(
                "if-branches",
                "an if needs an else: its value is that of one branch",
                node.test,
                "write else:",
            )
        names = [last_target(node.body), last_target(node.orelse)]
        if names[0] is None or names[0] != names[1]:
            self.fail(
                "if-branches",
                "both branches must bind the same name in their last line",
                node.test,
                "the if's value is what that name is bound to: y = … in both",
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
        """Collect an error, and poison the name."""
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
    """A variable of a dataflow block, seen from after it."""

    name: str
    span: Span


def as_scalar(value: Any, dtype: DType) -> Any:
    """A number or dimension as a scalar of the dtype that it is declared with; anything else as it is."""
    number = isinstance(value, (bool, float)) and dtype.is_float == isinstance(value, float)
    if number or (isinstance(value, (int, Dim)) and dtype.is_int and not isinstance(value, bool)):
        return PrimValue(value, dtype)
    return value


def fits(declared: Annotation, actual: Annotation) -> Verdict:
    """Does a value of annotation `actual` always, never or perhaps have the declared one?"""
    return Verdict.YES if declared == actual else accepts(declared, actual, None, equal)


def targets(node: ast.AST) -> Iterator[str]:
    """Names that a statement binds, and those in it."""
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
            return "_"  # for its effect
        case ast.If(body=inner):
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
        help="attributes are numbers, strings, None, and lists and dicts of such",
    )
