"""Compares values of the reference interpreter with annotations, and binds symbols to sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from relaxpy.backend.int_expr import int_expr
from relaxpy.build.data_types import pattern_of
from relaxpy.errors import RuntimeCheckError, Span
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr, Function, PrimValue, ShapeExpr, Var
from relaxpy.ir.visitor import map_annotation
from relaxpy.runtime.bytecode import (
    IntExpr,
)
from relaxpy.runtime.data import Data
from relaxpy.runtime.integers import evaluate, int64, problem_of
from relaxpy.runtime.patterns import describe, explain, fits
from relaxpy.runtime.tensor import Shape, tensor_at
from relaxpy.shape.bounds import requirements
from relaxpy.shape.solve import solve_linear
from relaxpy.transform.lower_shapes import position

Value: TypeAlias = Any


@dataclass
class Scope:
    """The values of variables and symbols in one activation of a function."""

    vars: dict[Var, Value] = field(default_factory=dict[Var, Value])
    syms: dict[SymVar, int] = field(default_factory=dict[SymVar, int])
    function: str = ""
    """The name of the function."""
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The function's attributes, which may declare bounds of symbols."""
    definition: Function | None = None
    """The function."""

    def inner(self) -> Scope:
        """A nested scope that can see this one."""
        return Scope(dict(self.vars), dict(self.syms), self.function, self.attrs)

    def dim(self, dim: Dim) -> int:
        """The value of a dimension, computed as in the virtual machine (`relaxpy.runtime.integers`).

        Raises: RuntimeCheckError (`shape-arithmetic`) for a division by zero or an overflow of 64 bits.
        """
        expr, symbols = _formula(dim)
        try:
            return int64(evaluate(expr, lambda slot: self.syms[symbols[slot]]))
        except ArithmeticError as error:
            raise RuntimeCheckError(
                "shape-arithmetic",
                f"{self.function}: a dimension cannot be computed: {problem_of(error)}",
            ) from None

    def exact(self, dim: Dim) -> int:
        """The value of a dimension as an integer of arbitrary precision. Raises like `dim` for a division by zero."""
        try:
            return dim.evaluate(self.syms)
        except ArithmeticError:
            return self.dim(dim)

    def wrapped(self, expr: Expr) -> Any:
        """The value of an operator's shape or scalar argument that contains symbols: indices and sizes with arbitrary
        precision, a scalar modulo 2**64."""
        match expr:
            case ShapeExpr(dims=dims):
                return Shape(map(self.exact, dims))
            case PrimValue(value=Dim() as value) if value.value is None:
                return (self.exact(value) + (1 << 63)) % (1 << 64) - (1 << 63)
            case PrimValue(value=Dim() as value):
                return value.value
            case _:
                raise AssertionError(f"{expr} is no shape and no scalar")

    def sizes(self, dims: Sequence[Dim]) -> Shape:
        """The value of a shape. Raises RuntimeCheckError for a negative size."""
        found: list[int] = []
        for dim in dims:
            found.append(self.dim(dim))
            if found[-1] < 0:
                message = f"{self.function}: the dimension {dim} is negative"
                raise RuntimeCheckError("check", message)
        return Shape(found)


@lru_cache(4096)
def _formula(dim: Dim) -> tuple[IntExpr, tuple[SymVar, ...]]:
    """A dimension as a formula of the bytecode, and the symbols of its slots."""
    symbols = dim.vars
    return int_expr(dim, {symbol.dim: slot for slot, symbol in enumerate(symbols)}), symbols


def is_integers(expr: Expr) -> bool:
    """Whether this is a shape, or an integer scalar."""
    return isinstance(expr, ShapeExpr) or (
        isinstance(expr, PrimValue) and isinstance(expr.value, Dim)
    )


def type_of_value(value: Value) -> Annotation:
    """The most precise annotation of a value."""
    match value:
        case np.ndarray() | np.generic():
            return TensorType(np.shape(value), DType(value.dtype))
        case Shape():
            return ShapeType(value)
        case Data():
            return ObjectType()
        case tuple():
            return TupleType(map(type_of_value, value))
        case bool():
            return PrimType("bool")
        case int():
            return PrimType("int64", value)
        case float():
            return PrimType("float32")
        case _:
            return CallableType(pure=False) if callable(value) else ObjectType()


def as_number(value: Any, dtype: str) -> Value:
    """A Python scalar for a value of `dtype`."""
    kind = DType(dtype)
    if kind.is_bool:
        return bool(value)
    return int(value) if kind.is_int else float(value)


def shown(value: Value) -> Any:
    """A value in the form that the runtime describes: arrays as tensors without memory."""
    if isinstance(value, (np.ndarray, np.generic)):
        return tensor_at(0, np.shape(value), str(value.dtype), None)
    if isinstance(value, tuple) and not isinstance(value, Shape | Data):
        return tuple(map(shown, value))
    return value


