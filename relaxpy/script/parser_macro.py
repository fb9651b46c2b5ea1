"""Expansion of `@R.macro` in functions: the macro's statements are parsed in place."""

from __future__ import annotations

import ast
from typing import Any

from relaxpy.errors import RelaxError
from relaxpy.ir.expr import Call
from relaxpy.script.macro import Macro, refuse_endless
from relaxpy.script.parser_statement import StatementParser
from relaxpy.script.scope import MacroSymbols, Skip


class MacroParser(StatementParser):
    """Parses macro uses. Their bindings become the function's; their variables are not visible afterwards."""

    macro_depth = macro_uses = 0

    def expand(self, macro: Macro, node: ast.Call) -> Any:
        """Expand a use, and return its value. Errors are located in the macro, and note where it is used."""
        used_at = self.span(node)
        self.macro_uses += 1
        refuse_endless(macro, self.macro_depth, self.macro_uses, used_at, "write a function")
        places = macro.arguments(node, used_at)
        defaults = set(map(id, macro.node.args.defaults))
        env = {
            name: self.leaf(place) for name, place in places.items() if id(place) not in defaults
        }
        last = macro.node.body[-1]
        outside = self.source, self.around, self.env, self.symbols
        errors = len(self.bag.errors)
        self.source = macro.source
        if macro.hygienic:
            self.around, self.env = macro.around, dict(macro.env or {})
            self.symbols = MacroSymbols(self.symbols, macro.env is not None)
        self.macro_depth += 1
        try:
            env |= {
                name: self.eval(place) for name, place in places.items() if id(place) in defaults
            }
            self.env = {**self.env, **env}
            if not isinstance(last, ast.Return) or last.value is None:
                self.fail(
                    "missing-return", f"{macro.node.name} returns nothing", last, "return a value"
                )
            for statement in macro.node.body[:-1]:
                self.statement(statement)
            value = self.eval(last.value)
            if isinstance(value, Call):
                self.deduced(value, last.value)
        except RelaxError as error:
            raise error.located(self.span(last)).show("the macro is used here", used_at) from None
        finally:
            self.source, self.around, self.env, self.symbols = outside
            self.macro_depth -= 1
        for error in self.bag.errors[errors:]:
            error.show("the macro is used here", used_at)
        if len(self.bag.errors) > errors:
            raise Skip
        return value
