"""What happens to the Python tree of a `T.prim_func` before TVM's parser sees it.

* Older spellings become today's: `T.block`, `T.alloc_buffer` in a block, `T.Buffer[…]`, `T.handle` with
  `T.match_buffer`, `n = T.int64()`, any arguments of the decorator.
* Integer literals that are extents or indices become int64, as all indices of a program are (TVM reads int32).
* Operators between dtypes that TVM would convert without a word become functions that refuse them.
* Names are resolved: only the program's own, those given, the namespace `T`, and Python's pure built-in functions.
* What would end the process is refused: a Python `None` that reaches C++.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from relaxpy.errors import ScriptError, Source
from relaxpy.ir.dim import SymVar
from relaxpy.ir.python_operator import unreadable

Refuse = Callable[..., NoReturn]

INDEX = "__relaxpy_index"
"""The function that makes int64 literals, in the tree given to TVM's parser."""
CHECKED = "__relaxpy_checked"
"""The function that refuses None, in the tree given to TVM's parser."""
SHAPE = "__relaxpy_shape"
"""The function that makes a shape of what is no literal tuple."""
ITERATED = "__relaxpy_iterated"
"""The function that refuses to go through an expression: TVM's never end."""
STARRED = "__relaxpy_starred"
"""The function that refuses to make too many arguments of a sequence."""
OPERATOR = "__relaxpy_operator_"
"""Before the name of an operator's class in `ast`: the function that applies it if the dtypes agree."""
STORED = "__relaxpy_stored"
"""The function that refuses a value whose dtype is not that of the buffer it goes to."""
LITERAL = "__relaxpy_literal_"
"""Before the name of a dtype: the function that makes its literals, those too that TVM's ends at."""

ARITHMETIC = frozenset({"Add", "Sub", "Mult", "Div", "FloorDiv", "Mod", "Pow", "LShift"})
COMPARISONS = frozenset({"Lt", "LtE", "Gt", "GtE", "Eq", "NotEq"})

BUILTINS = frozenset(
    "abs all any bool dict enumerate float int isinstance len list map max min range reversed round set slice "
    "sorted str sum tuple zip filter divmod True False".split()
)
"""Python's functions that a program may use: those without effects."""

_REFUSED_SYNTAX: dict[type[ast.AST], str] = {
    ast.Import: "import", ast.ImportFrom: "import", ast.Delete: "del", ast.Global: "global",
    ast.Nonlocal: "nonlocal", ast.Try: "try", ast.TryStar: "try", ast.Raise: "raise", ast.ClassDef: "a class",
    ast.AsyncFunctionDef: "async", ast.AsyncFor: "async", ast.AsyncWith: "async", ast.Match: "match",
    ast.Await: "await", ast.Yield: "yield", ast.YieldFrom: "yield", ast.NamedExpr: "`:=`",
    ast.FunctionDef: "a function inside it",
}  # fmt: skip
"""What Python has and a tensor program does not."""
_REFUSED_ATTRIBUTES = frozenset({"format", "format_map"})
"""Methods of strings that walk from attribute to attribute by themselves."""
INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"})
LITERALS = INTEGERS | {"float64"}
_LOOPS = frozenset({"grid", "serial", "parallel", "vectorized", "unroll", "thread_binding"})
_AXES = frozenset({"spatial", "reduce", "scan", "opaque", "S", "R"})
_BUFFERS = frozenset(
    {"Buffer", "match_buffer", "alloc_buffer", "sblock_alloc_buffer", "decl_buffer"}
)
_ALLOCATE = frozenset({"alloc_buffer", "sblock_alloc_buffer", "match_buffer", "decl_buffer"})
_ITERATE = frozenset(
    "all any dict enumerate filter list map max min reversed set sorted sum tuple zip".split()
)
"""Functions of Python that go through their arguments."""
_NO_VALUE = frozenset(
    {"evaluate", "reads", "writes", "where", "func_attr", "sblock_attr", "block_attr", "func_name"}
)


MOST_PARAMS = 1024
DEEPEST_STATEMENT = 90
DEEPEST_EXPRESSION = 500
"""Beyond these TVM, which walks programs by recursion in C++, ends the process."""


