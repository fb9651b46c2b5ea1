"""Runs operators by their `reference` on numpy, after checking the conditions that deduction left to run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from relaxpy.errors import DeduceError, RuntimeCheckError
from relaxpy.ir.annotation import (
    Annotation,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    Expr,
    PrimValue,
    Tuple,
    Var,
)
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.runtime.tensor import Shape
from relaxpy.testing.memory import memory_for
from relaxpy.testing.values import (
    Scope,
    Value,
    as_number,
    sizes_of,
    type_of_value,
)
from relaxpy.transform.bind_unknown_shapes import with_dims

Perturbation: TypeAlias = Callable[[np.ndarray], np.ndarray]


class References:
    """Runs the operators of one module. `perturb(array)` replaces each float array that an operator computes."""

    def __init__(self, mod: IRModule, perturb: Perturbation | None = None) -> None:
        self.mod = mod
        self.perturb = perturb
        self.deduced: dict[tuple[Op, tuple[Annotation, ...]], Annotation] = {}
        """The result annotation of an operator by the annotations of its arguments."""

    def run(self, op: Op, call: Call, args: list[Value], scope: Scope) -> Value:
        """Runs an operator by its reference, after checking the conditions that deduction left to run time."""
        types = tuple(_concrete(arg, scope, self.mod) for arg in call.args)
        deduced = self.deduced.get((op, types))
        if deduced is None:
            deduced = self.deduced[op, types] = self.deduce(op, call, types, scope)
        given = [
            None if _left_out(op, i, a) else op.as_array(i, a, getattr(types[i], "dtype", None))
            for i, a in enumerate(args)
        ]
        with memory_for(deduced):
            result = op.reference(*given)
        if isinstance(deduced, ShapeType):
            return Shape(result)
        if isinstance(deduced, PrimType) and deduced.value is not None:
            scope.dim(deduced.value)  # raises for one that does not fit into 64 bits
        if isinstance(deduced, PrimType) and isinstance(result, (np.ndarray, np.generic)):
            return as_number(result.item(), deduced.dtype)
        return self.computed(result) if isinstance(deduced, (TensorType, TupleType)) else result

    def computed(self, result: Any) -> Value:
        """Converts the result of an operator's reference: compact arrays, perturbed if requested."""
        if isinstance(result, (tuple, list)):
            return tuple(map(self.computed, result))
        if not isinstance(result, (np.ndarray, np.generic)):
            return result
        array = np.ascontiguousarray(result).reshape(np.shape(result))
        inexact = self.perturb is not None and DType(array.dtype).is_float
        return self.perturb(array) if self.perturb is not None and inexact else array

    def deduce(self, op: Op, call: Call, types: Sequence[Annotation], scope: Scope) -> Annotation:
        """The result's annotation with all symbols known. Checks the conditions that deduction left to run time."""
        known = dict(zip(map(id, call.args), types, strict=True))
        deduction = Deduction(op, call, lambda e: known[id(e)])
        try:
            deduced = deduction.run()
        except DeduceError as error:
            message = self.unmet(op, call, scope)
            if not message:
                self.check_sizes(call, scope)
            raise RuntimeCheckError(
                "check", f"{scope.function}: {message or error.message}"
            ) from None
        if isinstance(deduced, TensorType) and any((d.value or 0) < 0 for d in deduced.dims or ()):
            self.check_sizes(call, scope)
        return deduced

    def check_sizes(self, call: Call, scope: Scope) -> None:
        """Raises an error for a result with a negative size, in terms of the program's symbols."""
        named = deduce(call, self.mod)
        if isinstance(named, TensorType) and named.dims is not None:
            known = [d for d in named.dims if all(var in scope.syms for var in d.vars)]
            scope.sizes(known)

    def unmet(self, op: Op, call: Call, scope: Scope) -> str:
        """The first relation of dimensions that deduction left to run time and that does not hold, in terms of the
        program's symbols. Dimensions of unknown shapes are named as by `BindUnknownShapes`."""
        symbols = dict(scope.syms)
        known: dict[int, Annotation] = {}
        for arg in call.args:
            annotation = deduce(arg, self.mod)
            if isinstance(arg, Var):
                annotation = with_dims(annotation, arg.name)
                for dim, size in sizes_of(annotation, scope.vars[arg]):
                    if dim.symbol is not None:
                        symbols.setdefault(dim.symbol, size)
            known[id(arg)] = annotation
        deduction = Deduction(op, call, lambda e: known[id(e)], exact=True)
        with suppress(DeduceError):
            deduction.run()
        for requirement in deduction.requirements:
            inside = all(var in symbols for var in requirement.condition.vars)
            if inside and not requirement.condition.evaluate(symbols):
                return requirement.message
        return ""


def _left_out(op: Op, place: int, value: Value) -> bool:
    """Whether this is the empty tuple in place of an optional argument."""
    spec = op.args[place]
    empty = isinstance(value, tuple) and not isinstance(value, Shape) and not value
    return spec.optional and spec.kind is not TupleType and empty


def _concrete(expr: Expr, scope: Scope, mod: IRModule) -> Annotation:
    """The annotation of an argument from its value, with all dimensions known."""
    if not isinstance(expr, Var):
        return _bound(deduce(expr, mod), expr, scope)
    found = type_of_value(scope.vars[expr])
    known = expr.annotation
    if isinstance(found, PrimType) and isinstance(known, PrimType):
        return PrimType(known.dtype, found.value)  # a Python number has no dtype
    return found


def _bound(annotation: Annotation, expr: Expr, scope: Scope) -> Annotation:
    if isinstance(expr, Tuple):
        return TupleType(
            _bound(deduce(f), f, scope) if not isinstance(f, Var) else type_of_value(scope.vars[f])
            for f in expr.fields
        )
    if isinstance(annotation, ShapeType) and annotation.dims is not None:
        return ShapeType(d.evaluate(scope.syms) for d in annotation.dims)
    if isinstance(expr, PrimValue) and isinstance(expr.value, Dim):
        return PrimType(expr.dtype, expr.value.evaluate(scope.syms))
    if isinstance(annotation, PrimType) and annotation.value is not None:
        return PrimType(annotation.dtype, annotation.value.evaluate(scope.syms))
    return annotation
