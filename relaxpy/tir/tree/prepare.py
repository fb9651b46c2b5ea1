"""Prepare the Python syntax tree of a `T.prim_func` for TVM's parser.

* Syntax that is not part of a tensor program, or is nested too deeply, is refused (`depth`).
* Older spellings are rewritten (`older`).
* Symbols are declared: `n = T.int64()`, dimensions in quotes, any arguments of the decorator.
* Names are resolved: only the program's own, those given, the namespace `T`, and Python's pure built-in functions.
* Calls of check functions are inserted (`checked`).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from relaxpy.errors import ScriptError, Source
from relaxpy.ir.dim import SymVar
from relaxpy.tir.tree.checked import INTEGERS, Checked
from relaxpy.tir.tree.depth import MOST_PARAMS, refuse_deep
from relaxpy.tir.tree.namespace import Rename, call_attribute, name_of_namespace, t_attribute
from relaxpy.tir.tree.older import Modern, modernize
from relaxpy.tir.tree.regions import declare_regions

BUILTINS = frozenset(
    "abs all any bool dict enumerate float int isinstance len list map max min range reversed round set slice "
    "sorted str sum tuple zip filter divmod True False".split()
)
"""Python functions that a program may use: those without effects."""

_REFUSED_SYNTAX: dict[type[ast.AST], str] = {
    ast.Import: "import", ast.ImportFrom: "import", ast.Delete: "del", ast.Global: "global",
    ast.Nonlocal: "nonlocal", ast.Try: "try", ast.TryStar: "try", ast.Raise: "raise", ast.ClassDef: "a class",
    ast.AsyncFunctionDef: "async", ast.AsyncFor: "async", ast.AsyncWith: "async", ast.Match: "match",
    ast.Await: "await", ast.Yield: "yield", ast.YieldFrom: "yield", ast.NamedExpr: "`:=`",
    ast.FunctionDef: "a function inside it",
}  # fmt: skip
"""Python syntax that a tensor program may not contain."""
_REFUSED_ATTRIBUTES = frozenset({"format", "format_map"})
"""String methods that access attributes by name."""
_ALLOCATE = frozenset({"alloc_buffer", "sblock_alloc_buffer", "match_buffer", "decl_buffer"})


@dataclass
class Prepared:
    """A program ready for TVM's parser."""

    node: ast.FunctionDef
    names: Mapping[str, Any]
    """Values of the names that are not the program's own, without `T`."""
    symbols: Mapping[str, str] = field(default_factory=dict[str, str])
    """Symbolic variables that shapes introduce, with their dtypes."""


def prepare(
    node: ast.FunctionDef,
    source: Source,
    values: Mapping[str, Any],
    symbols: Sequence[str] = (),
    every_region: bool = False,
) -> Prepared:
    """Return the tree in today's spelling, with the names that it needs; `symbols` are declared as int64 variables.
    With `every_region`, all blocks declare what they read and write. Raises `ScriptError`, located."""
    return _Preparation(node, source, values, symbols).run(every_region)