@dataclass(frozen=True)
class Subject:
    """The checked value, in the terms of the virtual machine's errors."""

    function: str
    what: str
    """"parameter", "return value", "match_cast", "result" (of a function with an unknown result type) or "binding"."""
    name: str
    annotation: Annotation
    span: Span | None

    def error(self, reason: str, *notes: str) -> RuntimeCheckError:
        annotated = f"{self.name} is annotated {self.annotation}"
        message = f"{self.function}: {self.what} {self.name}: {reason}"
        return RuntimeCheckError("check", message, span=self.span, notes=[annotated, *notes])


@dataclass(frozen=True)
class _Relation:
    """The actual dimension must equal the annotation's."""

    subject: Subject
    annotation: Annotation
    """The annotation of the subject, with dimensions in place of shape variables."""
    index: int
    came: int
    expected: Dim


class Checks:
    """Matches values with annotations and binds new symbols. Relations are checked once all symbols are bound. Errors
    are those of the virtual machine, in the same order."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.before = set(scope.syms)
        self.relations: list[_Relation] = []

    def match(self, subject: Subject, value: Value) -> None:
        """Checks type, rank, dtype and constant dimensions, and binds symbols that are a dimension by themselves. The
        other dimensions are left to `finish`."""
        annotation = map_annotation(subject.annotation, lambda dim: dim, self.held)
        came, pattern = shown(value), pattern_of(annotation)
        if not fits(came, pattern):
            raise subject.error(explain(came, pattern), f"the actual value is {describe(came)}")
        for index, (dim, size) in enumerate(sizes_of(annotation, value)):
            symbol = dim.symbol
            if symbol is not None and symbol not in self.scope.syms:
                self.scope.syms[symbol] = size
            elif dim.value is None or dim.value != size:
                self.relations.append(_Relation(subject, annotation, index, size, dim))

    def held(self, shape: Var) -> Var | ShapeExpr:
        """The value of a shape variable: its known dimensions, else symbols `s_0`, … for the sizes."""
        known = shape.annotation
        if isinstance(known, ShapeType) and known.dims is not None:
            return ShapeExpr(known.dims)
        if shape not in self.scope.vars:
            return shape
        sizes = self.scope.vars[shape]
        symbols = [SymVar(f"{shape.name}_{i}") for i in range(len(sizes))]
        self.scope.syms.update(zip(symbols, sizes, strict=True))
        return ShapeExpr(tuple(symbol.dim for symbol in symbols))

    def finish(self) -> None:
        """Solves for symbols that occur only in expressions, then checks every relation, and the bounds of new
        symbols."""
        progress = True
        while progress:
            progress = False
            for relation in self.relations:
                unknown = [v for v in relation.expected.vars if v not in self.scope.syms]
                if len(unknown) == 1:
                    solution = solve_linear(relation.expected, Dim.of(relation.came), unknown[0])
                    if solution is not None:
                        self.scope.syms[unknown[0]] = solution.evaluate(self.scope.syms)
                        progress = True
        for relation in self.relations:
            wanted = self.scope.dim(relation.expected)
            if wanted != relation.came:
                place = position(relation.annotation, relation.index)
                raise relation.subject.error(
                    f"dimension {place} ({relation.expected}) must be {wanted}, got {relation.came}"
                )
        new = [symbol for symbol in self.scope.syms if symbol not in self.before]
        for condition, message in requirements(self.scope.attrs, new):
            if not condition.evaluate(self.scope.syms):
                raise RuntimeCheckError("check", f"{self.scope.function}: {message}")


def sizes_of(annotation: Annotation, value: Value) -> Iterator[tuple[Dim, int]]:
    """The dimensions of an annotation, each with the actual size."""
    waiting = [(annotation, value)]
    while waiting:
        annotation, value = waiting.pop()
        match annotation:
            case TensorType(shape=tuple() as dims):
                yield from zip(dims, value.shape, strict=True)
            case ShapeType(dims=tuple() as dims):
                yield from zip(dims, value, strict=True)
            case PrimType(value=Dim() as known):
                yield known, int(value)
            case TupleType(fields=fields):
                waiting += reversed([*zip(fields, value, strict=True)])
            case _:
                pass


def check_fits(subject: Subject, value: Value, scope: Scope) -> None:
    """Raises an error unless a value fits an annotation whose symbols are bound. Dimensions with other symbols are not
    compared."""
    checks = Checks(Scope(scope.vars, dict(scope.syms), scope.function))
    checks.match(subject, value)
    checks.relations = [
        r for r in checks.relations if all(v in checks.scope.syms for v in r.expected.vars)
    ]
    checks.finish()
