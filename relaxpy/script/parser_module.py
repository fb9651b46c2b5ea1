"""Parsing of classes of functions to modules: first all signatures, then all bodies, so that functions may call each
other in any order."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from relaxpy.analysis.well_formed import well_formed
from relaxpy.errors import ErrorBag, RelaxError, ScriptError, Source, Span
from relaxpy.ir.annotation import ObjectType, TypeParam
from relaxpy.ir.expr import Expr, ExternFunc, Function, GlobalVar, SeqExpr, Tuple
from relaxpy.ir.module import BaseFunc, IRModule, TensorProgram
from relaxpy.ir.vdevice import TABLE, VDevice
from relaxpy.op.call import CallTIR
from relaxpy.script import ir as namespace_i
from relaxpy.script import relax as namespace_r
from relaxpy.script import tir as namespace_t
from relaxpy.script.describe import describe
from relaxpy.script.devices import virtual_devices
from relaxpy.script.dialects import older_words
from relaxpy.script.macro import Macro, macro
from relaxpy.script.parser_expr import ExprParser
from relaxpy.script.parser_function import FunctionParser, refuse_private_symbol
from relaxpy.script.parser_program import read_program
from relaxpy.script.parser_signature import Signature, type_parameter
from relaxpy.script.parser_statement import literal_attr
from relaxpy.script.parser_types import TypeParser
from relaxpy.script.parser_value import argument_node
from relaxpy.script.scope import ModuleRef, Skip, Surroundings, Symbols, suggest

KINDS = {
    "function": "@R.function",
    "prim_func": "@T.prim_func",
    "ir_module": "@I.ir_module",
    "macro": "@R.macro",
    "type": "@R.type",
}


def decorator_kind(
    node: ast.ClassDef | ast.FunctionDef, scope: ExprParser
) -> tuple[str | None, dict[str, Any]]:
    """The decorator of a definition, as a key of KINDS, and its arguments."""
    found: tuple[str | None, dict[str, Any]] = None, {}
    others: list[ast.expr] = []
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        func = call.func if call is not None else decorator
        others.append(func)
        if not isinstance(func, (ast.Attribute, ast.Name)):
            continue
        try:
            value = scope.eval(func)
        except (RelaxError, Skip):
            if (
                isinstance(func, ast.Attribute)
                and isinstance(func.value, ast.Name)
                and func.value.id in "RTI"
            ):
                known = suggest(func.attr, KINDS)
                raise ScriptError(
                    "unknown-name",
                    f"there is no decorator {ast.unparse(func)}",
                    span=scope.span(func),
                    help=known,
                ) from None
            continue
        kind = {
            namespace_r.function: "function",
            namespace_t.prim_func: "prim_func",
            namespace_i.ir_module: "ir_module",
            macro: "macro",
            namespace_r.type: "type",
        }.get(value if callable(value) else None)  # type: ignore[arg-type]
        if kind is not None:
            found = kind, _options(kind, call, scope) if call is not None else {}
            others.pop()
    for base in getattr(node, "bases", ()) if found[0] == "ir_module" else ():
        scope.refuse("a base class", base, "a module has no base classes: remove it")
    if found[0] is not None and others:
        scope.refuse(
            f"the decorator {ast.unparse(others[0])}",
            others[0],
            f"{KINDS[found[0]]} must be the only decorator",
        )
    return found


OPTIONS: dict[str, dict[str, type]] = {
    "function": {"private": bool, "pure": bool, "name": str, "check_well_formed": bool},
    "prim_func": {
        "private": bool,
        "name": str,
        "check_well_formed": bool,
    },
    "ir_module": {"check_well_formed": bool},
    "macro": {"hygienic": bool},
    "type": {},
}
"""Options of the decorators, with their types."""


def _options(kind: str, call: ast.Call, scope: ExprParser) -> dict[str, Any]:
    """Evaluate the arguments of a decorator. Raises `ScriptError` for an invalid one."""
    word, known = KINDS[kind], older_words.OPTIONS.get(kind, {}) | OPTIONS[kind]
    for arg in call.args:
        scope.fail("op-arguments", f"{word} takes keyword arguments only", arg)
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        name = keyword.arg or "**"
        if name not in known:
            help = suggest(name, known) or f"it takes {', '.join(known)}"
            scope.fail("op-arguments", f"{word} has no option {name}", keyword.value, help)
        value = scope.eval(keyword.value)
        if not isinstance(value, known[name]) and not (name == "name" and value is None):
            scope.fail(
                "op-arguments",
                f"{name} must be {'a string' if known[name] is str else 'True or False'}, "
                f"got {describe(value)}",
                keyword.value,
            )
        found[name] = value
    if found.get("name", "") is None:
        del found["name"]
    return found


class ModuleParser:
    """Parses the functions of one module. With `check_well_formed=False` (here, or in a function's decorator) the
    result is not verified."""

    def __init__(
        self,
        source: Source,
        around: Surroundings,
        bag: ErrorBag,
        name: str = "Module",
        check_well_formed: bool = True,
    ) -> None:
        self.source = source
        self.around = around
        self.bag = bag
        self.name = name
        self.check_well_formed = check_well_formed
        self.scope = ExprParser(source, around, Symbols())
        self.functions: dict[str, BaseFunc] = {}
        self.names: dict[str, Any] = {}
        """Name of a function in the script → GlobalVar."""
        self.attrs: dict[str, Any] = {}
        self.infos: dict[str, tuple[Any, ...]] = {}
        self.types = TypeParser(source, around, bag)
        self.definitions: dict[str, tuple[ast.FunctionDef, dict[str, Any]]] = {}
        self.waiting: dict[str, tuple[FunctionParser, Signature]] = {}
        self.tensor_programs: list[tuple[str, ast.FunctionDef]] = []
        self.reading: set[str] = set()
        self.complete: set[str] = set()
        """Functions that were parsed without an error."""
        self.order: list[str] = []
        self.exported: dict[str, str] = {}
        """Function names as visible outside: the symbol given by `T.func_attr` in a tensor program, or the function's
        own name."""

    def module(self, body: Sequence[ast.stmt], span: Span | None = None) -> IRModule:
        """The module. Errors are collected in the bag; if there are any, the module is incomplete."""
        for statement in body:
            try:
                self.declare(statement)
            except Skip:
                pass
            except RelaxError as error:
                self.bag.add(error.located(self.scope.span(statement)))
        self.infos |= self.types.read()
        for name, node in self.tensor_programs:
            self.tensor_program(name, node)
        with virtual_devices(self.devices()):
            self.signatures()
            for name in list(self.waiting):
                self.read(name)
        ordered = {name: self.functions[name] for name in self.order if name in self.functions}
        ordered |= {name: f for name, f in self.functions.items() if name not in ordered}
        mod = IRModule(ordered, self.attrs, self.infos, self.name, span)
        self.verify(mod)
        return mod

    def devices(self) -> tuple[VDevice, ...]:
        """The virtual devices that the module lists."""
        return IRModule({}, {}, self.infos).vdevices

    def verify(self, mod: IRModule) -> None:
        """Report functions that are not well formed, among those that were parsed. For the others `mod` has signatures
        only."""
        if not self.check_well_formed:
            return
        nodes: dict[Span, ast.Call] = {}
        options = {name: options for name, (_, options) in self.definitions.items()}
        names = [n for n in self.complete if options[n].get("check_well_formed", True)]
        for error in well_formed(mod, names):
            if error.code == "wf-global":
                continue  # a function with a wrong signature, which was reported
            if error.arg is not None and error.span is not None:
                nodes = nodes or self.calls()
                node = nodes.get(error.span)
                found = argument_node(node, CallTIR, error.arg) if node is not None else None
                error.span = self.scope.span(found) if found is not None else error.span
            self.bag.add(error)

    def calls(self) -> dict[Span, ast.Call]:
        """The calls in all definitions, by location."""
        nodes = (child for node, _ in self.definitions.values() for child in ast.walk(node))
        return {self.scope.span(node): node for node in nodes if isinstance(node, ast.Call)}

    # Declarations

    def declare(self, node: ast.stmt) -> None:
        """Register one statement of the class."""
        match node:
            case ast.FunctionDef():
                self.declare_function(node)
            case ast.ClassDef():
                kind = decorator_kind(node, self.scope)[0]
                self.scope.env[node.name] = self.types.declare(node, kind, bool(self.names))
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return
            case ast.Expr(value=ast.Call() as call):
                self.module_word(call)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.declare_value(name, value)
            case _:
                raise ScriptError(
                    "unsupported-syntax",
                    "a module contains only functions and types",
                    span=self.scope.span(node),
                    help="write definitions decorated with @R.function, @T.prim_func or @R.type",
                )

    def declare_function(self, node: ast.FunctionDef) -> None:
        kind, options = decorator_kind(node, self.scope)
        if kind == "macro":
            self.scope.env[node.name] = self.macro(node, options)
            return
        if kind not in ("function", "prim_func"):
            raise ScriptError(
                "missing-decorator",
                f"{node.name} has no decorator of the script language",
                span=self.scope.span(node),
                help="add @R.function for a graph function, or @T.prim_func for a tensor program",
            )
        name = str(options.get("name", node.name))
        self.add_name(node.name, name, node)
        self.check_symbol(name, node, options)
        if kind == "prim_func":
            self.tensor_programs.append((name, node))
            return
        self.definitions[name] = (node, options)

    def check_symbol(self, name: str, node: ast.FunctionDef, options: Mapping[str, Any]) -> None:
        """Check the attribute `global_symbol` of a definition, which must be unique."""
        symbol = written_symbol(node)
        if symbol is not None and options.get("private"):
            refuse_private_symbol(name)
        symbol = name if symbol is None else symbol
        other = self.exported.setdefault(symbol, name)
        if other != name:
            raise ScriptError(
                "duplicate-name",
                f"the functions {other} and {name} have the same global symbol: {symbol}",
                span=self.scope.span(node),
                help="remove the attribute global_symbol: a tensor program is called by its name",
            )

    def macro(self, node: ast.FunctionDef, options: Mapping[str, Any]) -> Macro:
        """A macro of the class."""
        names = {**self.around.values, **self.scope.env}
        around = Surroundings(names, self.around.trusted, self.around.not_run)
        return Macro(node, self.source, around, bool(options.get("hygienic", True)))

    def add_name(self, script_name: str, name: str, node: ast.AST) -> None:
        if name in self.order or script_name in self.names:
            raise ScriptError(
                "duplicate-name",
                f"there are two functions called {name}",
                span=self.scope.span(node),
            )
        self.order.append(name)
        self.names[script_name] = GlobalVar(name)

    def declare_value(self, name: str, value: ast.expr) -> None:
        """`f = I.extern("…")`, `f = other_function`, `n = T.int64()`."""
        found = self.scope.eval(value)
        if isinstance(found, (ExternFunc, Function, TensorProgram)):
            given = [k.value for k in getattr(value, "keywords", ()) if k.arg == "name"]
            real = str(self.scope.eval(given[0])) if given else name
            self.add_name(name, real, value)
            self.functions[real] = found
        else:
            is_type = isinstance(found, TypeParam)
            self.scope.env[name] = type_parameter(self.scope, name, value) if is_type else found

    def module_word(self, node: ast.Call) -> None:
        """`I.module_attrs({…})`, `I.module_global_infos({…})`."""
        word = self.scope.eval(node.func)
        if (
            word not in (namespace_i.module_attrs, namespace_i.module_global_infos)
            or len(node.args) != 1
        ):
            raise ScriptError(
                "statement-place",
                "this call is not allowed in the class of a module",
                span=self.scope.span(node),
                help="the calls allowed here are I.module_attrs({…}) and I.module_global_infos({…})",
            )
        given = self.scope.eval(node.args[0])
        if not isinstance(given, dict):
            raise ScriptError(
                "bad-value", "this must be a dict", span=self.scope.span(node.args[0])
            )
        if word is namespace_i.module_attrs:
            again = next((key for key in given if key in self.attrs), None)
            if again is not None and not any(k.arg == "allow_overwrite" for k in node.keywords):
                self.scope.fail("bad-value", f"the attribute {again} is given twice", node)
            self.attrs.update(literal_attr(given))
        else:
            infos = literal_attr(given)
            found = {k: tuple(v) if isinstance(v, list) else (v,) for k, v in infos.items()}
            other = next((v for v in found.get(TABLE, ()) if not isinstance(v, VDevice)), None)
            if other is not None:
                help = 'write I.module_global_infos({"vdevice": [I.vdevice("llvm", 0)]})'
                self.scope.fail("bad-value", f"{other!r} is no virtual device", node, help)
            self.infos.update(found)

    # Functions

    def tensor_program(self, name: str, node: ast.FunctionDef) -> None:
        """Parse a `@T.prim_func`."""
        with self.bag.collect(self.scope.span(node)):
            self.functions[name] = read_program(node, self.source, self.around, self.scope.env)

    def signatures(self) -> None:
        """Parse all signatures: calls are deduced from them."""
        for name, (node, options) in self.definitions.items():
            parser = FunctionParser(self.source, self.around, self.bag, {}, IRModule())
            parser.functions = self.names
            parser.env = {**self.scope.env, self.name: ModuleRef(self.name)}
            parser.types = {name: ref.decl for name, ref in self.types.refs.items()}
            parser.global_function = self.adopt  # type: ignore[method-assign]
            try:
                signature = parser.signature(node, options)
            except RelaxError as error:
                self.bag.add(error.located(self.scope.span(node)))
                continue
            self.waiting[name] = (parser, signature)
            if not signature.broken:
                self.functions[name] = placeholder(signature, self.scope.span(node))

    def adopt(self, name: str, value: Any, span: Span) -> Expr:
        """Add a function made outside to the module."""
        if self.functions.get(name) is not value:
            if name in self.names:
                raise ScriptError(
                    "duplicate-name", f"there are two functions called {name}", span=span
                )
            self.functions[name] = value
            self.names[name] = GlobalVar(name)
            self.order.append(name)
        return GlobalVar(name)

    def read(self, name: str) -> None:
        """Parse one body; before it, those of called functions whose result must be deduced."""
        if name in self.reading or name not in self.waiting:
            return
        self.reading.add(name)
        parser, signature = self.waiting[name]
        if signature.broken:
            return
        if signature.ret is None:
            self.refuse_undeclared_recursion(name, signature)
        called = self.called_names(signature)
        for other in called:
            target = self.names.get(other)
            waiting = self.waiting.get(target.name) if isinstance(target, GlobalVar) else None
            if waiting is not None and waiting[1].ret is None:
                self.read(waiting[1].name)
        mod = IRModule(self.functions, self.attrs, self.infos, self.name)
        for other in called:
            self.adopt_captured(other)
        if len(self.functions) != len(mod.functions):
            mod = IRModule(self.functions, self.attrs, self.infos, self.name)
        parser.mod = mod
        parser.bb = type(parser.bb)(mod)
        with suppress(Skip):
            self.functions[name] = parser.function(signature)
            self.complete.add(name)

    def adopt_captured(self, name: str) -> None:
        """Add a function of the surrounding Python to the module before it is called."""
        if name in self.names or name not in self.around.values:
            return
        value = self.around.values[name]
        if isinstance(value, (Function, TensorProgram)):
            self.adopt(name, value, Span(self.source.file, 1))

    def called_names(self, signature: Signature) -> tuple[str, ...]:
        """Names of the module, and of the surrounding Python, that a definition uses; the `sum` of `R.sum` does not
        count."""
        script = (namespace_i, namespace_r, namespace_t)
        values = self.around.values
        return tuple(
            name
            for base, name in named(signature.node)
            if not any(values.get(base) is namespace for namespace in script)
        )

    def refuse_undeclared_recursion(self, name: str, signature: Signature) -> None:
        if name in self.called_names(signature):
            raise_at = signature.node
            self.bag.add(
                ScriptError(
                    "missing-annotation",
                    f"{name} calls itself, so its result cannot be deduced",
                    span=self.scope.span(raise_at),
                    help="declare the result: def f(…) -> R.Tensor(…):",
                )
            )
            signature.broken = True


def written_symbol(node: ast.FunctionDef) -> str | None:
    """The `global_symbol` set by `T.func_attr` in a definition."""
    for statement in node.body:
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(attr="func_attr"), [ast.Dict(keys, values)])):
                for key, value in zip(keys, values, strict=True):
                    if (
                        isinstance(key, ast.Constant)
                        and key.value == "global_symbol"
                        and isinstance(value, ast.Constant)
                    ):
                        return str(value.value)
    return None


def placeholder(signature: Signature, span: Span) -> Function:
    """A function with this signature and no real body, to deduce calls of it."""
    ret = signature.ret if signature.ret is not None else ObjectType()
    return Function(tuple(signature.params), SeqExpr((), Tuple(())), ret, signature.pure, span=span)


@lru_cache(maxsize=256)
def named(node: ast.FunctionDef) -> tuple[tuple[str, str], ...]:
    """Names that a definition uses, bare (`("", name)`) or as `cls.name`, in a fixed order."""
    found: dict[tuple[str, str], None] = {}
    todo: list[ast.AST] = [node]
    while todo:  # ast.walk with isinstance takes four times as long
        child = todo.pop()
        kind = type(child)
        if kind is ast.Name:
            found["", child.id] = None  # type: ignore[attr-defined]
        elif kind is ast.Attribute and type(child.value) is ast.Name:  # type: ignore[attr-defined]
            base = child.value.id  # type: ignore[attr-defined]
            found[base, child.attr] = found["", base] = None  # type: ignore[attr-defined]
        elif kind is not ast.Constant:
            for field in reversed(child._fields):
                value = getattr(child, field, None)
                if type(value) is list:
                    todo += reversed([item for item in value if isinstance(item, ast.AST)])
                elif isinstance(value, ast.AST):
                    todo.append(value)
    return tuple(found)
