"""Does a `call_tir` give its tensor program what that takes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.errors import DeduceError, Span, VerifyError
from relaxpy.ir.annotation import Annotation, PrimType, TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Expr, GlobalVar, ShapeExpr, Tuple, Var
from relaxpy.ir.module import BufferParam, IRModule, ScalarParam, TensorProgram
from relaxpy.op.call import CallTIRInplace
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal

CODE = "wf-prim-func-call"


@dataclass(frozen=True)
class _Given:
    """One tensor that a call hands over: an argument, or an output that it allocates (no `expr`)."""

    what: str
    annotation: Annotation
    arg: str
    """Where it is written in the call."""
    expr: Expr | None = None

    def located(self, error: VerifyError) -> VerifyError:
        """The error at this argument or output."""
        if isinstance(self.expr, Var):
            error.show(f"{self.expr.name} is {self.annotation}", self.expr.span)
        return error.about(self.arg)


def check_prim_func_call(call: Call, mod: IRModule) -> list[VerifyError]:
    """What is wrong with the `call_tir` or `call_tir_inplace`, if anything: the callee, the number of arguments,
    outputs and scalars, and each tensor's rank, dtype and dimensions (those that can never be equal).
    args = (GlobalVar, Tuple[, ShapeExpr])."""
    callee = call.args[0] if call.args else None
    if (
        not isinstance(callee, GlobalVar)
        or len(call.args) < 2
        or not isinstance(call.args[1], Tuple)
    ):
        message = "call_tir takes a tensor program of the module and a tuple of arguments"
        return [VerifyError(CODE, message, span=call.span)]
    program = mod.functions.get(callee.name)
    if not isinstance(program, TensorProgram):
        error = VerifyError(
            CODE,
            f"{callee.name} is no tensor program",
            span=callee.span or call.span,
            help=f"call a graph function directly: cls.{callee.name}(…)",
        )
        place = getattr(program, "span", None)
        return [error.show(f"{callee.name} is defined here", place) if place else error]
    try:
        inputs = [(arg, deduce(arg, mod)) for arg in call.args[1].fields]
    except DeduceError as error:
        return [VerifyError(CODE, error.message, span=error.span or call.span, notes=error.notes)]
    given = [
        _Given(f"argument {i}", annotation, f"args.{i - 1}", arg)
        for i, (arg, annotation) in enumerate(inputs, 1)
        if not isinstance(annotation, PrimType)
    ]
    outputs = list(call.ty_args)
    if isinstance(call.op, CallTIRInplace):  # the others are arguments already
        outputs = [out for out, i in zip(outputs, call.op.inplace_indices, strict=False) if i == -1]
    given += [
        _Given(f"output {i}", annotation, f"out_ty.{call.ty_args.index(annotation)}")
        if len(call.ty_args) > 1
        else _Given("the output", annotation, "out_ty")
        for i, annotation in enumerate(outputs, 1)
    ]
    scalars = [a.value for _, a in inputs if isinstance(a, PrimType)]
    if len(call.args) > 2 and isinstance(call.args[2], ShapeExpr):
        scalars += call.args[2].dims
    takes = f"{callee.name} takes ({', '.join(map(_show, program.params))})"
    if program.span is not None:
        takes = f"{callee.name} is defined here"
    return [
        error.show(takes, program.span)
        for error in _compare(callee.name, program, given, scalars, call.span)
    ]


def _compare(
    name: str,
    program: TensorProgram,
    given: Sequence[_Given],
    scalars: Sequence[Dim | None],
    span: Span | None,
) -> list[VerifyError]:
    buffers = [p for p in program.params if isinstance(p, BufferParam)]
    variables = [p for p in program.params if isinstance(p, ScalarParam)]
    if len(buffers) != len(given):
        outputs = sum(item.expr is None for item in given)
        message = f"{name} takes {_count(len(buffers), 'tensor')}, outputs included, and gets {len(given)}"
        note = f"{_count(len(given) - outputs, 'argument')} and {_count(outputs, 'output')}"
        return [VerifyError(CODE, message, span=span, notes=[f"the call gives it {note}"])]
    if len(variables) != len(scalars):
        message = (
            f"{name} takes {_count(len(variables), 'scalar')}, and gets {len(scalars)} in tir_vars"
        )
        names = ", ".join(variable.name for variable in variables)
        help = f"write tir_vars=R.shape([…]) with values for {names}" if names else "leave it out"
        return [VerifyError(CODE, message, span=span, help=help)]
    bound: dict[SymVar, Dim] = {
        p.var: value for p, value in zip(variables, scalars, strict=True) if value is not None
    }
    patterns = [TensorType(p.shape, p.dtype) for p in buffers]
    for pattern, item in zip(patterns, given, strict=True):
        accepts(pattern, item.annotation, bound, equal)  # binds what stands alone, wherever it does
    return [
        item.located(
            VerifyError(
                CODE,
                f"{item.what} of {name} must be {_show(param)}, got {item.annotation}",
                span=span,
            )
        )
        for pattern, param, item in zip(patterns, buffers, given, strict=True)
        if accepts(pattern, item.annotation, bound, equal) is Verdict.NO
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _show(param: BufferParam | ScalarParam) -> str:
    if isinstance(param, ScalarParam):
        return f"{param.name}: {param.dtype}"
    return f'{param.name}: T.Buffer(({", ".join(map(str, param.shape))}), "{param.dtype}")'
