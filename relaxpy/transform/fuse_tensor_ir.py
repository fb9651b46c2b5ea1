"""FuseTensorIR: a function of several tensor programs becomes one tensor program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import without_unused_programs
from relaxpy.errors import PassError
from relaxpy.ir.annotation import ShapeType, TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Call,
    Expr,
    Function,
    GlobalVar,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.shape.defined import matched_dims
from relaxpy.shape.lattice import accepts, substitute
from relaxpy.shape.prove import equal
from relaxpy.tir.fuse import Step, Value, fuse_programs
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.fuse_ops import PRIMITIVE
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class FuseTensorIR(Pass):
    """Merge the tensor programs that a function marked `Primitive` calls into one, and call that where the function was
    called (paper §4.2, figure 9; TVM's `FuseTIR`). What passed between them lives inside the new program; schedule
    rules write it into its uses. Tensor programs that nothing calls any more are dropped.

    Before:
        @I.ir_module
        class Module:

            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                with R.dataflow():
                    gv = cls.fused_exp_exp(x)
                    R.output(gv)
                return gv

            @R.function(private=True)
            def fused_exp_exp(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                R.func_attr({"Primitive": True})
                n = T.int64()
                cls = Module
                with R.dataflow():
                    lv = R.call_tir(cls.exp, (x,), out_ty=R.Tensor((n,), dtype="float32"))
                    gv = R.call_tir(cls.exp, (lv,), out_ty=R.Tensor((n,), dtype="float32"))
                    R.output(gv)
                return gv
    After:
        @I.ir_module
        class Module:

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                with R.dataflow():
                    gv = R.call_tir(cls.fused_exp_exp, (x,), out_ty=R.Tensor((n,), dtype="float32"))
                    R.output(gv)
                return gv

            @T.prim_func(private=True)
            def fused_exp_exp(x: T.Buffer(("n",), "float32"), gv: T.Buffer(("n",), "float32")):
                T.func_attr({"tirx.noalias": True})
                n = T.int64()
                lv = T.sblock_alloc_buffer((n,))
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        lv[vi] = T.exp(x[vi])
                for i in range(n):
                    with T.sblock("exp_1"):
                        vi = T.axis.spatial(n, i)
                        gv[vi] = T.exp(lv[vi])
    """

    name: ClassVar[str] = "fuse-tensor-ir"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        groups = {name: f for name, f in mod.graph_functions.items() if f.attrs.get(PRIMITIVE)}
        if not groups:
            return mod
        fused = {name: _fuse(name, f, mod) for name, f in groups.items()}
        with_calls = _Caller(mod, fused).run()
        functions: dict[str, BaseFunc] = {
            name: fused[name].program if name in fused else f
            for name, f in with_calls.functions.items()
        }
        return without_unused_programs(mod.with_functions(functions), mod)


@dataclass(frozen=True)
class _Fused:
    program: PrimFunc
    tensors: tuple[int, ...]
    """Which parameters of the function the program takes."""
    scalars: tuple[SymVar, ...]
    """The function's symbols that it takes as scalars."""
    outputs: tuple[TensorType, ...]
    function: Function


def _fuse(name: str, function: Function, mod: IRModule) -> _Fused:
    values: dict[Var, Value | tuple[Value, ...]] = {}
    inputs: list[Value] = []
    tensors: list[int] = []
    for i, param in enumerate(function.params):
        if isinstance(param.annotation, TensorType):
            value = Value(param.name, param.annotation)
            values[param] = value
            inputs.append(value)
            tensors.append(i)
    steps: list[Step] = []
    for binding in function.body.bindings:
        match binding.value:
            case (
                Call(op=CallTIR(), args=(GlobalVar(name=callee), Tuple(fields=args), *rest)) as call
            ):
                program = mod.functions[callee]
                assert isinstance(program, PrimFunc)
                outs = [t for t in call.ty_args if isinstance(t, TensorType)]
                names = (
                    [binding.var.name]
                    if len(outs) == 1
                    else [f"{binding.var.name}_{i}" for i in range(len(outs))]
                )
                made = tuple(map(Value, names, outs))
                values[binding.var] = made[0] if len(made) == 1 else made
                given = [value for arg in args for value in _leaves(arg, values)]
                scalars = rest[0].dims if rest and isinstance(rest[0], ShapeExpr) else ()
                steps.append(Step(program, given, made, scalars))
            case TupleGetItem(tuple=Var() as source, index=index):
                whole = values[source]
                assert isinstance(whole, tuple)
                values[binding.var] = whole[index]
            case _:
                raise PassError(
                    "fuse-not-a-program",
                    f"{name} is marked Primitive, but {binding.var.name} is no call of a tensor program",
                    span=binding.span,
                )
    outputs = _leaves(function.body.body, values)
    alone = {d.symbol for v in (*inputs, *outputs) for d in matched_dims(v.type)}
    types = [v.type for step in steps for v in (*step.inputs, *step.outputs)]
    used = free_sym_vars([*types, *(ShapeType(step.scalars) for step in steps)])
    scalars = tuple(s for s in used if s not in alone)
    return _Fused(
        fuse_programs(steps, inputs, outputs, scalars),
        tuple(tensors),
        scalars,
        tuple(v.type for v in outputs),
        function,
    )


def _leaves(result: Expr, values: Mapping[Var, Value | tuple[Value, ...]]) -> list[Value]:
    """The tensors that a result or an argument is made of."""
    if isinstance(result, Tuple):
        return [value for item in result.fields for value in _leaves(item, values)]
    if not isinstance(result, Var):
        raise PassError(
            "fuse-not-a-program",
            "a function that is marked Primitive uses a constant; it takes constants as arguments",
            span=result.span,
        )
    found = values[result]
    return [found] if isinstance(found, Value) else list(found)


class _Caller(Rebuilder):
    """Calls of the fused functions as calls of their programs."""

    def __init__(self, mod: IRModule, fused: Mapping[str, _Fused]) -> None:
        super().__init__(mod)
        self.fused = fused

    def value(self, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, GlobalVar):
            return value
        fused = self.fused.get(value.op.name)
        if fused is None:
            return value
        bound: dict[SymVar, Dim] = {}
        for param, arg in zip(fused.function.params, value.args, strict=True):
            accepts(param.annotation, deduce(arg, self.mod), bound, equal)
        outs = tuple(substitute(out, bound) for out in fused.outputs)
        args: list[Expr] = [Tuple(tuple(value.args[i] for i in fused.tensors))]
        if fused.scalars:
            args.append(ShapeExpr([bound[s] for s in fused.scalars]))
        return Call(CallTIR(), (value.op, *args), outs, span=value.span)
