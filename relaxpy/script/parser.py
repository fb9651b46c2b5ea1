"""Entry points of the parser: `relaxpy.parse` for a text or file, and the functions behind the decorators.

A text is parsed, never run: its imports of script namespaces, its literals and its symbols are interpreted, and all
other Python is skipped. Decorated code may use any value of the surrounding Python.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import numpy as np

from relaxpy.errors import ErrorBag, RelaxError, ScriptError, Source, Span, UsageError
from relaxpy.ir.accessors import expect
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Function
from relaxpy.ir.garbage import garbage_kept
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.script import ir as namespace_i
from relaxpy.script import relax as namespace_r
from relaxpy.script import tir as namespace_t
from relaxpy.script.constants import StoredConstants, read_file
from relaxpy.script.macro import Macro
from relaxpy.script.metadata import is_metadata, metadata_of, read_metadata
from relaxpy.script.parser_expr import ExprParser
from relaxpy.script.parser_module import ModuleParser, decorator_kind
from relaxpy.script.parser_program import read_program
from relaxpy.script.scope import POISON, Skip, Surroundings, Symbols
from relaxpy.script.source import find_definition, parse_python, source_of

TEXT = "<text>"
"""The name of a program that is in no file."""
SCRIPT_MODULES = {
    "ir": namespace_i,
    "relax": namespace_r,
    "tir": namespace_t,
    "tirx": namespace_t,
}
"""Namespaces by their import names, ours and TVM's."""


def parse(
    text: str | PathLike[str],
    filename: str | None = None,
    *,
    constants: str | PathLike[str] | Mapping[str, np.ndarray] | None = None,
) -> IRModule:
    """Parse a text, or the file at a path, to a module. Nothing of it is run.

    The text contains one class decorated with `@I.ir_module`, or separate functions, which together make a module.
    `filename` is the name of the text in errors. `constants` is the data of its `R.const_ref(…)`, by name, or the
    `.npz` file that `mod.script(constants=…)` wrote. It is not needed if the text contains the data, or names a file
    beside it. Raises `ScriptError`, or `ErrorGroup` for several mistakes.
    """
    if not isinstance(text, (str, PathLike)):
        raise UsageError(
            "not-a-script",
            f"text or the path of a file is expected, got {type(text).__name__}",
            help="a class decorated with @I.ir_module is a module already"
            if isinstance(text, IRModule)
            else None,
        )
    if isinstance(text, PathLike) or ("\n" not in text and text.endswith(".py")):
        path = Path(text)
        try:
            filename, text = filename or str(path), path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problem = getattr(error, "strerror", None) or error
            raise UsageError("not-a-script", f"{path} cannot be read: {problem}") from None
    source = Source(text.removeprefix("\ufeff"), filename or TEXT)
    bag = ErrorBag()
    with deep_recursion(), garbage_kept():
        parser = _TextParser(source, bag)
        if constants is not None:
            given = isinstance(constants, Mapping)
            stored = StoredConstants(constants) if given else read_file(constants)
            parser.values["metadata"] = stored
        mod = parser.module()
    raise_errors(bag)
    assert mod is not None
    return mod


def raise_errors(bag: ErrorBag) -> None:
    """Raise the collected errors in the order of the source. The parser's frames are removed from the traceback, unless
    RELAXPY_DEBUG is set."""
    bag.errors.sort(
        key=lambda error: (error.span.line, error.span.column) if error.span else (0, 0)
    )
    if not os.environ.get("RELAXPY_DEBUG"):
        for error in bag.errors:
            error.__traceback__ = error.__context__ = None
    bag.raise_if_any()


