"""Evaluation of Python's operators, literals and subscripts; the rest of expressions is in `parser_core`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from relaxpy.errors import DeduceError, RelaxError
from relaxpy.ir.annotation import (
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, SymVar, dim_op
from relaxpy.ir.expr import (
    Expr,
    GlobalVar,
    PrimValue,
    is_leaf,
)
from relaxpy.ir.index_map import IndexMap, axis
from relaxpy.ir.python_operator import is_too_large
from relaxpy.op.base import OPS
from relaxpy.op.indexing import MASK, index_tensor
from relaxpy.script import relax as namespace_r
from relaxpy.script.annotations import AnnotationFactory, as_dim
from relaxpy.script.data import TypeApplication
from relaxpy.script.describe import describe
from relaxpy.script.dims import DIM_OPERATORS, choose, compare_dims, operator_help
from relaxpy.script.parser_core import REFUSED, CoreParser
from relaxpy.script.parser_value import is_value, known_scalar, with_span

BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("subtract", operator.sub),
    ast.Mult: ("multiply", operator.mul),
    ast.Div: ("divide", operator.truediv),
    ast.FloorDiv: ("floor_divide", operator.floordiv),
    ast.Mod: ("floor_mod", operator.mod),
    ast.Pow: ("power", operator.pow),
    ast.MatMult: ("matmul", operator.matmul),
    ast.BitAnd: ("bitwise_and", operator.and_),
    ast.BitOr: ("bitwise_or", operator.or_),
    ast.BitXor: ("bitwise_xor", operator.xor),
    ast.LShift: ("left_shift", operator.lshift),
    ast.RShift: ("right_shift", operator.rshift),
}
"""Python operator → (operator of R, Python's own function for Python values)."""

COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("equal", operator.eq),
    ast.NotEq: ("not_equal", operator.ne),
    ast.Lt: ("less", operator.lt),
    ast.LtE: ("less_equal", operator.le),
    ast.Gt: ("greater", operator.gt),
    ast.GtE: ("greater_equal", operator.ge),
}

UNARY: dict[type[ast.unaryop], tuple[str, Callable[[Any], Any]]] = {
    ast.USub: ("negative", operator.neg),
    ast.UAdd: ("", operator.pos),
    ast.Invert: ("bitwise_not", operator.invert),
    ast.Not: ("logical_not", operator.not_),
}


MEMBERSHIP = (
    ("`is`", "values are never None; compare elements with =="),
    ("`in`", "write R.any(x == value)"),
)


