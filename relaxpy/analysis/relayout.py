"""May programs that only move data (transpositions, heads split and put together) go into the matrix product before or
behind them?

A product reads and writes through strides, so it can do without them where what it must find contiguous stays so. That
is asked of the fused program itself: it must still read as a matrix product, and as good a one.
"""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import Binding, Call, Expr, GlobalVar, ShapeExpr, Tuple
from relaxpy.ir.module import IRModule
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.tir.fuse import Step, Value, fuse_programs
from relaxpy.tir.loops import constant
from relaxpy.tir.matmul_form import MatmulForm, matmul_of
from relaxpy.tir.prim_func import PrimFunc


def moves_for_free(product: Sequence[Binding], whole: Sequence[Binding], mod: IRModule) -> bool:
    """Is the program of all the bindings of `whole` a matrix product that walks memory as well as the one of `product`,
    which is part of it? Both in the order of their block; what the last one binds is the result."""
    before = _joined(product, mod)
    old = matmul_of(before.func) if before is not None else None
    if old is None:
        return False
    after = _joined(whole, mod)
    new = matmul_of(after.func) if after is not None else None
    return new is not None and _is_as_good(new, old)


def _is_as_good(new: MatmulForm, old: MatmulForm) -> bool:
    """As many loops in its rows and columns, factors contiguous where they were, and no more done to the sums."""
    pairs = ((new.depth.lhs, old.depth.lhs), (new.column.rhs, old.column.rhs))
    return (
        len(new.row.axes) >= len(old.row.axes)
        and len(new.column.axes) >= len(old.column.axes)
        and all(constant(a) == 1 or constant(b) != 1 for a, b in pairs)
        and (new.epilogue is None or old.epilogue is not None)
    )


def _joined(bindings: Sequence[Binding], mod: IRModule) -> PrimFunc | None:
    """The tensor programs that the bindings call as one; None where one of them is no call of one with one output."""
    values: dict[Expr, Value] = {}
    inputs: list[Value] = []
    steps: list[Step] = []
    for binding in bindings:
        match binding.value:
            case Call(op=op, args=(GlobalVar(name=name), Tuple(fields=args), *rest)) as call if (
                type(op) is CallTIR
            ):
                program = mod.functions.get(name)
            case _:
                return None
        out = call.ty_args[0]
        if not isinstance(program, PrimFunc) or len(call.ty_args) != 1:
            return None
        for arg in args:
            annotation = deduce(arg, mod)
            if not isinstance(annotation, TensorType) or annotation.dims is None:
                return None
            if arg not in values:
                values[arg] = Value(f"x{len(values)}", annotation)
                inputs.append(values[arg])
        assert isinstance(out, TensorType)
        made = values[binding.var] = Value(f"x{len(values)}", out)
        scalars = rest[0].dims if rest and isinstance(rest[0], ShapeExpr) else ()
        steps.append(Step(program, [values[arg] for arg in args], [made], scalars))
    if len(steps) == 1:
        return steps[0].program
    return fuse_programs(steps, inputs, steps[-1].outputs, ())
