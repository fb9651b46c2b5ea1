"""Calls that cross levels (paper §3.3, figures 4 and 5): tensor programs and library functions in
destination-passing style, and functions known by name at run time only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    ObjectType,
    TensorType,
    TupleType,
)
from relaxpy.ir.expr import Call, Expr, ExternFunc, GlobalVar, Tuple
from relaxpy.ir.op import Operator
from relaxpy.op.base import as_expr, print_attr
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal

Attr = bool | int | float | str
"""The type of an attribute of a gradient function."""


@dataclass(frozen=True)
class CrossLevelCall(Operator):
    """`op(callee, (args…), out_ty=…)`: the result is a tensor, or a tuple of tensors for several
    outputs."""

    arg_names: ClassVar[tuple[str, ...]] = ("func", "args", "out_ty", "tir_vars")
    """Names of the parameters of the call as script, in order."""

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        for out in call.ty_args:
            if not (isinstance(out, TensorType) and out.dims is not None and out.dtype is not None):
                raise DeduceError(
                    "call-out",
                    f"{self.name}: the output needs a shape and a dtype, got {out}",
                    span=call.span,
                    help='write out_ty=R.Tensor((n, 4), dtype="float32")',
                ).about("out_ty")
        return call.ty_args[0] if len(call.ty_args) == 1 else TupleType(call.ty_args)

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        outs = list(map(arg, call.ty_args))
        shown = [arg(call.args[0]), arg(call.args[1])]
        shown.append(f"out_ty={outs[0] if len(outs) == 1 else '[' + ', '.join(outs) + ']'}")
        return shown


@dataclass(frozen=True)
class CallTIR(CrossLevelCall):
    """`R.call_tir(gvar, (args…), out_ty, tir_vars)`: allocate the outputs, call the tensor program with arguments,
    outputs and symbolic variables, and return the outputs (figure 5). args = (GlobalVar, Tuple[, ShapeExpr of
    tir_vars])."""

    name: ClassVar[str] = "call_tir"

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        shown = list(super().print_args(call, arg))
        if len(call.args) > 2:
            shown.append(f"tir_vars={arg(call.args[2])}")
        return shown


@dataclass(frozen=True)
class CallTIRWithGrad(CallTIR):
    """`R.call_tir_with_grad(gvar, (args…), out_ty, te_grad_name="…", te_grad_kwargs={…})`: `call_tir` with a registered
    gradient: the name of the function that makes the tensor programs of the gradient, and keyword arguments for that
    function."""

    name: ClassVar[str] = "call_tir_with_grad"
    te_grad_name: str = ""
    te_grad_kwargs: tuple[tuple[str, Attr], ...] = ()

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        shown = [*super().print_args(call, arg), f"te_grad_name={print_attr(self.te_grad_name)}"]
        if self.te_grad_kwargs:
            items = [f"{print_attr(k)}: {print_attr(v)}" for k, v in self.te_grad_kwargs]
            shown.append(f"te_grad_kwargs={{{', '.join(items)}}}")
        return shown


@dataclass(frozen=True)
class CallTIRInplace(CrossLevelCall):
    """`R.call_tir_inplace(gvar, (args…), inplace_indices=[…], out_ty, tir_vars)`: call a tensor program that updates
    arguments in place. Output i is the memory of argument `inplace_indices[i]`; -1 is an output that is allocated, and
    passed after the arguments. args are those of `CallTIR`.

    As a value the result is new, and the argument is unchanged: if the argument is still used elsewhere, lowering
    copies it first. Only an impure function (`pure=False`) can update its caller's memory: a parameter that is not used
    again is updated in place. That is how state is kept (docs/from_tvm.md).
    """

    name: ClassVar[str] = "call_tir_inplace"
    inplace_indices: tuple[int, ...] = (0,)

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        args = call.args[1] if len(call.args) > 1 else None
        count = len(args.fields) if isinstance(args, Tuple) else 0
        taken = [i for i in self.inplace_indices if i != -1]
        if len(self.inplace_indices) != len(call.ty_args):
            raise self.wrong(
                call,
                f"{len(self.inplace_indices)} indices for {len(call.ty_args)} outputs",
                "inplace_indices has one entry for each output: the index of an argument, or -1",
            )
        if any(not 0 <= i < count for i in taken) or len(set(taken)) != len(taken):
            problem = f"{list(self.inplace_indices)} must be different arguments of {count}, or -1"
            raise self.wrong(call, problem)
        if not taken:
            raise self.wrong(call, "no output is updated in place", "write R.call_tir(…)")
        args = expect(Tuple, args)
        for index, out in zip(self.inplace_indices, call.ty_args, strict=True):
            if index < 0:
                continue
            given = annotation_of(args.fields[index])
            if accepts(out, given, None, equal) is not Verdict.YES:
                raise self.wrong(
                    call,
                    f"output {out} cannot use the memory of argument {index}, which is {given}",
                    "shape and dtype must be equal; use R.match_cast for an unknown shape",
                )
        return super().deduce_call(call, annotation_of)

    def wrong(self, call: Call, problem: str, help: str | None = None) -> DeduceError:
        return DeduceError("call-out", f"{self.name}: {problem}", span=call.span, help=help)

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        shown = list(super().print_args(call, arg))
        shown.append(f"inplace_indices={list(self.inplace_indices)}")
        if len(call.args) > 2:
            shown.append(f"tir_vars={arg(call.args[2])}")
        return shown


@dataclass(frozen=True)
class CallDPSLibrary(CrossLevelCall):
    """`R.call_dps_library("name", (args…), out_ty)` (`call_dps_packed` in TVM): call a registered library function in
    destination-passing style, outputs last. args = (ExternFunc, Tuple)."""

    name: ClassVar[str] = "call_dps_library"


@dataclass(frozen=True)
class CallPurePacked(Operator):
    """`R.call_pure_packed("name", args…, ty_args=…)`: call a registered function without side effects. args =
    (ExternFunc, arg…)."""

    name: ClassVar[str] = "call_pure_packed"

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        return packed_result(call)

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        return print_packed_args(call.args, call.ty_args, arg)


@dataclass(frozen=True)
class CallInplacePacked(CallPurePacked):
    """`R.call_inplace_packed("name", args…, inplace_indices=[…], ty_args=…)`: call a registered function that changes
    these arguments in place and returns them. The program's author guarantees that nothing else uses them, as in TVM.
    args = (ExternFunc, arg…)."""

    name: ClassVar[str] = "call_inplace_packed"
    inplace_indices: tuple[int, ...] = (0,)

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        count = len(call.args) - 1
        if any(not -1 <= i < count for i in self.inplace_indices):
            raise DeduceError(
                "call-out",
                f"{self.name}: {list(self.inplace_indices)} must be indices of {count} arguments, or -1",
                span=call.span,
            )
        return super().deduce_call(call, annotation_of)

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        shown = [arg(a) for a in call.args]
        shown.append(f"inplace_indices={list(self.inplace_indices)}")
        return [*shown, *print_packed_args((), call.ty_args, arg)]


@dataclass(frozen=True)
class CallBuiltin(CallPurePacked):
    """`R.call_builtin_with_ctx("vm.builtin.name", (args…), ty_args=…)`: call a builtin of the virtual machine, as TVM's
    lowered programs do. args = (ExternFunc, arg…)."""

    name: ClassVar[str] = "call_builtin_with_ctx"

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        function, *rest = call.args
        return [arg(function), arg(Tuple(tuple(rest))), *print_packed_args((), call.ty_args, arg)]


@dataclass(frozen=True)
class InvokeClosure(Operator):
    """`R.invoke_closure(f, (args…), ty_args=…)`: call a function value. `ty_args` is the annotation of the result; it
    is checked at run time if the function's type does not give it. args = (function value, arg…)."""

    name: ClassVar[str] = "invoke_closure"
    pure: ClassVar[bool] = False

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        callee = annotation_of(call.args[0])
        if not isinstance(callee, (CallableType, ObjectType)):
            raise DeduceError("call-callee", f"{callee} cannot be called", span=call.span)
        return packed_result(call)

    def print_args(self, call: Call, arg: Callable[[Any], str]) -> Sequence[str]:
        function, *rest = call.args
        return [arg(function), arg(Tuple(tuple(rest))), *print_packed_args((), call.ty_args, arg)]


