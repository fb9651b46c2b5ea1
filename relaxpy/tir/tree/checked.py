"""Insert calls of check functions into the syntax tree of a tensor program, for errors that TVM's parser silently
accepts.

* Integer literals that are extents or indices become int64, like all indices of a program (TVM reads int32).
* Operators between dtypes that TVM would convert become functions that refuse them.
* A Python `None` that reaches C++ would end the process, so it is refused.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from relaxpy.tir.tree.namespace import attribute, t_attribute

Refuse = Callable[..., NoReturn]

INDEX = "__relaxpy_index"
"""Name, in the tree for TVM's parser, of the function that makes int64 literals."""
CHECKED = "__relaxpy_checked"
"""Name of the function that refuses None."""
SHAPE = "__relaxpy_shape"
"""Name of the function that converts a value other than a literal tuple to a shape."""
ITERATED = "__relaxpy_iterated"
"""Name of the function that refuses to iterate over an expression: TVM's never end."""
STARRED = "__relaxpy_starred"
"""Name of the function that refuses to unpack too many arguments from a sequence."""
OPERATOR = "__relaxpy_operator_"
"""Prefix of the name of an `ast` operator class: the function that applies the operator if the dtypes agree."""
STORED = "__relaxpy_stored"
"""Name of the function that refuses a value whose dtype differs from its buffer's."""
LITERAL = "__relaxpy_literal_"
"""Prefix of a dtype's name: the function that makes its literals, also those that TVM's own does not accept."""
MAGNITUDE = "__relaxpy_abs"
"""Name of `T.abs`, also of the smallest integer."""
NEGATIVE = "__relaxpy_negative"
"""Name of the function that negates a value, also an unsigned one."""

ARITHMETIC = frozenset({"Add", "Sub", "Mult", "Div", "FloorDiv", "Mod", "Pow", "LShift"})
COMPARISONS = frozenset({"Lt", "LtE", "Gt", "GtE", "Eq", "NotEq"})


INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"})
LITERALS = INTEGERS | {"float64"}
_LOOPS = frozenset({"grid", "serial", "parallel", "vectorized", "unroll", "thread_binding"})
_AXES = frozenset({"spatial", "reduce", "scan", "opaque", "S", "R"})
_BUFFERS = frozenset(
    {"Buffer", "match_buffer", "alloc_buffer", "sblock_alloc_buffer", "decl_buffer"}
)
_ITERATE = frozenset(
    "all any dict enumerate filter list map max min reversed set sorted sum tuple zip".split()
)
"""Python functions that iterate over their arguments."""
_NO_VALUE = frozenset(
    {"evaluate", "reads", "writes", "where", "func_attr", "sblock_attr", "block_attr", "func_name"}
)


class Checked(ast.NodeTransformer):
    """Inserts the calls. `names` are the names that are not the program's own, with their values; `buffers` are names
    that certainly denote buffers."""

    def __init__(self, refuse: Refuse, names: Mapping[str, Any], buffers: set[str]) -> None:
        self.refuse = refuse
        self.names = names
        self.buffers = buffers

    def visit_Return(self, node: ast.Return) -> ast.Return:
        if node.value is not None:
            self.refuse(
                node,
                "tir-script",
                "a tensor program returns nothing: it writes to output parameters",
                "add a parameter for the output, after the inputs",
            )
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        computed = any(isinstance(part, ast.BinOp) for part in ast.walk(node.iter))
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range":
            node.iter.args = [self.index(arg) for arg in node.iter.args]
            if computed and len(node.iter.args) == 1 and not node.iter.keywords:
                # a grid of one: of a range TVM subtracts the start, 0, and rearranges the extent
                grid = attribute("T", "grid")
                for part in ast.walk(grid):
                    ast.copy_location(part, node.iter.func)
                node.iter.func = grid
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self.buffers:
            if isinstance(node.slice, ast.Tuple):
                node.slice.elts = [self.literal_index(part) for part in node.slice.elts]
            else:
                node.slice = self.literal_index(node.slice)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = t_attribute(node.func)
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
            and t_attribute(node.func.value) == "axis"
        ):
            node.args[:1] = [self.index(arg) for arg in node.args[:1]]
        elif name in LITERALS and len(node.args) == 1 and not node.keywords:
            return self.wrap(LITERAL + str(name), node, node.args[0])
        elif name == "abs" and len(node.args) == 1 and not node.keywords:
            return self.wrap(MAGNITUDE, node, node.args[0])
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
            self.refuse(
                node, "tir-script", "a format specification is not part of a tensor program"
            )
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
        if name not in ARITHMETIC or (
            isinstance(node.right, ast.Constant) and node.right.value != 0
        ):
            return node
        return self.wrap(OPERATOR + name, node, node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        is_negative = isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant)
        node.operand = self.some(node.operand)
        return self.wrap(NEGATIVE, node, node.operand) if is_negative else node

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

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if isinstance(node.target, ast.Subscript):
            # `x[i] += v` is `x[i] = x[i] + v`, and checked like it
            read = copy.deepcopy(node.target)
            read.ctx = ast.Load()
            value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
            return self.visit_Assign(ast.copy_location(ast.Assign([node.target], value), node))
        self.generic_visit(node)
        node.value = self.some(node.value)
        return node

    def some(self, node: ast.expr) -> ast.expr:
        """The operand, refused if it is None: at once if it is written as None, else when it is evaluated."""
        match node:
            case ast.Constant(value=None):
                return self.refuse_none(node)
            case ast.Name(id=name) if name in self.names and self.names[name] is None:
                return self.refuse_none(node)
            case ast.Call(func=func) if (name := t_attribute(func)) is not None:
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
        """The shape of a buffer: the extents of a literal tuple, or an expression that returns a shape."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return self.index(node)
        return self.wrap(SHAPE, node)

    def index(self, node: ast.expr) -> ast.expr:
        """An extent, or a tuple of extents, with literals converted to int64."""
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
        """A subscript, converted to int64 if it is computed only from literals and given values."""
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