class _TextParser:
    """The top level of a text."""

    def __init__(self, source: Source, bag: ErrorBag) -> None:
        self.source = source
        self.bag = bag
        self.values: dict[str, Any] = {"I": namespace_i, "R": namespace_r, "T": namespace_t}
        self.values["TypeVar"] = namespace_t.int64  # TVM prints its imports as comments
        self.not_run: dict[str, Span] = {}
        self.around = Surroundings(self.values, False, self.not_run)
        self.scope = ExprParser(source, self.around, Symbols())

    def module(self) -> IRModule | None:
        classes: list[tuple[ast.ClassDef, dict[str, Any]]] = []
        functions: list[ast.FunctionDef] = []
        for node in parse_python(self.source).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                with self.bag.collect():
                    kind, options = decorator_kind(node, self.scope)
                    if kind == "macro" and isinstance(node, ast.FunctionDef):
                        hygienic = bool(options.get("hygienic", True))
                        self.values[node.name] = Macro(node, self.source, self.around, hygienic)
                    elif kind == "ir_module" and isinstance(node, ast.ClassDef):
                        classes.append((node, options))
                    elif kind is not None and isinstance(node, ast.FunctionDef):
                        functions.append(node)
                    else:
                        self.not_run[node.name] = self.source.span(node)
            else:
                self.passing(node)
        if len(classes) > 1:
            second = classes[1][0]
            self.bag.add(
                ScriptError(
                    "not-a-module",
                    f"there are several modules: {', '.join(c.name for c, _ in classes)}",
                    span=self.source.span(second),
                    help="parse one at a time",
                )
            )
            return None
        if classes:
            node, options = classes[0]
            for function in functions:
                self.not_run[function.name] = self.source.span(function)
            check = bool(options.get("check_well_formed", True))
            parser = ModuleParser(self.source, self.around, self.bag, node.name, check)
            return parser.module(node.body, self.source.span(node))
        if not functions:
            if not self.bag.errors:
                self.bag.add(self.nothing())
            return None
        return ModuleParser(self.source, self.around, self.bag).module(functions)

    def nothing(self) -> ScriptError:
        undecorated = next(iter(self.not_run.items()), None)
        place = "this text" if self.source.file == TEXT else self.source.file
        return ScriptError(
            "not-a-module",
            f"there is no module and no function in {place}",
            span=undecorated[1] if undecorated is not None else None,
            help="decorate a class with @I.ir_module, or a function with @R.function",
        )

    def passing(self, node: ast.stmt) -> None:
        """Process a statement of Python: imports of namespaces, literals and symbols are interpreted."""
        match node:
            case ast.AsyncFunctionDef(decorator_list=[_, *_]):
                with self.bag.collect():
                    self.scope.refuse("async def", node, "write def")
            case ast.ImportFrom(module=module, names=names):
                for alias in names:
                    self.imported(module or "", alias, node)
            case ast.Import(names=names):
                for alias in names:
                    name = alias.asname or alias.name.split(".")[0]
                    self.not_run[name] = self.source.span(node)
            case ast.Assign() if is_metadata(node):
                if "metadata" not in self.values:  # given to `parse`
                    self.values["metadata"] = POISON
                    with self.bag.collect(self.source.span(node)):
                        self.values["metadata"] = read_metadata(node, self.source)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                try:
                    self.scope.env[name] = self.values[name] = self.symbol(
                        name, self.scope.eval(value)
                    )
                except (RelaxError, Skip):
                    self.not_run[name] = self.source.span(node)
            case _:
                for child in ast.walk(node):
                    if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                        self.not_run[child.id] = self.source.span(node)

    def symbol(self, name: str, value: Any) -> Any:
        if isinstance(value, Dim) and value.symbol is not None and not value.symbol.name:
            return SymVar(name, value.symbol.dtype).dim
        return value

    def imported(self, module: str, alias: ast.alias, node: ast.stmt) -> None:
        name = alias.asname or alias.name
        ours = module.split(".")[:2] in (["relaxpy", "script"], ["tvm", "script"])
        if ours and alias.name in SCRIPT_MODULES:
            self.values[name] = SCRIPT_MODULES[alias.name]
        elif module == "typing" and alias.name == "TypeVar":
            self.values[name] = namespace_t.int64
        elif module != "__future__":
            self.not_run[name] = self.source.span(node)


