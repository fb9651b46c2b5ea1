"""Values of the reference interpreter beside annotations: does this value fit, and which symbols
does it bind?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

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
from relaxpy.ir.expr import Var
from relaxpy.op.base import Requirement
from relaxpy.runtime.tensor import Shape
from relaxpy.shape.solve import solve_linear

Value: TypeAlias = Any


@dataclass
class Scope:
    """What names stand for in one activation of a function."""

    vars: dict[Var, Value] = field(default_factory=dict)
    syms: dict[SymVar, int] = field(default_factory=dict)

    def inner(self) -> Scope:
        """A scope that sees this one."""
        return Scope(dict(self.vars), dict(self.syms))


def type_of_value(value: Value) -> Annotation:
    """The finest annotation of a value."""
    match value:
        case np.ndarray() | np.generic():
            return TensorType(np.shape(value), DType(value.dtype))
        case Shape():
            return ShapeType(value)
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


def check_requirements(requirements: Sequence[Requirement], scope: Scope) -> None:
    """Raise for a relation that deduction left to run time and that does not hold."""
    for requirement in requirements:
        if not requirement.condition.evaluate(scope.syms):
            raise RuntimeCheckError("check", requirement.message)


def describe(value: Value) -> str:
    """What a value is, in the words of annotations."""
    if isinstance(value, np.ndarray):
        return f'R.Tensor({value.shape}, dtype="{value.dtype}")'
    if isinstance(value, Shape):
        return f"R.Shape({list(value)})"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"the {type(value).__name__} {value!r}"


class Checks:
    """Matches values with annotations, binding the symbols that are new; relations are checked
    once all are bound."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.later: list[tuple[Dim, int, str, Span | None]] = []

    def match(self, annotation: Annotation, value: Value, what: str, span: Span | None) -> None:
        """Check kind, rank and dtype; bind symbols that stand alone; leave the other dimensions
        to `finish`."""

        def fail(why: str) -> None:
            raise RuntimeCheckError(
                "check", f"{what}: {why}", span=span, notes=[f"its annotation is {annotation}"]
            )

        match annotation:
            case TensorType():
                if not isinstance(value, (np.ndarray, np.generic)):
                    fail(f"expected a tensor, got {describe(value)}")
                if annotation.dtype is not None and value.dtype != annotation.dtype.numpy:
                    fail(f"the element type is {value.dtype}, not {annotation.dtype}")
                dims = annotation.dims
                if isinstance(annotation.shape, Var) and annotation.shape in self.scope.vars:
                    dims = tuple(map(Dim.of, self.scope.vars[annotation.shape]))
                self.sizes(dims, annotation.ndim, value.shape, what, span, fail)
            case ShapeType():
                if not isinstance(value, Shape):
                    fail(f"expected a shape, got {describe(value)}")
                self.sizes(annotation.dims, annotation.ndim, value, what, span, fail)
            case TupleType(fields=fields):
                if (
                    not isinstance(value, tuple)
                    or isinstance(value, Shape)
                    or len(value) != len(fields)
                ):
                    fail(f"expected a tuple of {len(fields)}, got {describe(value)}")
                for item, kind in zip(value, fields, strict=True):
                    self.match(kind, item, what, span)
            case PrimType(value=known):
                if not isinstance(value, (bool, int, float, np.generic)):
                    fail(f"expected a scalar, got {describe(value)}")
                if known is not None:
                    self.size(known, int(value), what, span)
            case CallableType():
                if not callable(value):
                    fail(f"expected a function, got {describe(value)}")
            case _:
                pass

    def sizes(
        self, dims: tuple[Dim, ...] | None, ndim: int, sizes: Sequence[int], what: str, span: Span | None,
        fail: Callable[[str], None],
    ) -> None:  # fmt: skip
        if ndim >= 0 and len(sizes) != ndim:
            fail(f"it has {len(sizes)} dimensions, not {ndim}")
        for dim, size in zip(dims or (), sizes, strict=False):
            self.size(dim, int(size), what, span)

    def size(self, dim: Dim, size: int, what: str, span: Span | None) -> None:
        symbol = dim.symbol
        if symbol is not None and symbol not in self.scope.syms:
            self.scope.syms[symbol] = size
        else:
            self.later.append((dim, size, what, span))

    def finish(self) -> None:
        """Solve for symbols that never stand alone, then check every relation."""
        for dim, size, _, _ in self.later:
            unknown = [var for var in dim.vars if var not in self.scope.syms]
            if len(unknown) == 1:
                solution = solve_linear(dim, Dim.of(size), unknown[0])
                if solution is not None:
                    self.scope.syms[unknown[0]] = solution.evaluate(self.scope.syms)
        for dim, size, what, span in self.later:
            wanted = dim.evaluate(self.scope.syms)
            if wanted != size:
                text = f"{wanted}" if dim.value is not None else f"{dim} = {wanted}"
                raise RuntimeCheckError(
                    "check", f"{what}: a dimension is {size}, not {text}", span=span
                )


def check_fits(
    annotation: Annotation, value: Value, scope: Scope, what: str, span: Span | None
) -> None:
    """Raise unless a value fits an annotation whose symbols are bound; what mentions others is
    not compared."""
    inner = Scope(scope.vars, dict(scope.syms))
    checks = Checks(inner)
    checks.match(annotation, value, what, span)
    checks.later = [c for c in checks.later if all(var in inner.syms for var in c[0].vars)]
    checks.finish()