class _Preparation:
    def __init__(
        self,
        node: ast.FunctionDef,
        source: Source,
        values: Mapping[str, Any],
        symbols: Sequence[str],
    ) -> None:
        self.source = source
        self.alias = name_of_namespace(node)
        self.node = copy.deepcopy(node)
        self.node.type_params = []  # type: ignore[attr-defined]  # they are among the symbols
        self.values = {k: v for k, v in values.items() if k != self.alias}
        self.declared: dict[str, str] = dict.fromkeys(symbols, "int64")
        self.quoted: set[str] = set()

    def run(self, every_region: bool) -> Prepared:
        node = self.node
        node.decorator_list = [self.located(_prim_func_decorator(), node)]
        if node.returns is not None and ast.unparse(node.returns) == "None":
            node.returns = None
        given = node.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs or given.defaults:
            self.refuse(
                node, "tir-script", "a tensor program has plain parameters, without defaults"
            )
        self.refuse_syntax()
        Rename(self.alias).visit(node)
        modernize(node)
        self.read_declarations()
        self.check_dimensions()
        scalars = {arg.arg for arg in node.args.args if not self.is_buffer(arg.annotation)}
        self.values = {k: v for k, v in self.values.items() if k not in scalars}
        names = self.resolve_names()
        symbols = {n: d for n, d in self.declared.items() if n not in scalars}
        for name in self.quoted - scalars:
            if name not in names:
                symbols.setdefault(name, "int64")
        for name, value in list(names.items()):
            if isinstance(value, (TypeVar, SymVar)):
                del names[name]
                symbols.setdefault(name, "int64")
        declare_regions(node, BUILTINS | set(names), every_region)
        Checked(self.refuse, names, self.local_buffers()).visit(node)
        node.body = node.body or [self.located(ast.Pass(), node)]
        return Prepared(ast.fix_missing_locations(node), names, symbols)

    def refuse_syntax(self) -> None:
        """Refuse syntax that a tensor program may not contain, before TVM meets it."""
        refuse_deep(self.node, self.source)
        if len(self.node.args.args) > MOST_PARAMS:
            self.refuse(
                self.node, "tir-script", f"a tensor program has at most {MOST_PARAMS} parameters"
            )
        for part in ast.walk(self.node):
            what = _REFUSED_SYNTAX.get(type(part)) if part is not self.node else None
            if what is not None:
                help = "write a @T.macro beside the program" if "function" in what else None
                self.refuse(
                    part, "unsupported-syntax", f"{what} is not part of a tensor program", help
                )

    def refuse(self, node: Any, code: str, message: str, help: str | None = None) -> NoReturn:
        raise ScriptError(code, message, span=self.source.span(node), help=help)

    def located(self, new: Any, where: ast.AST) -> Any:
        """Return `new` with every part of it located at `where`."""
        for part in ast.walk(new):
            ast.copy_location(part, where)
        return new

    def read_declarations(self) -> None:
        """Take out `n = T.int64()`: the symbols that quoted dimensions name, or scalar parameters."""
        kept: list[ast.stmt] = []
        for stmt in self.node.body:
            found = list(_declarations(stmt))
            self.declared.update(found)
            if not found:
                kept.append(stmt)
        self.node.body = kept

    def quote_parameters(self, shape: ast.expr | None) -> None:
        """Put dimensions that name a parameter into quotes: it may come after the buffer whose shape it is in."""
        params = {arg.arg for arg in self.node.args.args}
        dims = shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else []
        for i, dim in enumerate(dims):
            if any(isinstance(part, ast.Name) and part.id in params for part in ast.walk(dim)):
                dims[i] = ast.copy_location(ast.Constant(ast.unparse(dim)), dim)

    def is_buffer(self, annotation: ast.expr | None) -> bool:
        return isinstance(annotation, ast.Call) and ast.unparse(annotation.func) == "T.Buffer"

    def check_dimensions(self) -> None:
        """Check that quoted dimensions are expressions. Their names become symbols."""
        for arg in self.node.args.args:
            if arg.annotation is None:
                self.refuse(
                    arg,
                    "tir-script",
                    f"parameter {arg.arg} needs an annotation",
                    'write x: T.Buffer((n, 4), "float32"), or n: T.int64',
                )
            if isinstance(arg.annotation, ast.Constant) and isinstance(arg.annotation.value, str):
                arg.annotation = self.unquote(arg.annotation, "an annotation")
                Rename(self.alias).visit(arg.annotation)
                arg.annotation = Modern(arg.annotation).visit(arg.annotation)
            if not self.is_buffer(arg.annotation):
                continue
            for keyword in arg.annotation.keywords if isinstance(arg.annotation, ast.Call) else ():
                if keyword.arg in LAYOUT:
                    keyword.value = _Unquoted(self).visit(keyword.value)
            shape = _shape_argument(arg.annotation)
            self.quote_parameters(shape)
            for part in ast.walk(shape) if shape is not None else ():
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    dimension = self.unquote(part, "a dimension")
                    if any(
                        isinstance(n, ast.Constant) and n.value is None for n in ast.walk(dimension)
                    ):
                        self.refuse(part, "tir-none", "None is not a value of a tensor program")
                    self.quoted.update(n.id for n in ast.walk(dimension) if isinstance(n, ast.Name))
        self.quoted.discard("T")
        for stmt in self.node.body:
            match stmt:
                case ast.Assign([ast.Name(id=name)], ast.Call(func=func, args=[])):
                    dtype = t_attribute(func)
                    if name in self.quoted and dtype is not None and dtype not in INTEGERS:
                        self.refuse(
                            stmt,
                            "tir-dtype",
                            f"a dimension must be an integer, but {name} is {dtype}",
                        )

    def unquote(self, node: ast.Constant, what: str) -> ast.expr:
        try:
            return self.located(ast.parse(str(node.value), mode="eval").body, node)
        except SyntaxError:
            self.refuse(node, "tir-script", f"{node.value!r} is not {what}")

    def resolve_names(self) -> dict[str, Any]:
        """The names used that are not the program's own, with their values."""
        own = {a.arg for a in self.node.args.args} | set(self.declared) | self.quoted | {"T"}
        for part in ast.walk(self.node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                own.add(part.id)
            elif isinstance(part, ast.arg):
                own.add(part.arg)
            elif isinstance(part, ast.FunctionDef):
                own.add(part.name)
        found: dict[str, Any] = {}
        for part in ast.walk(self.node):
            if isinstance(part, ast.Attribute) and (
                part.attr.startswith("_") or part.attr in _REFUSED_ATTRIBUTES
            ):
                self.refuse(
                    part,
                    "tir-script",
                    f"the attribute {part.attr} cannot be used in a tensor program",
                )
            if not isinstance(part, ast.Name):
                continue
            if part.id in self.values and (part.id not in own or part.id in self.quoted):
                found[part.id] = self.values[part.id]
            elif part.id not in own and part.id not in BUILTINS:
                self.refuse(
                    part,
                    "unknown-name",
                    f"the name {part.id} is not defined",
                    "operators of R work on whole tensors; for elements use T: T.exp(x[i])"
                    if part.id == "R"
                    else None,
                )
        for name in self.quoted:
            if isinstance(self.values.get(name), int):
                found[name] = self.values[name]
        return found

    def local_buffers(self) -> set[str]:
        """Names that certainly denote buffers: their subscripts are indices (those of a Python tuple are not)."""
        found = {a.arg for a in self.node.args.args if self.is_buffer(a.annotation)}
        for part in ast.walk(self.node):
            if (
                isinstance(part, ast.Assign)
                and isinstance(part.targets[0], ast.Name)
                and isinstance(part.value, ast.Call)
                and t_attribute(part.value.func) in _ALLOCATE
            ):
                found.add(part.targets[0].id)
        return found


LAYOUT = ("strides", "elem_offset")
"""Attributes of a buffer in which names are quoted, or declared in the program."""


class _Unquoted(ast.NodeTransformer):
    """Resolves `elem_offset="o"` and `strides=("s", 1)`: their names are symbols of the program."""

    def __init__(self, preparation: _Preparation) -> None:
        self.preparation = preparation

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, str):
            return node
        found = self.preparation.unquote(node, "a stride or an offset")
        for part in ast.walk(found):
            if isinstance(part, ast.Name) and part.id != "T":
                self.preparation.declared.setdefault(part.id, "int64")
        return found