# Entry points of the decorators


def in_class_body(frame: FrameType) -> bool:
    """Is this frame the body of a class?"""
    return "__qualname__" in frame.f_locals and "__module__" in frame.f_locals


def parse_decorated_class(cls: type, frame: FrameType) -> IRModule:
    """The module defined by a class decorated with `@I.ir_module`."""
    source = source_of(frame.f_code, frame.f_lineno, frame, cls.__name__)
    node = expect(ast.ClassDef, find_definition(source, cls.__name__, frame.f_lineno))
    values = scope_of_frame(frame)
    for member in vars(cls).values():
        if isinstance(member, FunctionType):
            values = {**closure(member), **values}
    bag = ErrorBag()
    with deep_recursion(), garbage_kept():
        values |= metadata_of(parse_python(source).body, source)
        around = Surroundings(values, True)
        _, options = decorator_kind(node, ExprParser(source, around, Symbols()))
        check = bool(options.get("check_well_formed", True))
        parser = ModuleParser(source, around, bag, cls.__name__, check)
        mod = parser.module(node.body, source.span(node))
    raise_errors(bag)
    return mod


def parse_decorated_function(func: FunctionType, frame: FrameType) -> Function:
    """The function defined with the decorator `@R.function`."""
    mod = _parse_single(func, frame)
    return expect(Function, mod.functions[next(iter(mod.functions))])


def parse_decorated_prim_func(func: FunctionType, frame: FrameType) -> TensorProgram:
    """The tensor program defined with the decorator `@T.prim_func`."""
    source, node = _definition(func, frame)
    around = Surroundings({**scope_of_frame(frame), **closure(func)}, True)
    return read_program(node, source, around, {})


def parse_decorated_macro(func: FunctionType, frame: FrameType, hygienic: bool) -> Macro:
    """The macro defined with the decorator `@R.macro` or `@T.macro`."""
    source, node = _definition(func, frame)
    around = Surroundings({**scope_of_frame(frame), **closure(func)}, True)
    return Macro(node, source, around, hygienic)


def _definition(func: FunctionType, frame: FrameType) -> tuple[Source, ast.FunctionDef]:
    line = func.__code__.co_firstlineno
    source = source_of(func.__code__, line, frame, func.__name__)
    node = expect(ast.FunctionDef, find_definition(source, func.__name__, line))
    return source, node


def _parse_single(func: FunctionType, frame: FrameType) -> IRModule:
    source, node = _definition(func, frame)
    values = {**scope_of_frame(frame), **closure(func)}
    values |= metadata_of(parse_python(source).body, source)
    around = Surroundings(values, True)
    bag = ErrorBag()
    with deep_recursion(), garbage_kept():
        mod = _SingleParser(source, around, bag).module([node])
    raise_errors(bag)
    return mod


class _SingleParser(ModuleParser):
    """Parses one function without a module: functions of the surrounding Python become local ones."""

    def adopt(self, name: str, value: Any, span: Span) -> Any:
        if isinstance(value, Function):
            return value
        raise ScriptError(
            "bad-value",
            f"{name} is a tensor program, which must be in the same module as the function",
            span=span,
            help="put both into a class decorated with @I.ir_module",
        )

    def adopt_captured(self, name: str) -> None:
        """Do nothing: captured functions are adopted when they are used."""


def scope_of_frame(frame: FrameType) -> dict[str, Any]:
    """The names visible in this frame: its globals, overridden by its locals."""
    return {**frame.f_globals, **frame.f_locals}


def closure(func: FunctionType) -> dict[str, Any]:
    """The values of a function's closure variables."""
    found: dict[str, Any] = {}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # not bound yet: the function itself, or one defined later
    return found


__all__: Sequence[str] = ["parse"]
