"""Evaluation of names, calls and annotations to values: expressions of the IR, dimensions, annotations, Python values.

Arguments that are calls themselves are bound to variables first (A-normal form), so that a deduction error is located
at the innermost call. Names of the script and literals are always evaluated; Python values and functions only in
decorated code.
"""

from __future__ import annotations

import ast
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from relaxpy.errors import DeduceError, ErrorBag, RelaxError, ScriptError, Source, Span
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    DataType,
    ShapeType,
    TupleType,
)
from relaxpy.ir.data import TypeDecl
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    TupleGetItem,
    Var,
    is_leaf,
)
from relaxpy.ir.module import TensorProgram
from relaxpy.ir.python_operator import unreadable
from relaxpy.op.base import OPS, as_expr
from relaxpy.op.deduce import deduce
from relaxpy.op.familiar import advice, as_in_script
from relaxpy.op.function import operator_of
from relaxpy.script import calls
from relaxpy.script import ir as namespace_i
from relaxpy.script import relax as namespace_r
from relaxpy.script.advice import (
    LIBRARIES,
    OF_SEVERAL_WORKERS,
    instead_of,
    instead_of_a_word,
    instead_of_unknown,
    like,
)
from relaxpy.script.annotations import AnnotationFactory, Callable_, Text, as_annotation
from relaxpy.script.data import ConstructorRef, DataNamespace, TypeApplication, TypeRef
from relaxpy.script.describe import describe
from relaxpy.script.devices import named, with_device
from relaxpy.script.dialects.older_words import ATTRIBUTES
from relaxpy.script.dims import DIM_FUNCTIONS
from relaxpy.script.intrinsics import Statement
from relaxpy.script.macro import Macro
from relaxpy.script.parser_value import (
    NAMESPACES,
    argument_node,
    is_of_script,
    is_value,
    known_scalar,
    lone_names,
    namespace_member,
    with_span,
)
from relaxpy.script.scope import (
    POISON,
    ModuleRef,
    Skip,
    Surroundings,
    Symbols,
    suggest,
)

REFUSED: dict[type[ast.expr], tuple[str, str]] = {
    ast.Lambda: ("lambda", "define a function with @R.function inside this one"),
    ast.ListComp: ("a list comprehension", "write all items"),
    ast.SetComp: ("a set comprehension", "write all items in a tuple"),
    ast.DictComp: ("a dict comprehension", "write all items"),
    ast.GeneratorExp: ("a generator", "write all items in a tuple"),
    ast.Await: ("await", "call the function"),
    ast.Yield: ("yield", "return a tuple of all values"),
    ast.YieldFrom: ("yield from", "return a tuple of all values"),
    ast.NamedExpr: ("`:=`", "bind the value in a separate statement"),
    ast.Set: ("a set", "write a tuple"),
}


_FIELDS = {name: name for name in ("dims", "dtype", "fields", "ndim", "shape", "vdevice")}
_FIELDS |= {"values": "dims"}
"""Attributes of an annotation, as in `x.ty.shape` → the fields of its class."""