def too_deep(node: ast.FunctionDef) -> tuple[str, int, ast.AST] | None:
    """The first node that is nested deeper than TVM can walk: its kind, the limit, the node."""
    todo: list[tuple[ast.AST, int, int]] = [(node, 0, 0)]
    while todo:
        part, statements, expressions = todo.pop()
        if isinstance(part, (ast.For, ast.With, ast.If, ast.While)):
            statements += _loops_of(part)
        elif isinstance(part, ast.expr):
            expressions += len(part.values) - 1 if isinstance(part, ast.BoolOp) else 1
        if statements > DEEPEST_STATEMENT:
            return "loops, blocks and branches", DEEPEST_STATEMENT, part
        if expressions > DEEPEST_EXPRESSION:
            return "expressions", DEEPEST_EXPRESSION, part
        todo += ((child, statements, expressions) for child in ast.iter_child_nodes(part))
    return None


def refuse_deep(node: ast.FunctionDef, source: Source) -> None:
    """Raise `ScriptError` for a program that is nested too deeply, or has numbers and texts that nothing can take."""
    for part in ast.walk(node):
        problem = unreadable(part.value) if isinstance(part, ast.Constant) else None
        if problem is not None:
            raise ScriptError("tir-script", problem, span=source.span(part))
    if (found := too_deep(node)) is not None:
        what, most, place = found
        raise ScriptError(
            "tir-script",
            f"{what} are at most {most} inside of each other",
            span=source.span(place),
            help="bind a part of it to a name: v = …" if what == "expressions" else None,
        )


def _loops_of(node: ast.AST) -> int:
    """How many loops or scopes a statement makes."""
    match node:
        case ast.For(iter=ast.Call(args=args)):
            return max(1, len(args))
        case ast.With(items=items):
            return len(items)
    return 1


@dataclass
class Prepared:
    """A program ready for TVM's parser."""

    node: ast.FunctionDef
    names: Mapping[str, Any]
    """Values of the names that are not the program's own, `T` left out."""
    symbols: Mapping[str, str] = field(default_factory=dict)
    """Symbolic variables that shapes introduce, with their dtypes."""


def prepare(
    node: ast.FunctionDef, source: Source, values: Mapping[str, Any], symbols: Sequence[str] = ()
) -> Prepared:
    """The tree in today's spelling with the names it needs; `symbols` are declared to be int64 variables. Raises
    `ScriptError`, located."""
    return _Preparation(node, source, values, symbols).run()


