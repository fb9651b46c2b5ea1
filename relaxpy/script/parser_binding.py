"""Statements that bind names: assignments, declarations, casts.

A variable's declared annotation is compared with the deduced one. If it can never hold, it is refused. If it always
holds, the variable gets it (it may be coarser, as written). Otherwise a `match_cast` after the value checks it at run
time.
"""

from __future__ import annotations

import ast
from typing import Any, NoReturn

from relaxpy.errors import DeduceError, RelaxError, ScriptError, Span
from relaxpy.ir.annotation import (
    Annotation,
    PrimType,
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
    MatchCast,
    PrimValue,
    Tuple,
    Var,
    VarBinding,
    is_leaf,
)
from relaxpy.ir.module import TensorProgram
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import CallDPS
from relaxpy.script import ir as namespace_i
from relaxpy.script import relax as namespace_r
from relaxpy.script.describe import describe
from relaxpy.script.intrinsics import Statement
from relaxpy.script.parser_signature import SignatureParser, mark_scalars
from relaxpy.script.parser_value import holds_expr
from relaxpy.script.scope import (
    ModuleRef,
    Skip,
)
from relaxpy.shape.defined import defined_symbols
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal


class BindingParser(SignatureParser):
    """Parses statements that bind names."""

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

    def stmt_Assign(self, node: ast.Assign) -> None:
        if len(node.targets) > 1:
            self.refuse("a = b = …", node, "bind one name in each statement")
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
        """A tensor program called for its effect, `cls.f(x, out)`, which writes memory: a call of its own kind."""
        if isinstance(value, Call) and self.is_tensor_program(value.op):
            return CallDPS()(value.op, *value.args)
        return value

    def refuse_target(self, node: ast.expr) -> NoReturn:
        if isinstance(node, (ast.Tuple, ast.List)):
            self.refuse("a pattern inside a pattern", node, "bind it to one name, and unpack that")
        help = "bind the new value to another name"
        if isinstance(node, ast.Subscript):
            help += ": y = R.scatter_nd(x, indices, updates), or R.where(mask, value, x)"
        shown = ast.unparse(node)
        self.fail(
            "assign-target", f"{shown} cannot be assigned to: values are immutable", node, help
        )

    def define(
        self,
        name: str,
        value: Any,
        value_node: ast.expr,
        annotation: ast.expr | None,
        node: ast.stmt,
    ) -> None:
        """Bind a name to a value. A value of the program gets a binding; a Python value is only put in the scope."""
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
                self.refuse("a name with a star", item, "bind each item to a name")
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
        """Require every symbol that a `match_cast` introduces (`new`) to be determined by the value."""
        used = set(free_sym_vars([target]))
        missing = (used & new) - defined_symbols([target], used - new)
        for symbol in sorted(missing, key=lambda symbol: symbol.key):
            raise ScriptError(
                "symbol-undefined",
                f"the value of {symbol} cannot be determined from the matched value",
                span=self.symbols.first_use.get(symbol),
                help=f'make it a dimension: "{symbol}", or the only unknown of a linear dimension',
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
        """Bind a value to a new variable. The module docstring explains `declared`."""
        span = self.span(node)
        if isinstance(value, Call) and any(not is_leaf(arg) for arg in value.args):
            value = self.bb.normalize(value)  # may be nested, if made by a Python function
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
                    "correct the declaration, or remove it: it is deduced",
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
            f"{name} is a tensor program, which must be in the same module as the function",
            span=span,
            help="put both into a class decorated with @I.ir_module",
        )


def as_scalar(value: Any, dtype: DType) -> Any:
    """A number or dimension as a scalar of the declared dtype; any other value unchanged."""
    number = isinstance(value, (bool, float)) and dtype.is_float == isinstance(value, float)
    if number or (isinstance(value, (int, Dim)) and dtype.is_int and not isinstance(value, bool)):
        return PrimValue(value, dtype)
    return value


def fits(declared: Annotation, actual: Annotation) -> Verdict:
    """Does a value of annotation `actual` always, never or perhaps satisfy the declared annotation?"""
    return Verdict.YES if declared == actual else accepts(declared, actual, None, equal)
