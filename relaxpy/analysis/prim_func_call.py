"""Does a `call_tir` give its tensor program what that takes?"""

from __future__ import annotations

from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import Annotation, PrimType, TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, GlobalVar, ShapeExpr, Tuple
from relaxpy.ir.module import BufferParam, IRModule, ScalarParam, TensorProgram
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal

Problem = tuple[str, tuple[str, ...]]
"""A message and its notes."""


def check_prim_func_call(call: Call, mod: IRModule) -> list[Problem]:
    """What is wrong with the call, if anything: the callee, the number of arguments, outputs and scalars, and each
    tensor's rank, dtype and dimensions (those that can never be equal). args = (GlobalVar, Tuple[, ShapeExpr])."""
    callee = call.args[0] if call.args else None
    if (
        not isinstance(callee, GlobalVar)
        or len(call.args) < 2
        or not isinstance(call.args[1], Tuple)
    ):
        return [("call_tir takes a tensor program of the module and a tuple of arguments", ())]
    program = mod.functions.get(callee.name)
    if not isinstance(program, TensorProgram):
        return [
            (
                f"{callee.name} is no tensor program",
                ("call a graph function directly: cls.name(…)",),
            )
        ]
    try:
        inputs = [deduce(arg, mod) for arg in call.args[1].fields]
    except DeduceError as error:
        return [(error.message, error.notes)]
    tensors: list[tuple[str, Annotation]] = [
        (f"argument {i}", a) for i, a in enumerate(inputs) if not isinstance(a, PrimType)
    ]
    scalars = [a.value for a in inputs if isinstance(a, PrimType)]
    tensors += [(f"output {i}", a) for i, a in enumerate(call.ty_args)]
    if len(call.args) > 2:
        given = call.args[2]
        scalars += list(given.dims) if isinstance(given, ShapeExpr) else []
    return _compare(callee.name, program, tensors, scalars)


def _compare(
    name: str,
    program: TensorProgram,
    tensors: list[tuple[str, Annotation]],
    scalars: list[Dim | None],
) -> list[Problem]:
    params = program.params
    buffers = [p for p in params if isinstance(p, BufferParam)]
    variables = [p for p in params if isinstance(p, ScalarParam)]
    notes = (f"{name} takes ({', '.join(map(_show, params))})",)
    if len(buffers) != len(tensors):
        return [
            (
                f"{name} takes {len(buffers)} tensors, outputs included, and gets {len(tensors)}",
                notes,
            )
        ]
    if len(variables) != len(scalars):
        return [
            (f"{name} takes {len(variables)} scalars, and gets {len(scalars)} in tir_vars", notes)
        ]
    bound: dict[SymVar, Dim] = {
        p.var: value for p, value in zip(variables, scalars, strict=True) if value is not None
    }
    patterns = [TensorType(p.shape, p.dtype) for p in buffers]
    for pattern, (_, actual) in zip(patterns, tensors, strict=True):
        accepts(pattern, actual, bound, equal)  # binds what stands alone, wherever it does
    return [
        (f"{where} of {name} must be {_show(param)}, got {actual}", notes)
        for pattern, param, (where, actual) in zip(patterns, buffers, tensors, strict=True)
        if accepts(pattern, actual, bound, equal) is Verdict.NO
    ]


def _show(param: BufferParam | ScalarParam) -> str:
    if isinstance(param, ScalarParam):
        return f"{param.name}: {param.dtype}"
    return f'{param.name}: ({", ".join(map(str, param.shape))}), "{param.dtype}"'