class ExprParser(CoreParser):
    """Evaluates expressions of one function, or of a class body. Statements are parsed by `parser_statement`."""

    # Operators

    def eval_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.each(self.leaf, (node.left, node.right))
        name, python = BINARY[type(node.op)]
        if is_value(left) or is_value(right):
            return self.apply(name, node, left, right)
        left, right = known_scalar(left), known_scalar(right)
        if isinstance(left, (Dim, SymVar)) or isinstance(right, (Dim, SymVar)):
            if isinstance(left, float) or isinstance(right, float):
                return self.apply(name, node, left, right)
            function, found = DIM_OPERATORS.get(type(node.op)), None
            if function and all(isinstance(v, (Dim, SymVar, int)) for v in (left, right)):
                found = function(Dim.of(left), Dim.of(right))
            if found is None:
                self.fail("bad-value", *self.no_size(node, left, right))
            return found
        return self.python_operator(python, node, left, right)

    def no_size(self, node: ast.BinOp, left: Any, right: Any) -> tuple[str, ast.expr, str | None]:
        """Why an operator with these operands, one of which is a dimension, is no dimension: message, place, help."""
        shown = " and ".join(
            describe(v) for v in (left, right) if not isinstance(v, (Dim, SymVar, int))
        )
        if shown:
            return f"a dimension has no operator with {shown}", node, "sizes are integers"
        return f"{ast.unparse(node)} is no dimension", node, operator_help(node.op)

    def eval_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.leaf(node.operand)
        name, python = UNARY[type(node.op)]
        if is_value(value) and name and isinstance(self.annotation_of(value), PrimType):
            return self.scalar_operator(node, value)
        if is_value(value):
            return self.apply(name, node, value) if name else value
        value = known_scalar(value)
        if isinstance(value, Dim) and value.is_truth and isinstance(node.op, (ast.Not, ast.Invert)):
            return dim_op("not", value)
        return self.python_operator(python, node, value)

    def scalar_operator(self, node: ast.UnaryOp, value: Expr) -> Expr:
        """`-k` and `not k` of a scalar."""
        if isinstance(node.op, ast.USub):
            return self.apply("multiply", node, value, -1)
        annotation = self.annotation_of(value)
        if isinstance(annotation, PrimType) and annotation.dtype.is_bool:
            return self.apply("equal", node, value, False)
        return self.fail(
            "bad-value", f"this takes a bool, not {annotation}", node, "compare it: k != 0"
        )

    def eval_Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) > 1:
            self.refuse(
                "a chain of comparisons",
                node,
                "combine two comparisons: R.logical_and(a < b, b < c)",
            )
        left, right = self.each(self.leaf, (node.left, node.comparators[0]))
        op = node.ops[0]
        if type(op) not in COMPARE:
            if self.around.trusted and not (is_value(left) or is_value(right)):
                return self.python_membership(op, node, left, right)
            what, help = MEMBERSHIP[isinstance(op, (ast.In, ast.NotIn))]
            self.refuse(what, node, help)
        name, python = COMPARE[type(op)]
        if is_value(left) or is_value(right):
            return self.apply(name, node, left, right)
        left, right = known_scalar(left), known_scalar(right)
        if isinstance(left, Dim) or isinstance(right, Dim):
            if not all(isinstance(v, (Dim, SymVar, int)) for v in (left, right)):
                self.fail("bad-value", "dimensions can be compared only with integers", node)
            found = compare_dims(op, left, right)
            return found if found is None or found.value is None else bool(found.value)
        return self.python_operator(python, node, left, right)

    def python_membership(self, op: ast.cmpop, node: ast.expr, left: Any, right: Any) -> Any:
        table: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
            ast.In: lambda a, b: a in b,
            ast.NotIn: lambda a, b: a not in b,
            ast.Is: lambda a, b: a is b,
            ast.IsNot: lambda a, b: a is not b,
        }
        return self.python_operator(table[type(op)], node, left, right)

    def eval_BoolOp(self, node: ast.BoolOp) -> Any:
        values = [self.leaf(item) for item in node.values]
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        if any(map(is_value, values)):
            result = values[0]
            for value in values[1:]:
                result = self.apply(name, node, self.bound(result, node), value)
            return result
        known = [int(v) if isinstance(v, bool) else v for v in map(known_scalar, values)]
        if any(isinstance(value, (Dim, SymVar)) for value in known):
            if not all(v in (0, 1) or (isinstance(v, Dim) and v.is_truth) for v in known):
                self.fail("bad-value", "`and` and `or` take booleans, not dimensions", node)
            return reduce(partial(dim_op, name.removeprefix("logical_")), known)
        result = values[0]
        for value in values[1:]:
            result = (result and value) if isinstance(node.op, ast.And) else (result or value)
        return result

    def bound(self, value: Any, node: ast.expr) -> Any:
        return self.emit(value, node) if isinstance(value, Expr) and not is_leaf(value) else value

    def apply(self, name: str, node: ast.expr, *args: Any) -> Expr:
        """Apply an operator of R in place of a Python operator."""
        kind = OPS.get(name) or namespace_r.operators().get(name)
        if kind is None:
            self.fail("unknown-op", f"there is no operator for this: R.{name}", node)
        if any(arg is None for arg in args):
            self.fail("bad-value", "None is not a value of the program", node)
        dims = [arg.dim if isinstance(arg, SymVar) else arg for arg in args]
        try:
            return with_span(kind.make(*dims), self.span(node))
        except DeduceError as error:
            raise self.at_argument(error, node, kind) from None

    def python_operator(self, function: Callable[..., Any], node: ast.expr, *args: Any) -> Any:
        if is_too_large(function, args):
            self.fail("python-call", "the result is too large to compute while parsing", node)
        try:
            return function(*args)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        return self.fail("python-call", problem, node)

    def eval_IfExp(self, node: ast.IfExp) -> Any:
        test = known_scalar(self.eval(node.test))
        if isinstance(test, (Expr, Dim)):
            return self.choice(node, test)
        return self.eval(node.body if test else node.orelse)

    def choice(self, node: ast.IfExp, test: Expr | Dim) -> Any:
        """`a if test else b` of dimensions; elsewhere than in a function there is nothing else."""
        values = self.each(lambda part: known_scalar(self.eval(part)), (node.body, node.orelse))
        found = self.chosen_dim(node, test, values)
        if found is None:
            self.fail("statement-place", "values are chosen only inside a function", node)
        return found

    def chosen_dim(self, node: ast.IfExp, test: Expr | Dim, values: Sequence[Any]) -> Dim | None:
        """The dimension `a if test else b`; None if it is none."""
        sizes = all(isinstance(v, (Dim, SymVar, int)) for v in values)
        if not isinstance(test, Dim) or not sizes or all(isinstance(v, bool) for v in values):
            return None
        if not test.is_truth and test.value is None:
            self.fail(
                "if-condition",
                f"{test} is a number, no bool",
                node.test,
                f"compare it: {test} != 0",
            )
        return choose(test, *map(Dim.of, values))

    # Structure

    def eval_Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.items(node.elts))

    def eval_List(self, node: ast.List) -> list[Any]:
        return self.items(node.elts)

    def eval_Lambda(self, node: ast.Lambda) -> IndexMap:
        """A lambda from indices to a tuple of indices is an index map; the language has no other lambdas."""
        args = node.args
        others = (*args.kwonlyargs, *args.defaults, args.vararg, args.kwarg)
        if any(others) or not isinstance(node.body, (ast.Tuple, ast.List)):
            self.refuse(REFUSED[ast.Lambda][0], node, REFUSED[ast.Lambda][1])
        names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        outer = self.env
        self.env = {**outer, **{name: axis(a).dim for a, name in enumerate(names)}}
        try:
            return IndexMap.made(len(names), self.eval(node.body))
        finally:
            self.env = outer

    def eval_Dict(self, node: ast.Dict) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found.update(self.eval(value))
            else:
                found[self.eval(key)] = self.eval(value)
        return found

    def eval_JoinedStr(self, node: ast.JoinedStr) -> str:
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.eval(part.value)
                if is_value(value):
                    self.fail(
                        "bad-value",
                        "values of the program are not known at compile time",
                        part,
                        'to print it at run time write R.print(x, format="x = {}")',
                    )
                spec = self.eval(part.format_spec) if part.format_spec is not None else ""
                parts.append(self.python_operator(format, part, value, spec))
            else:
                parts.append(str(part.value))  # type: ignore[attr-defined]
        return "".join(parts)

    def eval_Subscript(self, node: ast.Subscript) -> Any:
        base = self.leaf(node.value)
        if isinstance(base, AnnotationFactory):
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            call = ast.Call(func=node.value, args=list(inner), keywords=[])
            return self.annotation_call(base, ast.copy_location(call, node))
        if isinstance(base, GlobalVar):
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return TypeApplication(base, tuple(self.annotation(each) for each in inner))
        if isinstance(base, Expr):
            return self.index_value(base, node)
        index = self.slice(node.slice)
        return self.python_operator(lambda b, i: b[i], node, base, index)

    def slice(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            parts = [
                None if p is None else self.eval(p) for p in (node.lower, node.upper, node.step)
            ]
            return slice(*parts)
        return self.eval(node)

    def index_tensor(self, base: Expr, annotation: TensorType, node: ast.Subscript) -> Expr:
        """`x[…]` of a tensor."""
        nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        items = [self.tensor_index(item) for item in nodes]
        try:
            found = index_tensor(base, annotation, items, lambda value: self.emit(value, node))
        except RelaxError as error:
            raise error.located(self.span(node.slice)) from None
        return with_span(found, self.span(node))

    def tensor_index(self, node: ast.expr) -> Any:
        """One item of a tensor's subscript: an integer or dimension, a slice of these, `...`, None, or a tensor."""
        if isinstance(node, ast.Constant) and node.value is ...:
            return ...
        if isinstance(node, ast.Slice):
            parts = (node.lower, node.upper, node.step)
            return slice(*(None if part is None else self.integer(part) for part in parts))
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        value = known_scalar(self.leaf(node))
        if isinstance(value, Expr):
            actual = self.annotation_of(value)
            if isinstance(actual, TensorType) and (actual.dtype is None or actual.dtype.is_int):
                return value
            if isinstance(actual, TensorType) and actual.dtype == "bool":
                self.fail("tensor-index", "a tensor of bools cannot be an index", node, MASK)
        return self.integer(node, value)

    def integer(self, node: ast.expr, value: Any = None) -> Dim:
        """An index: an integer, or an expression of dimensions."""
        value = known_scalar(self.leaf(node)) if value is None else value
        dim = None if isinstance(value, str) else as_dim(value)
        if dim is None and isinstance(value, Expr):
            annotation = self.annotation_of(value)
            if isinstance(annotation, PrimType) and annotation.dtype.is_int:
                dim = self.named_scalar(value, annotation.dtype, node)
        if dim is None:
            self.fail(
                "tensor-index",
                "a tensor is indexed by integers, dimensions, slices of such, or a tensor of integers",
                node,
                "indices in a list are a constant: R.const([0, 1])"
                if isinstance(node, ast.List)
                else None,
            )
        return dim

    def index_value(self, base: Expr, node: ast.Subscript) -> Expr:
        annotation = self.annotation_of(base)
        if isinstance(annotation, TensorType):
            return self.index_tensor(base, annotation, node)
        index = self.slice(node.slice)
        if isinstance(index, Dim) and index.value is not None:
            index = index.value
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
            self.fail("tuple-index", "a tuple is indexed by an integer constant", node.slice)
        if isinstance(annotation, ShapeType) and annotation.dims is not None:
            if -len(annotation.dims) <= index < len(annotation.dims):
                return PrimValue(annotation.dims[index], span=self.span(node))
            self.fail("tuple-index", f"index {index} is out of range for {annotation}", node.slice)
        if not isinstance(annotation, TupleType) and type(annotation) is not ObjectType:
            self.fail("tuple-index", f"{annotation} is not a tuple", node.value)
        return self.item(base, int(index), node)