class CoreParser:
    """Evaluates names, calls and annotations of one function, or of a class body."""

    def __init__(self, source: Source, around: Surroundings, symbols: Symbols) -> None:
        self.source = source
        self.around = around
        self.symbols = symbols
        self.env: dict[str, Any] = {}
        """Variables and Python values bound so far, by name."""
        self.functions: dict[str, Any] = {}
        """Functions of the module, by their name in the script."""
        self.types: Mapping[str, TypeDecl] = {}
        """The data types of the module."""
        self.in_annotation = False
        self.externs: dict[Var, ExternFunc] = {}
        """Variables that refer to a library function."""

    # Implemented by subclasses

    def emit(self, value: Expr, node: ast.expr) -> Expr:
        """Bind a value that is no leaf to a new variable, before the current statement."""
        raise ScriptError(
            "statement-place",
            "a call of an operator is allowed only inside a function",
            span=self.span(node),
        )

    def named_scalar(self, value: Expr, dtype: DType, node: ast.expr) -> Dim:
        """A symbol for the value of an integer scalar, defined before the current statement."""
        del dtype
        self.emit(value, node)
        raise AssertionError("a value of the program outside of a function")

    def annotation_of(self, value: Expr) -> Annotation:
        return deduce(value)

    def global_function(self, name: str, value: Any, span: Span) -> Expr:
        """Make a function from outside usable here."""
        raise ScriptError("bad-value", f"{name} cannot be used here", span=span)

    # Errors

    def span(self, node: ast.AST) -> Span:
        return self.source.span(node)

    def fail(
        self,
        code: str,
        message: str,
        node: ast.AST,
        help: str | None = None,
        notes: Sequence[str] = (),
    ) -> NoReturn:
        raise ScriptError(code, message, span=self.span(node), help=help, notes=notes)

    def refuse(self, what: str, node: ast.AST, help: str) -> NoReturn:
        self.fail("unsupported-syntax", f"{what} is not part of the language", node, help)

    def at_argument(self, error: RelaxError, node: ast.expr, op: Any) -> RelaxError:
        """Return the error with its location set to the argument at fault. `op` is the callee."""
        found = argument_node(node, op, error.arg)
        error.help = error.help and as_in_script(error.help)
        error.span = self.span(found if found is not None else node)
        return error

    # Evaluation

    def eval(self, node: ast.expr) -> Any:
        """Evaluate an expression of the source. Raises a located `RelaxError`."""
        method = getattr(self, "eval_" + type(node).__name__, None)
        if method is None:
            what, help = REFUSED.get(type(node), (type(node).__name__, "use the operators of R"))
            self.refuse(what, node, help)
        try:
            return method(node)
        except RelaxError as error:
            raise error.located(self.span(node)) from error.__cause__

    def expr(self, node: ast.expr) -> Expr:
        """Evaluate to an expression of the IR."""
        return self.as_expr(self.eval(node), node)

    def as_expr(self, value: Any, node: ast.AST) -> Expr:
        """Convert a value to an expression of the IR."""
        value = self.plain(value, node)
        try:
            found = as_expr(value)
        except (TypeError, ValueError):
            self.fail(
                "bad-value",
                f"{describe(value)} is not a value of the program",
                node,
                "wrap numbers and arrays in R.const(…), scalars in R.prim_value(…)",
            )
        return found if isinstance(value, Expr) else with_span(found, self.span(node))

    def plain(self, value: Any, node: ast.AST) -> Any:
        """Functions from outside as expressions; any other value unchanged."""
        if isinstance(value, (Function, TensorProgram)):
            return self.global_function(getattr(node, "id", "function"), value, self.span(node))
        if isinstance(value, np.generic):
            return value.item()
        return value

    def leaf(self, node: ast.expr) -> Any:
        """Evaluate an argument; a value that is no leaf is bound first."""
        value = self.plain(self.eval(node), node)
        if isinstance(value, Expr) and not is_leaf(value):
            return self.emit(value, node)
        return value

    def eval_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, str) and self.in_annotation:
            text = Text(node.value)
            text.span = self.span(node)
            return text
        problem = unreadable(node.value)
        if problem is not None:
            self.fail("bad-value", problem, node)
        if isinstance(node.value, (complex, bytes)) or node.value is ...:
            self.fail("bad-value", f"{node.value!r} is not a value of the script language", node)
        return node.value

    def eval_Name(self, node: ast.Name) -> Any:
        name = node.id
        if name in self.env:
            value = self.env[name]
            if value is POISON:
                raise Skip
            return value
        symbol = self.symbols.lookup(name)
        if symbol is not None:
            return symbol
        if name in self.functions:
            return self.functions[name]
        try:
            return self.captured(name, self.around.find(name))
        except KeyError:
            pass
        if name in self.around.not_run:
            self.fail(
                "unknown-name",
                f"{name} is a Python value, and relaxpy.parse does not execute Python",
                node,
                "write the value itself, or import the file and use the decorated module",
                [f"{name} is defined at {self.around.not_run[name]}"],
            )
        if name == "metadata":
            self.fail(
                "unknown-name",
                "this text was printed without its metadata, which has the constants",
                node,
                "print it with mod.script(show_meta=True)",
            )
        known = [*self.env, *self.symbols.names(), *self.functions, *self.around.values]
        help = (
            instead_of_unknown(name)
            or instead_of_a_word(name)
            or self.constructor_named(name)
            or suggest(name, known)
            or (
                f'a symbolic variable is defined by a dimension in quotes: "{name}"'
                if self.symbols.mode == "define"
                else f"bind it before; a symbolic variable is introduced by {name} = T.int64()"
            )
        )
        return self.fail("unknown-name", f"{name} is not defined", node, help)

    def constructor_named(self, name: str) -> str | None:
        """Help for a constructor without its type, as patterns have it."""
        owners = [each.name for each in self.types.values() if each.find(name) >= 0]
        return f"write {' or '.join(f'{owner}.{name}' for owner in owners)}" if owners else None

    def captured(self, name: str, value: Any) -> Any:
        """A value of the surrounding Python. Its symbols become this function's own, with the same names."""
        if isinstance(value, typing.TypeVar):
            return self.symbols.declare(value.__name__)
        if isinstance(value, SymVar):
            return self.symbols.declare(value.name or name, value.dtype)
        if isinstance(value, Dim):
            if value.symbol is not None and not value.symbol.name:
                return self.symbols.declare(name, value.symbol.dtype)
            return self.symbols.adopt_dim(value)
        if isinstance(value, Annotation):
            return self.symbols.adopt(value)
        return value

    def eval_Attribute(self, node: ast.Attribute) -> Any:
        try:
            base = self.eval(node.value)
        except RelaxError as error:
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in LIBRARIES:
                error.help = instead_of(node.attr)
            raise
        name = node.attr
        if isinstance(base, TypeRef):
            return ConstructorRef(base.decl, name, None if base.params else ())
        if isinstance(base, DataType) and base.name in self.types:
            return ConstructorRef(self.types[base.name], name, base.args)
        if isinstance(base, ModuleRef):
            if name in self.functions:
                return self.functions[name]
            known = suggest(name, self.functions) or f"it has {', '.join(self.functions)}"
            if name in self.types:
                known = f"{name} is a data type: write {name} alone"
            self.fail("unknown-name", f"the module has no function {name}", node, known)
        if isinstance(base, types.ModuleType) and base in NAMESPACES:
            return self.script_name(base, name, node)
        if isinstance(base, (namespace_r.Namespace, DataNamespace)):
            return self.script_name(base, name, node)
        if isinstance(base, Expr):
            return self.value_attribute(base, name, node)
        if isinstance(base, Annotation) and name in _FIELDS:
            return getattr(base, _FIELDS[name], None)
        try:
            if self.around.trusted:
                return self.captured(name, getattr(base, name))
        except AttributeError as error:
            self.fail("unknown-name", str(error), node)
        return self.fail(
            "unknown-name", f"{describe(base)} has no attribute {name} in a script", node
        )

    def script_name(self, base: Any, name: str, node: ast.Attribute) -> Any:
        try:
            return namespace_member(base, name)
        except AttributeError:
            pass
        written = ast.unparse(node)
        if base is namespace_i:
            self.fail("unknown-name", f"{written} does not exist", node, suggest(name, dir(base)))
        if base is namespace_r and name in OF_SEVERAL_WORKERS:
            self.fail(
                "unknown-op",
                f"{written} is of programs that are spread over several workers, which are not read",
                node,
                'let a registered function exchange the tensors: R.call_pure_packed("my.all_reduce", x, ty_args=…), '
                "and each worker call vm.on(communicator=…)",
            )
        prefix = "" if base is namespace_r else f"{base._prefix}."
        known = namespace_r.known_names()
        same = like(name)
        help = f"did you mean R.{same}?" if same else advice(name, "R.")
        if help is None and (near := suggest(prefix + name, known)):
            help = near.replace("mean ", "mean R.")
        return self.fail(
            "unknown-op",
            f"there is no operator {written}",
            node,
            help or "docs/operators.md lists all of them",
        )

    def value_attribute(self, base: Expr, name: str, node: ast.Attribute) -> Any:
        """The attributes of values, as in TVM: `x.ty`, the annotation, and `x.astype(dtype)`."""
        if ATTRIBUTES.get(name, name) == "ty":
            return self.annotation_of(base)
        if name == "astype":

            def astype(dtype: Any) -> Any:
                return OPS["astype"].make(base, dtype)

            return astype
        shown = ast.unparse(node.value)
        help = f"write R.{name}({shown}, …)" if name in OPS else instead_of(name)
        if isinstance(self.annotation_of(base), DataType):
            help = f"fields are read by a match: match {shown}:"
        return self.fail("unknown-name", f"a value has no attributes: {shown}.{name}", node, help)

    # Calls

    def eval_Call(self, node: ast.Call) -> Any:
        try:
            func = self.eval(node.func)
        except RelaxError as error:
            self.with_errors_of(error, lambda: self.arguments(node))
            raise
        if isinstance(func, AnnotationFactory):
            return self.annotation_call(func, node)
        if isinstance(func, Statement):
            return self.statement_call(func, node)
        if isinstance(func, Macro):
            return self.expand(func, node)
        func = self.plain(func, node.func)
        args, kwargs = self.arguments(node)
        span = self.span(node)
        if isinstance(func, Var) and func in self.externs:  # a function that is called by name
            args, func = [self.externs[func], *args], calls.call_packed
        if isinstance(func, (Expr, TypeApplication)):
            return self.call_value(func, args, kwargs, node)
        if not callable(func):
            self.fail("bad-value", f"{describe(func)} cannot be called", node.func)
        if not (self.around.trusted or is_of_script(func)):
            self.fail(
                "unknown-name",
                f"{ast.unparse(node.func)} is a Python function, and relaxpy.parse does not execute Python",
                node.func,
            )
        self.refuse_python(func, args, node)
        if func is namespace_r.const_ref:
            kwargs["stored"] = self.around.values.get("metadata")
        if args and isinstance(args[0], Var) and getattr(func, "__module__", "") == calls.__name__:
            args[0] = self.externs.get(args[0], args[0])
        if func in DIM_FUNCTIONS.values():
            args = [known_scalar(arg) for arg in args]
        try:
            given = {key: named(value) for key, value in kwargs.items()}
            value = with_device(func(*map(named, args), **given))
        except RelaxError as error:
            if error.span is not None and not isinstance(error, DeduceError):
                raise error from None
            raise self.at_argument(error, node, operator_of(func) or func) from None
        except Skip:
            raise
        except TypeError as error:
            if not is_of_script(func):
                raise self.python_error(error, node) from error
            problem = str(error).split("() ", 1)[-1]
            self.fail("op-arguments", f"{ast.unparse(node.func)} {problem}", node)
        except Exception as error:
            raise self.python_error(error, node) from error
        return with_span(value, span)

    def expand(self, macro: Macro, node: ast.Call) -> Any:
        """Expand the use of a macro, and return its value."""
        self.fail("statement-place", "a macro can be used only inside a function", node)

    def refuse_python(self, func: Any, args: Sequence[Any], node: ast.Call) -> None:
        """Refuse to call a Python or numpy function on values of the program: it would operate on the expression
        tree."""
        module = str(getattr(func, "__module__", None) or type(func).__module__).split(".")[0]
        is_method = not isinstance(getattr(func, "__self__", types), types.ModuleType)
        if is_method or module not in ("builtins", "math", "numpy"):
            return
        if any(map(is_value, args)):
            name = str(getattr(func, "__name__", ""))
            shown = ast.unparse(node.func)
            self.refuse(f"{shown} of a value of the program", node, instead_of(name))

    def python_error(self, error: Exception, node: ast.Call) -> Exception:
        """An exception raised by a Python function, with its location in the script."""
        if os.environ.get("RELAXPY_DEBUG"):
            return error
        name = ast.unparse(node.func)
        return ScriptError(
            "python-call", f"{name} raised {type(error).__name__}: {error}", span=self.span(node)
        )

    def statement_call(self, func: Statement, node: ast.Call) -> Any:
        self.fail("statement-place", f"{func!r} is not allowed here", node, f"write {func.usage}")

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """Evaluated arguments of a call."""
        args = self.items(node.args)
        kwargs: dict[str, Any] = {}
        given = self.each(self.leaf, [keyword.value for keyword in node.keywords])
        for keyword, value in zip(node.keywords, given, strict=True):
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs.update(value)
            else:
                self.fail("bad-value", "the value after ** is not a dict", keyword.value)
        return args, kwargs

    def items(self, nodes: Sequence[ast.expr]) -> list[Any]:
        """Evaluated arguments, or items of a list, with those of `*values` in their place."""

        def values(node: ast.expr) -> list[Any]:
            return self.unpacked(node) if isinstance(node, ast.Starred) else [self.leaf(node)]

        return [value for found in self.each(values, nodes) for value in found]

    def each(self, evaluate: Callable[[ast.expr], Any], nodes: Sequence[ast.expr]) -> list[Any]:
        """`evaluate` of each expression. If one has an error, the others are evaluated as well, and all errors are
        raised together."""
        found: list[Any] = []
        for i, node in enumerate(nodes):
            try:
                found.append(evaluate(node))
            except RelaxError as error:
                self.with_errors_of(error, lambda i=i: self.each(evaluate, nodes[i + 1 :]))
                raise
        return found

    @staticmethod
    def with_errors_of(error: RelaxError, rest: Callable[[], Any]) -> None:
        """Raise an error together with those of the rest of its expression, if there are any. What is said twice is
        shown once."""
        bag = ErrorBag()
        bag.add(error)
        try:
            with bag.collect():
                rest()
        except Skip:
            return
        if len({(each.code, each.message): each for each in bag.errors}) > 1:
            bag.errors = list({(e.code, e.message): e for e in reversed(bag.errors)}.values())[::-1]
            bag.raise_if_any()

    def unpacked(self, node: ast.Starred) -> list[Any]:
        value = self.leaf(node.value)
        if isinstance(value, (tuple, list)):
            return list(value)
        if isinstance(value, Expr):
            annotation = self.annotation_of(value)
            if isinstance(annotation, TupleType):
                return [self.item(value, i, node.value) for i in range(len(annotation.fields))]
        return self.fail("bad-value", "the value after * is not a tuple", node.value)

    def call_value(
        self,
        func: Expr | TypeApplication,
        args: list[Any],
        kwargs: dict[str, Any],
        node: ast.Call,
    ) -> Expr:
        """A call of a function of the module, or of a function value."""
        func, types = (
            (func.function, func.args) if isinstance(func, TypeApplication) else (func, ())
        )
        if kwargs:
            problem = "functions take positional arguments only"
            self.fail("bad-value", problem, node.keywords[0].value, "remove the names")
        if not isinstance(func, (GlobalVar, Var, ExternFunc)):
            shown = f"it is {self.annotation_of(func)}"
            self.fail(
                "bad-value", f"{ast.unparse(node.func)} cannot be called", node.func, None, [shown]
            )
        annotation = self.annotation_of(func)
        params = annotation.params if isinstance(annotation, CallableType) else None
        exprs: list[Expr] = []
        for i, value in enumerate(args):
            place = node.args[i] if i < len(node.args) else node
            wanted = params[i] if params is not None and i < len(params) else None
            if isinstance(wanted, ShapeType) and isinstance(value, (tuple, list)):
                value = namespace_r.shape(value)
            exprs.append(self.as_expr(value, place))
        return Call(func, tuple(exprs), types, span=self.span(node))

    # Annotations

    def annotation(self, node: ast.expr, mode: str = "use") -> Annotation:
        """Evaluate an annotation of the source."""
        before, self.in_annotation = self.in_annotation, True
        try:
            with self.symbols.using(mode):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    node = self.unquoted(node)
                value = self.eval(node)
                return self.symbols.adopt(as_annotation(value, self.symbols))
        except RelaxError as error:
            raise error.located(self.span(node)) from None
        finally:
            self.in_annotation = before

    def unquoted(self, node: ast.Constant) -> ast.expr:
        """Parse a whole annotation in quotes, which Python allows."""
        try:
            inner = ast.parse(str(node.value), mode="eval").body
        except SyntaxError:
            self.fail("bad-annotation", f"{node.value!r} is not an annotation", node)
        for child in ast.walk(inner):
            if hasattr(child, "lineno"):
                ast.copy_location(child, node)
        return inner

    def annotation_call(self, func: AnnotationFactory, node: ast.Call) -> Annotation:
        before, self.in_annotation = self.in_annotation, True
        try:
            if func is Callable_:
                params = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "params")]
                with self.symbols.function_type(lone_names(params)):
                    args, kwargs = self.arguments(node)
                    return func.build(self.symbols, *args, **kwargs)
            args, kwargs = self.arguments(node)
            return func.build(self.symbols, *args, **kwargs)
        except RelaxError as error:
            raise error.located(self.span(node)) from None
        finally:
            self.in_annotation = before

    def item(self, base: Expr, index: int, node: ast.expr) -> Expr:
        annotation = self.annotation_of(base)
        if isinstance(annotation, TupleType):
            count = len(annotation.fields)
            if not -count <= index < count:
                where = node.slice if isinstance(node, ast.Subscript) else node
                self.fail(
                    "tuple-index", f"index {index} is out of range for a tuple of {count}", where
                )
            index %= count
        return TupleGetItem(base, index, span=self.span(node))
