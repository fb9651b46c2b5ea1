"""BindUnknownShapes: give every tensor of unknown shape and known rank symbolic dimensions,
checked at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.ir.annotation import Annotation, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import Function, MatchCast, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class BindUnknownShapes(Pass):
    """Insert `match_cast`s that name the dimensions of tensors whose shape is unknown (paper
    §4.1: the dynamic fallback).

    After this every tensor of known rank has dimensions, so that tensor programs can be made for
    it.

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

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return _Binder(mod).run()


class _Binder(Rebuilder):
    def start(self, function: Function) -> None:
        for param in function.params:
            known = with_dims(param.annotation, param.name)
            if known != param.annotation:
                self.span = param.span
                self.vars[param] = self.emit_match_cast(param, known, param.name)

    def binding(self, binding: VarBinding | MatchCast) -> None:
        super().binding(binding)
        last = self.bindings[-1]
        var = last.var
        if not _has_unknown(var.annotation):
            return
        known = with_dims(var.annotation, var.name)
        named = type(var)(self.fresh_name(var.name), known, span=var.span)
        self.bindings.append(MatchCast(named, var, known, span=last.span))
        self.vars[binding.var] = named


def _has_unknown(annotation: Annotation) -> bool:
    match annotation:
        case TensorType(ndim=ndim) if annotation.dims is None:
            return ndim >= 0
        case ShapeType(dims=None, ndim=ndim):
            return ndim >= 0
        case TupleType(fields=fields):
            return any(map(_has_unknown, fields))
        case _:
            return False


def with_dims(annotation: Annotation, name: str) -> Annotation:
    """The annotation with fresh symbols (`name_0`, …) for dimensions that are unknown though the
    rank is known."""
    match annotation:
        case TensorType(ndim=ndim, dtype=dtype, vdevice=vdevice) if (
            annotation.dims is None and ndim >= 0
        ):
            return TensorType([SymVar(f"{name}_{i}") for i in range(ndim)], dtype, vdevice=vdevice)
        case ShapeType(dims=None, ndim=ndim) if ndim >= 0:
            return ShapeType([SymVar(f"{name}_{i}") for i in range(ndim)])
        case TupleType(fields=fields):
            return TupleType(with_dims(item, f"{name}_{i}") for i, item in enumerate(fields))
        case _:
            return annotation
