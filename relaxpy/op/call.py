"""Calls that cross levels (paper §3.3, figures 4 and 5): tensor programs and library functions in
destination-passing style, and functions known by name at run time only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import Annotation, ObjectType, TensorType, TupleType
from relaxpy.ir.expr import Call, Expr, ExternFunc, GlobalVar, Tuple
from relaxpy.ir.op import Operator
from relaxpy.op.base import as_expr


@dataclass(frozen=True)
class _CrossLevelCall(Operator):
    """`op(callee, (args…), out_ty=…)`: the result is a tensor, or a tuple of tensors for several
    outputs."""

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        for out in call.ty_args:
            if not (isinstance(out, TensorType) and out.dims is not None and out.dtype is not None):
                raise DeduceError(
                    "call-out",
                    f"{self.name}: the output needs a shape and a dtype, got {out}",
                    span=call.span,
                    help='write out_ty=R.Tensor((n, 4), dtype="float32")',
                )
        return call.ty_args[0] if len(call.ty_args) == 1 else TupleType(call.ty_args)

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        outs = list(map(arg, call.ty_args))
        shown = [arg(call.args[0]), arg(call.args[1])]
        shown.append(f"out_ty={outs[0] if len(outs) == 1 else '[' + ', '.join(outs) + ']'}")
        return shown


@dataclass(frozen=True)
class CallTIR(_CrossLevelCall):
    """`R.call_tir(gvar, (args…), out_ty, tir_vars)`: allocate the outputs, call the tensor
    program with arguments, outputs and symbolic variables, give the outputs (figure 5). args =
    (GlobalVar, Tuple[, ShapeExpr of tir_vars])."""

    name: ClassVar[str] = "call_tir"

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        shown = list(super().print_args(call, arg))
        if len(call.args) > 2:
            shown.append(f"tir_vars={arg(call.args[2])}")
        return shown


@dataclass(frozen=True)
class CallDPSLibrary(_CrossLevelCall):
    """`R.call_dps_library("name", (args…), out_ty)` (`call_dps_packed` in TVM): the same with a
    registered library function, outputs last. args = (ExternFunc, Tuple)."""

    name: ClassVar[str] = "call_dps_library"


@dataclass(frozen=True)
class CallPurePacked(Operator):
    """`R.call_pure_packed("name", args…, ty_args=…)`: a registered function without side effects.
    args = (ExternFunc, arg…)."""

    name: ClassVar[str] = "call_pure_packed"

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        return packed_result(call)

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        return print_packed_args(call.args, call.ty_args, arg)


def packed_result(call: Call) -> Annotation:
    """What a call by name gives: what the call says (several annotations: a tuple), else
    anything."""
    if not call.ty_args:
        return ObjectType()
    return call.ty_args[0] if len(call.ty_args) == 1 else TupleType(call.ty_args)


def print_packed_args(
    args: Sequence[Expr], ty_args: Sequence[Annotation], arg: Callable[[Any], str]
) -> list[str]:
    """Arguments of `call_packed` and `call_pure_packed` as script."""
    shown = [arg(a) for a in args]
    if ty_args:
        types = list(map(arg, ty_args))
        shown.append(f"ty_args={types[0] if len(types) == 1 else '(' + ', '.join(types) + ',)'}")
    return shown


def _args_tuple(args: Any) -> Expr:
    value = (
        as_expr(args) if not isinstance(args, (tuple, list)) else Tuple(tuple(map(as_expr, args)))
    )
    if isinstance(value, Tuple):
        return value
    return Tuple((value,))


def _outputs(out_ty: Annotation | Sequence[Annotation]) -> tuple[Annotation, ...]:
    return (out_ty,) if isinstance(out_ty, Annotation) else tuple(out_ty)


def call_tir(
    func: GlobalVar, args: Any, out_ty: Annotation | Sequence[Annotation], tir_vars: Any = None
) -> Call:
    """Call a tensor program in destination-passing style."""
    extra = () if tir_vars is None else (as_expr(tir_vars),)
    return Call(CallTIR(), (func, _args_tuple(args), *extra), _outputs(out_ty))


def call_dps_library(name: str, args: Any, out_ty: Annotation | Sequence[Annotation]) -> Call:
    """Call a registered library function in destination-passing style."""
    return Call(CallDPSLibrary(), (ExternFunc(name), _args_tuple(args)), _outputs(out_ty))


def call_packed(name: str, *args: Any, ty_args: Annotation | Sequence[Annotation] = ()) -> Call:
    """Call a registered function, which may have side effects."""
    return Call(ExternFunc(name), tuple(map(as_expr, args)), _outputs(ty_args))


def call_pure_packed(
    name: str, *args: Any, ty_args: Annotation | Sequence[Annotation] = ()
) -> Call:
    """Call a registered function without side effects: it may stand in a dataflow block."""
    return Call(CallPurePacked(), (ExternFunc(name), *map(as_expr, args)), _outputs(ty_args))