@dataclass(frozen=True)
class InvokePureClosure(InvokeClosure):
    """`R.invoke_pure_closure(f, (args…), ty_args=…)`: `invoke_closure` of a function without side effects."""

    name: ClassVar[str] = "invoke_pure_closure"
    pure: ClassVar[bool] = True


def packed_result(call: Call) -> Annotation:
    """The annotation of the result of a call by name: its `ty_args` (several: a tuple), or `R.Object` if there are
    none."""
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


def _args_tuple(args: Any) -> Tuple:
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
    return _cross_level(CallTIR(), func, args, out_ty, tir_vars)


def call_tir_with_grad(
    func: GlobalVar,
    args: Any,
    out_ty: Annotation | Sequence[Annotation],
    te_grad_name: str,
    te_grad_kwargs: Mapping[str, Attr] | None = None,
    tir_vars: Any = None,
) -> Call:
    """Call a tensor program with a registered gradient function."""
    op = CallTIRWithGrad(te_grad_name, tuple((te_grad_kwargs or {}).items()))
    return _cross_level(op, func, args, out_ty, tir_vars)


def call_tir_inplace(
    func: GlobalVar,
    args: Any,
    inplace_indices: Sequence[int],
    out_ty: Annotation | Sequence[Annotation],
    tir_vars: Any = None,
) -> Call:
    """Call a tensor program that writes outputs into the memory of arguments."""
    return _cross_level(CallTIRInplace(tuple(inplace_indices)), func, args, out_ty, tir_vars)


