"""Calls in `forward` of tensor programs, functions of te, and functions of libraries.

    @T.prim_func
    def increment(x: T.Buffer(("n",), "float32")): ...

    y = op.call_tir_inplace(increment, (self.counts,), inplace_indices=[0])

A call that updates an argument of the function, or a buffer, in place makes the function impure: its caller's memory
is written. Later uses of the buffer in `forward` mean the updated one; what else was updated goes on as the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relaxpy.errors import RelaxError
from relaxpy.ir import Call, Constant, Dim, Expr
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.array import as_array
from relaxpy.ir.module import TensorProgram
from relaxpy.nn import spec
from relaxpy.nn.construction import Construction, caller_span, mistake
from relaxpy.nn.parameter import Buffer, Parameter
from relaxpy.nn.tensor import Value
from relaxpy.op import call as ir_call
from relaxpy.op.base import as_expr
from relaxpy.op.deduce import deduce


def call_tir(
    program: TensorProgram, args: Any, out_ty: Any, tir_vars: Any = None, name: str = "program"
) -> Any:
    """Call a tensor program (`@T.prim_func`) that writes new outputs: a `Tensor`, or a tuple of them. `out_ty` is the
    spec of the output, or a list of several; `tir_vars` are the integers that the program takes after its buffers.
    `name` is its name in the module."""
    gvar = Construction.current().program(_program(program), name)
    call = ir_call.call_tir(gvar, as_arguments(args), _outputs(out_ty), _integers(tir_vars))
    return _emit(call, name)


def call_tir_inplace(
    program: TensorProgram,
    args: Any,
    inplace_indices: Sequence[int] = (0,),
    out_ty: Any = None,
    tir_vars: Any = None,
    name: str = "program",
) -> Any:
    """Call a tensor program that updates arguments in place: those of `inplace_indices`, in the order of the outputs,
    where -1 is an output of its own. `out_ty` may be left out if all outputs are in place. The result is the updated
    value; the argument is not used any more (UsageError `update-lost` if it is)."""
    values = _sequence(args)
    indices = [int(i) for i in inplace_indices]
    for i in indices:
        given = values[i] if 0 <= i < len(values) else None
        if isinstance(given, Parameter) and not isinstance(given, Buffer):
            raise mistake(
                "update-lost",
                f"argument {i} is a weight, which cannot be updated in place",
                help="use an nn.Buffer, or an argument of the method",
            )
    exprs = as_arguments(values)
    if out_ty is None:
        if any(not 0 <= i < len(values) for i in indices):
            raise mistake(
                "bad-spec",
                f"out_ty is missing: inplace_indices {indices} has outputs that are not arguments",
                help="pass the spec of each output, in order",
            )
        out_ty = [deduce(exprs[i]) for i in indices]
    gvar = Construction.current().program(_program(program), name)
    call = ir_call.call_tir_inplace(gvar, exprs, indices, _outputs(out_ty), _integers(tir_vars))
    result = _emit(call, name)
    results = result if isinstance(result, tuple) else (result,)
    for i, updated in zip(indices, results, strict=True):
        if i >= 0 and isinstance(values[i], Buffer):
            Construction.current().updated(values[i], updated.__relax_expr__)
    return result


def call_te(
    function: Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any
) -> Any:
    """Call the tensor program that a function of te tensors describes (`relaxpy.op.te`)."""
    construction = Construction.current()
    title = name or str(getattr(function, "__name__", "te_function")).strip("<>")
    made = construction.builder.call_te(function, *as_arguments(args), name=title, **kwargs)
    return _emit(made, title)


def call_dps_library(function: str, args: Any, out_ty: Any) -> Any:
    """Call a registered function of a library that writes new outputs (`relaxpy.register_library`)."""
    return _emit(
        ir_call.call_dps_library(function, as_arguments(args), _outputs(out_ty)), "library"
    )


def call_packed(function: str, *args: Any, ty_args: Any = ()) -> Any:
    """Call a registered Python function that may have effects. The exported function is impure. `ty_args` is the spec
    of its result; without one, the result is an object."""
    Construction.current().effect()
    types = _outputs(ty_args) if ty_args != () else ()
    return _emit(ir_call.call_packed(function, *as_arguments(args), ty_args=types), "packed")


def call_pure_packed(function: str, *args: Any, ty_args: Any = ()) -> Any:
    """Call a registered Python function without effects; `ty_args` as in `call_packed`."""
    types = _outputs(ty_args) if ty_args != () else ()
    return _emit(ir_call.call_pure_packed(function, *as_arguments(args), ty_args=types), "packed")


def call_inplace_packed(
    function: str, *args: Any, inplace_indices: Sequence[int] = (0,), ty_args: Any = None
) -> Any:
    """Call a registered Python function that changes the arguments `inplace_indices` in place and returns them. The
    exported function is impure."""
    exprs = as_arguments(args)
    types = [deduce(exprs[i]) for i in inplace_indices] if ty_args is None else ty_args
    Construction.current().effect()
    call = ir_call.call_inplace_packed(
        function, *exprs, inplace_indices=inplace_indices, ty_args=_outputs(types)
    )
    result = _emit(call, "packed")
    results = result if isinstance(result, tuple) else (result,)
    for i, updated in zip(inplace_indices, results, strict=False):
        if i >= 0 and isinstance(args[i], Buffer):
            Construction.current().updated(args[i], updated.__relax_expr__)
    return result


def _emit(call: Call, name: str) -> Any:
    span = caller_span()
    call = dataclasses.replace(call, span=span)
    try:
        return Construction.current().emit(call, name, span)
    except RelaxError as error:
        raise error.located(span) from None


def _program(program: Any) -> TensorProgram:
    if isinstance(program, TensorProgram):
        return program
    kind = type(program).__name__
    raise mistake(
        "bad-spec",
        f"{kind} is not a tensor program",
        help="decorate it with @T.prim_func; call a function of te tensors with op.call_te(function, …)"
        if callable(program)
        else "write one with @T.prim_func; call a function of a library with op.call_dps_library",
    )


def _sequence(args: Any) -> tuple[Any, ...]:
    return tuple(args) if isinstance(args, (tuple, list)) else (args,)


def as_arguments(args: Any) -> list[Expr]:
    """Arguments as expressions: tensors, arrays and numbers (constants), tuples."""
    found: list[Expr] = []
    for arg in _sequence(args):
        try:
            found.append(as_expr(_constant(arg)))
        except TypeError as error:
            raise mistake("bad-spec", f"an argument of a call: {error}") from None
    return found


def _constant(value: Any) -> Any:
    if isinstance(value, Value) or not hasattr(value, "__array__"):
        return value
    return Constant(as_array(value))


def _outputs(out_ty: Any) -> list[Annotation]:
    several = isinstance(out_ty, (tuple, list))
    return [spec.output(each) for each in (out_ty if several else [out_ty])]


def _integers(tir_vars: Any) -> Any:
    if tir_vars is None:
        return None
    for each in (found := _sequence(tir_vars)):
        if not isinstance(each, (int, np.integer, Dim)) or isinstance(each, bool):
            raise mistake(
                "bad-spec",
                f"tir_vars must be integers or dimensions, got {type(each).__name__}",
                help="nn.spec.Int() gives a method an integer",
            )
    return found
