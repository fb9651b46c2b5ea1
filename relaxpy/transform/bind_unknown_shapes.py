"""BindUnknownShapes: give every tensor of unknown shape and known rank symbolic dimensions that are checked at run
time, and every integer scalar a symbol."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.tail_calls import tail_calls
from relaxpy.errors import PassError
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import Function, If, MatchCast, ShapeExpr, Var, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import map_annotation
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class BindUnknownShapes(Pass):
    """Insert `match_cast`s that name the dimensions of tensors whose shape is unknown (paper
    §4.1: the dynamic fallback).

    After this every tensor of known rank has dimensions, so that tensor programs can be made for
    it, and no annotation has a shape variable: `R.Tensor(s)` is a tensor of the dimensions that s
    was found to hold, so that it is checked like any other. Where s is a parameter, the signature
    says these dimensions. A scalar integer (`R.Prim("int32")`) gets a symbol in the same way: it is
    a dimension then, which lives in the heap. The result of a tail call stays as it is: nothing uses it here.

    Before:
        @R.function
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(dtype="float32", ndim=1):
            lv = R.unique(x)
            gv = R.exp(lv)
            return gv
    After:
        @R.function
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(dtype="float32", ndim=1):
            lv_0 = T.int64()
            lv = R.unique(x)
            lv1 = R.match_cast(lv, R.Tensor((lv_0,), dtype="float32"))
            gv = R.exp(lv1)
            return gv
    """

    name: ClassVar[str] = "bind-unknown-shapes"
    mandatory: ClassVar[bool] = True
    prerequisites: ClassVar[tuple[str, ...]] = ("normalize",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        binder = _Binder(mod)
        return mod.map_graph_functions(lambda _, f: binder.function(f) if _is_unknown_in(f) else f)


class _Binder(Rebuilder):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.returned: set[Var] = set()
        """The names of results of tail calls in the current function."""

    def function(self, function: Function) -> Function:
        outer = self.returned
        names = tail_calls(function).values()
        self.returned = {binding.var for bindings in names for binding in bindings}
        new = super().function(self.signature(function))
        self.returned = outer
        return new

    def signature(self, function: Function) -> Function:
        """Return the function with symbols in place of the shape parameters that its signature uses as shapes: `(s:
        R.Shape(ndim=1), x: R.Tensor(s))` as `(s: R.Shape(["s_0"]), x: R.Tensor(("s_0",)))`."""
        used = _shape_variables([*(p.annotation for p in function.params), function.ret])
        if not used:
            return function
        self.span = None
        params: list[Var] = []
        for param in function.params:
            annotation = self.annotation(param.annotation)
            if param in used:
                annotation = with_dims(annotation, param.name)
            changed = annotation != param.annotation
            params.append(Var(param.name, annotation, span=param.span) if changed else param)
            self.vars[param] = params[-1]
        return dataclasses.replace(
            function, params=tuple(params), ret=self.annotation(function.ret)
        )

    def annotation(self, annotation: Annotation) -> Annotation:
        """Return the annotation with the dimensions of its shape variables."""
        return map_annotation(annotation, lambda dim: dim, self.dims_of)

    def dims_of(self, shape: Var) -> ShapeExpr:
        """The dimensions of a shape variable."""
        known = self.vars.get(shape, shape)
        if not isinstance(known, Var) or not isinstance(known.annotation, ShapeType):
            raise AssertionError(f"{shape} is no shape")
        if known.annotation.dims is None:
            raise PassError(
                "unknown-rank",
                f"the rank of {shape.name} must be known for a tensor of this shape",
                span=self.span or shape.span,
                help=f"declare it: {shape.name}: R.Shape(ndim=…)",
            )
        return ShapeExpr(known.annotation.dims)

    def start(self, function: Function) -> None:
        for param in function.params:
            known = with_dims(param.annotation, param.name)
            if known != param.annotation:
                self.span = param.span
                self.vars[param] = self.emit_match_cast(param, known, param.name)

    def binding(self, binding: VarBinding | MatchCast) -> None:
        original = binding.var
        if isinstance(binding, MatchCast):
            annotation = self.annotation(binding.annotation)
            if annotation != binding.annotation:
                var = type(original)(original.name, annotation, span=original.span)
                self.vars[original] = var
                binding = MatchCast(var, binding.value, annotation, span=binding.span)
        super().binding(binding)
        last = self.bindings[-1]
        var = last.var
        if not _has_unknown(var.annotation) or original in self.returned:
            return
        known = with_dims(var.annotation, var.name)
        named = type(var)(self.fresh_name(var.name), known, span=var.span)
        self.bindings.append(MatchCast(named, var, known, span=last.span))
        self.vars[original] = named


COUNTED = ("int64", "int32", "int16", "int8", "uint32", "uint16", "uint8")
"""Dtypes of scalars that a symbol can represent."""


def _shape_variables(annotations: Iterable[Annotation]) -> set[Var]:
    """The variables used as tensor shapes in these annotations."""
    found: set[Var] = set()

    def use(var: Var) -> Var:
        found.add(var)
        return var

    for annotation in annotations:
        map_annotation(annotation, lambda dim: dim, use)
    return found


def _is_unknown_in(function: Function) -> bool:
    """Does the function have an unknown shape of known rank, or a shape held by a variable, that needs symbols?"""
    if any(map(_is_open, [*(param.annotation for param in function.params), function.ret])):
        return True
    waiting = [function.body]
    while waiting:
        for binding in waiting.pop().bindings:
            value = binding.value
            if _is_open(binding.var.annotation) or isinstance(value, Function):
                return True
            if isinstance(binding, MatchCast) and _is_open(binding.annotation):
                return True
            if isinstance(value, If):
                waiting += (value.then, value.otherwise)
    return False


def _is_open(annotation: Annotation) -> bool:
    return _has_unknown(annotation) or bool(_shape_variables([annotation]))


def _has_unknown(annotation: Annotation) -> bool:
    match annotation:
        case TensorType(ndim=ndim) if annotation.dims is None:
            return ndim >= 0
        case ShapeType(dims=None, ndim=ndim):
            return ndim >= 0
        case PrimType(dtype=dtype, value=None):
            return dtype in COUNTED
        case TupleType():
            return any(map(_has_unknown, annotation.leaf_types))
        case _:
            return False


def with_dims(annotation: Annotation, name: str) -> Annotation:
    """Return the annotation with fresh symbols (`name_0`, …) for the dimensions of a shape of known rank whose sizes
    are unknown."""
    match annotation:
        case TensorType(ndim=ndim, dtype=dtype, vdevice=vdevice) if (
            annotation.dims is None and ndim >= 0
        ):
            return TensorType([SymVar(f"{name}_{i}") for i in range(ndim)], dtype, vdevice=vdevice)
        case ShapeType(dims=None, ndim=ndim) if ndim >= 0:
            return ShapeType([SymVar(f"{name}_{i}") for i in range(ndim)])
        case PrimType(dtype=dtype, value=None) if dtype in COUNTED:
            return PrimType(dtype, SymVar(f"{name}_", signed=True))
        case TupleType(fields=fields):
            return TupleType(with_dims(item, f"{name}_{i}") for i, item in enumerate(fields))
        case _:
            return annotation