def _cross_level(op: Operator, func: GlobalVar, args: Any, out_ty: Any, tir_vars: Any) -> Call:
    extra = () if tir_vars is None else (as_expr(tir_vars),)
    return Call(op, (func, _args_tuple(args), *extra), _outputs(out_ty))


def call_dps_library(name: str, args: Any, out_ty: Annotation | Sequence[Annotation]) -> Call:
    """Call a registered library function in destination-passing style."""
    return Call(CallDPSLibrary(), (ExternFunc(name), _args_tuple(args)), _outputs(out_ty))


def call_packed(name: str, *args: Any, ty_args: Annotation | Sequence[Annotation] = ()) -> Call:
    """Call a registered function, which may have side effects."""
    return Call(ExternFunc(name), tuple(map(as_expr, args)), _outputs(ty_args))


def call_pure_packed(
    name: str, *args: Any, ty_args: Annotation | Sequence[Annotation] = ()
) -> Call:
    """Call a registered function without side effects; such a call may be in a dataflow block."""
    return Call(CallPurePacked(), (ExternFunc(name), *map(as_expr, args)), _outputs(ty_args))


def call_inplace_packed(
    name: str,
    *args: Any,
    inplace_indices: Sequence[int] = (0,),
    ty_args: Annotation | Sequence[Annotation] = (),
) -> Call:
    """Call a registered function that changes the arguments `inplace_indices` in place and returns them."""
    op = CallInplacePacked(tuple(inplace_indices))
    return Call(op, (ExternFunc(name), *map(as_expr, args)), _outputs(ty_args))


def call_builtin(name: str, args: Any, ty_args: Annotation | Sequence[Annotation] = ()) -> Call:
    """Call a builtin of the virtual machine."""
    return Call(CallBuiltin(), (ExternFunc(name), *_args_tuple(args).fields), _outputs(ty_args))


def invoke_closure(
    func: Expr, args: Any, ty_args: Annotation | Sequence[Annotation] = (), pure: bool = False
) -> Call:
    """Call a function value; `ty_args` is the annotation of the result."""
    op = InvokePureClosure() if pure else InvokeClosure()
    return Call(op, (func, *_args_tuple(args).fields), _outputs(ty_args))
