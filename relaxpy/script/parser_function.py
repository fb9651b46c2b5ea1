"""Parsing of `@R.function` definitions, nested ones too, to functions of the IR.

The return annotation is compared with the deduced one. If it is refuted, it is an error. If it is not proved, a
`match_cast` before the return checks it at run time.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, NoReturn

from relaxpy.errors import RelaxError, ScriptError
from relaxpy.ir.annotation import (
    Annotation,
)
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import (
    DataflowVar,
    Expr,
    Function,
    SeqExpr,
    Tuple,
    Var,
    VarBinding,
    is_leaf,
)
from relaxpy.op.deduce import deduce
from relaxpy.script.macro import Macro
from relaxpy.script.parser_binding import fits
from relaxpy.script.parser_match import MatchParser
from relaxpy.script.parser_signature import Signature
from relaxpy.script.parser_statement import literal_attr
from relaxpy.script.parser_value import returns
from relaxpy.script.scope import POISON, Skip
from relaxpy.shape.bounds import (
    LOWER,
    UPPER,
    Bounds,
    Range,
    assuming,
    declared_bounds,
    narrowed,
)
from relaxpy.shape.lattice import Verdict


def refuse_private_symbol(name: str) -> NoReturn:
    """Refuse a `global_symbol` on a private function, which has none by definition."""
    raise ScriptError(
        "bad-value",
        f"{name} is private, but has the attribute global_symbol, its public name",
        help="remove one of them",
    )


class FunctionParser(MatchParser):
    """Parses one function: its signature with `signature`, then its body with `function`."""

    def function(self, signature: Signature) -> Function:
        """Parse the body. Raises `Skip` if there was an error, which is then in the bag."""
        before = len(self.bag.errors)
        if signature.broken:
            raise Skip
        self.symbols.mode = "use"  # the symbols of the parameters are all defined
        self.pure = signature.pure
        for param in signature.params:
            self.bb.fresh_name(param.name)  # reserves the name
        with assuming(self.declared_bounds(signature.node)), self.bb.seq() as building:
            value, node = self.body(signature.node)
            ret: Annotation | None = None
            if node is not None:
                with self.bag.collect(self.span(node)):
                    value, ret = self.returned(value, node, signature)
            if len(self.bag.errors) > before or value is None:
                raise Skip
            building.result(value)
        body = building.seq
        try:
            ret = deduce(body, self.mod) if ret is None else ret
        except RelaxError as error:
            raise error.located(self.span(node or signature.node)) from None
        attrs = dict(self.attrs)
        if signature.private and "global_symbol" in attrs:
            with self.bag.collect(self.span(signature.node)):
                refuse_private_symbol(signature.name)
            raise Skip
        if not signature.private and self.outer is None:
            attrs.setdefault("global_symbol", signature.name)
        span = self.span(signature.node)
        return Function(tuple(signature.params), body, ret, signature.pure, attrs, span=span)

    def declared_bounds(self, node: ast.FunctionDef) -> Bounds:
        """The ranges of symbols declared by `R.func_attr` at the start of the body."""
        found: dict[SymVar, Range] = {}
        for statement in node.body:
            match statement:
                case ast.Expr(ast.Call(ast.Attribute(attr="func_attr"), [ast.Dict(keys, values)])):
                    pass
                case _:
                    continue
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value in (UPPER, LOWER):
                    with self.bag.collect(self.span(value)):
                        limits = {key.value: literal_attr(self.eval(value))}
                        for symbol, limit in declared_bounds(limits, self.symbols.known()).items():
                            found[symbol] = narrowed(found.get(symbol), limit)
        return found

    def body(self, node: ast.FunctionDef) -> tuple[Expr | None, ast.expr | None]:
        """Parse all statements; return the returned value, and its expression in the source."""
        statements = node.body
        for i, statement in enumerate(statements):
            last = statement.body[-1] if isinstance(statement, ast.With) else statement
            self.last_return = last if isinstance(last, ast.Return) else None
            if last is not statement or self.last_return is None:
                self.statement(statement)
            if self.last_return is not None:
                for later in statements[i + 1 : i + 2]:
                    self.report("return-place", "there is code after return", later, "remove it")
                return self.return_value(self.last_return)
        if any(returns(statements)):
            return None, None  # a return inside a branch, reported there
        last = statements[-1]
        self.report(
            "missing-return", f"{node.name} returns nothing", last, "end it with `return value`"
        )
        return None, None

    def return_value(self, node: ast.Return) -> tuple[Expr | None, ast.expr | None]:
        if node.value is None:
            return Tuple((), span=self.span(node)), None
        try:
            return self.expr(node.value), node.value
        except Skip:
            pass
        except RelaxError as error:
            self.bag.add(error.located(self.span(node)))
        return None, node.value

    def returned(
        self, value: Expr | None, node: ast.expr, signature: Signature
    ) -> tuple[Expr | None, Annotation | None]:
        """The result as a leaf, after comparison with the declared annotation."""
        if value is None:
            return None, None
        if not is_leaf(value):
            value = self.bind(self.bb.fresh_name("gv"), value, node)
        declared = signature.ret
        if declared is None or signature.ret_node is None:
            return value, None
        deduced = self.annotation_of(value)
        verdict = fits(declared, deduced)
        if verdict is Verdict.NO:
            where = self.span(signature.ret_node)
            self.fail(
                "return-mismatch",
                f"{signature.name} returns {deduced}, but is declared to return {declared}",
                node,
                f"change the declaration in line {where.line}, or the returned value",
            )
        if verdict is Verdict.MAYBE:
            value = self.cast(value, declared, self.bb.fresh_name("gv"), self.span(node), False)
        return value, declared

    # Nested functions

    def eval_Name(self, node: ast.Name) -> Any:
        value = super().eval_Name(node)
        if isinstance(value, _Unfinished):
            self.env[node.id] = POISON  # reported once
            self.fail(
                "missing-annotation",
                f"{node.id} calls itself, so its result cannot be deduced",
                value.node,
                "declare the result: def f(…) -> R.Tensor(…):",
            )
        return value

    def stmt_FunctionDef(self, node: ast.FunctionDef) -> None:
        from relaxpy.script.parser_module import decorator_kind

        kind, options = decorator_kind(node, self)
        if kind == "macro":
            hygienic = bool(options.get("hygienic", True))
            self.env[node.name] = Macro(node, self.source, self.around, hygienic, dict(self.env))
            return
        if kind != "function":
            self.fail(
                "missing-decorator",
                f"{node.name} has no @R.function",
                node,
                "add @R.function; define tensor programs (@T.prim_func) in the class of the module",
            )
        inner = FunctionParser(self.source, self.around, self.bag, self.functions, self.mod, self)
        inner.types = self.types
        signature = inner.signature(node, options)
        if signature.broken:
            raise Skip
        var_kind = (
            DataflowVar if self.in_dataflow and self.outputs.get(node.name) is not node else Var
        )
        name = node.name
        var: Var | None = None
        if signature.ret is None:
            inner.env[name] = _Unfinished(node)
        else:
            shell = Function(
                tuple(signature.params), SeqExpr((), Tuple(())), signature.ret, signature.pure
            )
            var = var_kind(name, shell.annotation, span=self.span(node))
            inner.env[node.name] = var
        function = inner.function(signature)
        if var is None:
            var = var_kind(name, function.annotation, span=self.span(node))
        self.bb.emit_binding(VarBinding(var, function, span=self.span(node)))
        self.env[node.name] = var


@dataclass(frozen=True)
class _Unfinished:
    """A function of which the result is deduced, inside of its own body."""

    node: ast.FunctionDef