def _prim_func_decorator() -> ast.expr:
    return ast.parse("T.prim_func(private=True, s_tir=True)", mode="eval").body


def _declarations(stmt: ast.stmt) -> Iterator[tuple[str, str]]:
    """`n = T.int64()` and `n, m = T.int64(), T.int64()`: (name, dtype)."""
    if not isinstance(stmt, ast.Assign) or len(stmt.targets) != 1:
        return
    target, value = stmt.targets[0], stmt.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        if len(target.elts) != len(value.elts):
            return
        pairs = list(zip(target.elts, value.elts, strict=True))
    found: list[tuple[str, str]] = []
    for name, call in pairs:
        dtype = call_attribute(call)
        size_var = (
            isinstance(call, ast.Call)
            and not call.args
            and all(k.arg == "is_size_var" for k in call.keywords)
        )
        if dtype not in INTEGERS or not size_var or not isinstance(name, ast.Name):
            return
        found.append((name.id, dtype))
    yield from found


def _shape_argument(annotation: ast.expr | None) -> ast.expr | None:
    """The shape of `T.Buffer(shape, …)`."""
    if isinstance(annotation, ast.Call):
        named = [k.value for k in annotation.keywords if k.arg == "shape"]
        return annotation.args[0] if annotation.args else named[0] if named else None
    return None