class _Preparation:
    def __init__(
        self,
        node: ast.FunctionDef,
        source: Source,
        values: Mapping[str, Any],
        symbols: Sequence[str],
    ) -> None:
        self.source = source
        self.alias = _namespace(node)
        self.node = copy.deepcopy(node)
        self.node.type_params = []  # type: ignore[attr-defined]  # they are among the symbols
        self.values = {k: v for k, v in values.items() if k != self.alias}
        self.declared: dict[str, str] = dict.fromkeys(symbols, "int64")
        self.quoted: set[str] = set()

    def run(self) -> Prepared:
        node = self.node
        node.decorator_list = [self.located(_prim_func_decorator(), node)]
        if node.returns is not None and ast.unparse(node.returns) == "None":
            node.returns = None
        given = node.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs or given.defaults:
            self.refuse(
                node, "tir-script", "a tensor program takes plain parameters, without defaults"
            )
        self.refuse_syntax()
        _Rename(self.alias).visit(node)
        self.drop_symbol()
        self.read_declarations()
        self.match_handles()
        self.check_dimensions()
        names = self.resolve_names()
        scalars = {arg.arg for arg in node.args.args if not self.is_buffer(arg.annotation)}
        symbols = {n: d for n, d in self.declared.items() if n not in scalars}
        for name in self.quoted - scalars:
            if name not in names:
                symbols.setdefault(name, "int64")
        for name, value in list(names.items()):
            if isinstance(value, (TypeVar, SymVar)):
                del names[name]
                symbols.setdefault(name, "int64")
        _Modern(self, names, self.local_buffers()).visit(node)
        node.body = node.body or [self.located(ast.Pass(), node)]
        return Prepared(ast.fix_missing_locations(node), names, symbols)

    def refuse_syntax(self) -> None:
        """Refuse what a tensor program does not have, before TVM meets it."""
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
        """`new`, every part of it at the place of `where`."""
        for part in ast.walk(new):
            ast.copy_location(part, where)
        return new

    def drop_symbol(self) -> None:
        """The attribute `global_symbol` of older scripts: a program is called what its module calls it."""
        for part in ast.walk(self.node):
            if not (isinstance(part, ast.Call) and _t_attribute(part.func) == "func_attr"):
                continue
            for attrs in part.args:
                if isinstance(attrs, ast.Dict):
                    items = zip(attrs.keys, attrs.values, strict=True)
                    kept = [
                        (k, v) for k, v in items if getattr(k, "value", None) != "global_symbol"
                    ]
                    attrs.keys, attrs.values = [k for k, _ in kept], [v for _, v in kept]

    def read_declarations(self) -> None:
        """Take out `n = T.int64()`: the symbols that quoted dimensions name, or scalar parameters."""
        kept: list[ast.stmt] = []
        for stmt in self.node.body:
            found = list(_declarations(stmt))
            self.declared.update(found)
            if not found:
                kept.append(stmt)
        self.node.body = kept

    def match_handles(self) -> None:
        """`x: T.handle` with `X = T.match_buffer(x, shape, dtype)` becomes `X: T.Buffer(shape, dtype)`."""
        handles = {
            a.arg: a
            for a in self.node.args.args
            if a.annotation and ast.unparse(a.annotation) in ("T.handle", "T.handle()")
        }
        kept: list[ast.stmt] = []
        for stmt in self.node.body:
            call = stmt.value if isinstance(stmt, ast.Assign) else None
            if (
                handles
                and isinstance(call, ast.Call)
                and ast.unparse(call.func) == "T.match_buffer"
                and call.args
                and isinstance(call.args[0], ast.Name)
                and call.args[0].id in handles
                and isinstance(stmt, ast.Assign)
                and isinstance(stmt.targets[0], ast.Name)
            ):
                param = handles.pop(call.args[0].id)
                param.arg = stmt.targets[0].id
                buffer = ast.Call(_attribute("T", "Buffer"), call.args[1:], call.keywords)
                ast.copy_location(buffer.func, call.func)
                ast.copy_location(buffer.func.value, call.func)
                param.annotation = ast.copy_location(buffer, call)
            else:
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
        return (
            isinstance(annotation, (ast.Call, ast.Subscript))
            and ast.unparse(
                annotation.func if isinstance(annotation, ast.Call) else annotation.value
            )
            == "T.Buffer"
        )

    def check_dimensions(self) -> None:
        """Quoted dimensions must be expressions; their names are symbols."""
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
                _Rename(self.alias).visit(arg.annotation)
            if not self.is_buffer(arg.annotation):
                continue
            for keyword in arg.annotation.keywords if isinstance(arg.annotation, ast.Call) else ():
                if keyword.arg == "elem_offset" and isinstance(keyword.value, ast.Constant):
                    self.unquote_offset(keyword)
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
                    dtype = _t_attribute(func)
                    if name in self.quoted and dtype is not None and dtype not in INTEGERS:
                        self.refuse(
                            stmt, "tir-dtype", f"a dimension is an integer, {name} is {dtype}"
                        )

    def unquote_offset(self, keyword: ast.keyword) -> None:
        """`elem_offset="offset"`: where a buffer begins in its memory, a symbol of the program."""
        written = keyword.value
        if isinstance(written, ast.Constant) and isinstance(written.value, str):
            keyword.value = self.unquote(written, "an offset")
            for part in ast.walk(keyword.value):
                if isinstance(part, ast.Name) and part.id != "T":
                    self.declared.setdefault(part.id, "int64")

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
                    "operators of R take whole tensors; on elements there is T: T.exp(x[i])"
                    if part.id == "R"
                    else None,
                )
        for name in self.quoted:
            if isinstance(self.values.get(name), int):
                found[name] = self.values[name]
        return found

    def local_buffers(self) -> set[str]:
        """Names that are surely buffers: their subscripts are indices (those of a Python tuple are not)."""
        found = {a.arg for a in self.node.args.args if self.is_buffer(a.annotation)}
        for part in ast.walk(self.node):
            if (
                isinstance(part, ast.Assign)
                and isinstance(part.targets[0], ast.Name)
                and isinstance(part.value, ast.Call)
                and _t_attribute(part.value.func) in _ALLOCATE
            ):
                found.add(part.targets[0].id)
        return found


class _Rename(ast.NodeTransformer):
    """The namespace under whatever name it was imported becomes `T`."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id == self.alias:
            node.id = "T"
        return node


class _Modern(ast.NodeTransformer):
    """Spellings, int64 literals, and no None; see the module's text."""

    def __init__(
        self, preparation: _Preparation, names: Mapping[str, Any], buffers: set[str]
    ) -> None:
        self.refuse = preparation.refuse
        self.located = preparation.located
        self.names = names
        self.buffers = buffers
        self.has_blocks = any(
            _t_attribute(part) in ("block", "sblock") for part in ast.walk(preparation.node)
        )
        self.in_loop = 0

    def visit_Return(self, node: ast.Return) -> ast.Return:
        if node.value is not None:
            self.refuse(
                node,
                "tir-script",
                "a tensor program returns nothing: it writes its outputs",
                "give it a parameter for the output, after the inputs",
            )
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        name = _t_attribute(node)
        if name == "block" or (name or "").startswith("block_"):
            node.attr = f"s{name}"
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        computed = any(isinstance(part, ast.BinOp) for part in ast.walk(node.iter))
        self.in_loop += 1
        self.generic_visit(node)
        self.in_loop -= 1
        if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range":
            node.iter.args = [self.index(arg) for arg in node.iter.args]
            if computed and len(node.iter.args) == 1 and not node.iter.keywords:
                # a grid of one: of a range TVM subtracts the start, 0, and rearranges the extent
                grid = _attribute("T", "grid")
                for part in ast.walk(grid):
                    ast.copy_location(part, node.iter.func)
                node.iter.func = grid
        return node

    def visit_With(self, node: ast.With) -> ast.With:
        # A block's buffers are its own, whatever loops are around it.
        inside = any(
            _call_attribute(item.context_expr) in ("block", "sblock") for item in node.items
        )
        outer, self.in_loop = self.in_loop, 0 if inside else self.in_loop
        self.generic_visit(node)
        self.in_loop = outer
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if _t_attribute(node.value) == "Buffer":
            args = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return self.visit(ast.copy_location(ast.Call(node.value, args, []), node))
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self.buffers:
            if isinstance(node.slice, ast.Tuple):
                node.slice.elts = [self.literal_index(part) for part in node.slice.elts]
            else:
                node.slice = self.literal_index(node.slice)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = _t_attribute(node.func)
        if name == "alloc_buffer" and self.has_blocks and not self.in_loop:
            node.func.attr = "sblock_alloc_buffer"  # type: ignore[attr-defined]
        self.generic_visit(node)
        node.args = [arg if isinstance(arg, ast.Starred) else self.some(arg) for arg in node.args]
        if isinstance(node.func, ast.Name) and node.func.id in _ITERATE:
            node.args = [
                arg if isinstance(arg, ast.Starred) else self.wrap(ITERATED, arg)
                for arg in node.args
            ]
        if name in _LOOPS or (name == "serial" and node.args):
            node.args = [self.index(arg) for arg in node.args]
        elif name in _BUFFERS:
            at = 1 if name == "match_buffer" else 0
            node.args[at : at + 1] = [self.shape(arg) for arg in node.args[at : at + 1]]
        elif (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in _AXES
            and _t_attribute(node.func.value) == "axis"
        ):
            node.args[:1] = [self.index(arg) for arg in node.args[:1]]
        elif name in LITERALS and len(node.args) == 1 and not node.keywords:
            return self.wrap(LITERAL + str(name), node, node.args[0])
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.Starred:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = self.wrap(STARRED, node.value)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.iter = self.wrap(ITERATED, node.iter)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.FormattedValue:
        if node.format_spec is not None:
            self.refuse(node, "tir-script", "a format cannot stand in a tensor program")
        self.generic_visit(node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        node.values = [
            part if isinstance(part, ast.Constant) else self.visit(part) for part in node.values
        ]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        node.left, node.right = self.some(node.left), self.some(node.right)
        name = type(node.op).__name__
        if name not in ARITHMETIC or isinstance(node.right, ast.Constant):
            return node
        return self.wrap(OPERATOR + name, node, node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.UnaryOp:
        self.generic_visit(node)
        node.operand = self.some(node.operand)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        node.left = self.some(node.left)
        node.comparators = [self.some(part) for part in node.comparators]
        name = type(node.ops[0]).__name__
        if (
            len(node.ops) != 1
            or name not in COMPARISONS
            or isinstance(node.comparators[0], ast.Constant)
        ):
            return node
        return self.wrap(OPERATOR + name, node, node.left, node.comparators[0])

    def visit_List(self, node: ast.List) -> ast.List:
        self.generic_visit(node)
        node.elts = [self.some(part) for part in node.elts]
        return node

    def visit_Tuple(self, node: ast.Tuple) -> ast.Tuple:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.elts = [self.some(part) for part in node.elts]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        self.generic_visit(node)
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            node.value = self.some(node.value)
            if isinstance(target.value, ast.Name):
                buffer = ast.copy_location(ast.Name(target.value.id, ast.Load()), target.value)
                node.value = self.wrap(STORED, node.value, buffer, node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        match node.annotation:
            # indices are int64 here, whatever they were where this was printed
            case ast.Subscript(value=let, slice=ast.Attribute(attr="int32")) if (
                _t_attribute(let) == "let"
            ):
                node.annotation = let
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if isinstance(node.target, ast.Subscript):
            # `x[i] += v` is `x[i] = x[i] + v`, checked like that
            read = copy.deepcopy(node.target)
            read.ctx = ast.Load()
            value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
            return self.visit_Assign(ast.copy_location(ast.Assign([node.target], value), node))
        self.generic_visit(node)
        node.value = self.some(node.value)
        return node

    def some(self, node: ast.expr) -> ast.expr:
        """The operand, refused where it is None: at once where that is written, else when it is evaluated."""
        match node:
            case ast.Constant(value=None):
                return self.refuse_none(node)
            case ast.Name(id=name) if name in self.names and self.names[name] is None:
                return self.refuse_none(node)
            case ast.Call(func=func) if (name := _t_attribute(func)) is not None:
                if name in _NO_VALUE:
                    self.refuse(node, "tir-none", f"T.{name} has no value")
                return node
            case ast.Call(func=ast.Name(id=name)) if name.startswith("__relaxpy_"):
                return node
            case ast.Call() | ast.IfExp() | ast.BoolOp() | ast.NamedExpr():
                return self.wrap(CHECKED, node)
            case ast.Attribute() if not ast.unparse(node).startswith("T."):
                return self.wrap(CHECKED, node)
            case ast.Subscript(value=base) if not (
                isinstance(base, ast.Name) and base.id in self.buffers
            ):
                return self.wrap(CHECKED, node)
            case _:
                return node

    def refuse_none(self, node: ast.AST) -> NoReturn:
        self.refuse(node, "tir-none", "None is not a value of a tensor program")

    def shape(self, node: ast.expr) -> ast.expr:
        """The shape of a buffer: a literal tuple's extents, or whatever gives one."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return self.index(node)
        return self.wrap(SHAPE, node)

    def index(self, node: ast.expr) -> ast.expr:
        """An extent, or a tuple of them: literals made int64."""
        if isinstance(node, (ast.Tuple, ast.List)):
            node.elts = [self.index(part) for part in node.elts]
            return node
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node
        if isinstance(node, ast.Starred):
            return node
        if isinstance(node, ast.Name) and node.id not in self.names:
            return node
        return self.wrap(INDEX, node)

    def literal_index(self, node: ast.expr) -> ast.expr:
        """A subscript: made int64 where it is computed from literals and given values alone."""
        if isinstance(node, ast.Slice):
            for part in ("lower", "upper"):
                if getattr(node, part) is not None:
                    setattr(node, part, self.literal_index(getattr(node, part)))
            return node
        names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
        if isinstance(node, ast.Starred) or not all(name in self.names for name in names):
            return self.some(node)
        return self.wrap(INDEX, node)

    def wrap(self, function: str, node: ast.expr, *args: ast.expr) -> ast.expr:
        name = ast.copy_location(ast.Name(function, ast.Load()), node)
        return ast.copy_location(ast.Call(name, list(args) or [node], []), node)


def _namespace(node: ast.FunctionDef) -> str:
    """The name that the tensor programs' namespace has here: that of the decorator, `T.prim_func(…)`."""
    for decorator in node.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.value.id
    return "T"


def _prim_func_decorator() -> ast.expr:
    return ast.parse("T.prim_func(private=True, s_tir=True)", mode="eval").body


def _attribute(base: str, name: str) -> ast.Attribute:
    return ast.Attribute(ast.Name(base, ast.Load()), name, ast.Load())


def _t_attribute(node: ast.AST) -> str | None:
    """`name` for the expression `T.name`, else None."""
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "T"
    ):
        return node.attr
    return None


def _call_attribute(node: ast.AST) -> str | None:
    return _t_attribute(node.func) if isinstance(node, ast.Call) else None


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
        dtype = _call_attribute(call)
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
    """The shape of `T.Buffer(shape, …)` or `T.Buffer[shape, …]`."""
    if isinstance(annotation, ast.Call):
        named = [k.value for k in annotation.keywords if k.arg == "shape"]
        return annotation.args[0] if annotation.args else named[0] if named else None
    if isinstance(annotation, ast.Subscript):
        return (
            annotation.slice.elts[0]
            if isinstance(annotation.slice, ast.Tuple)
            else annotation.slice
        )
    return None
