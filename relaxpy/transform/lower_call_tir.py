"""LowerCallTIR: explicit allocation and destination-passing calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    DataflowVar,
    Expr,
    MatchCast,
    PrimValue,
    ShapeExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.op.call import CallDPSLibrary, CallTIR
from relaxpy.op.memory import AllocTensor, CallDPS
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class LowerCallTIR(Pass):
    """Figure 5: `call_tir(f, args, out, symbols)` becomes an allocation of each output and a call
    of f with inputs, outputs and symbols (`CallTIRRewrite` in TVM); the same for library
    functions. Since memory is written now, dataflow blocks become plain ones (`ToNonDataflow`).

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
                    gv = R.call_tir(cls.exp, (x,), out_ty=R.Tensor((n,), dtype="float32"))
                    R.output(gv)
                return gv
    After:
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
                gv = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _gv = R.vm.call_dps(cls.exp, x, gv)
                return gv
    """

    name: ClassVar[str] = "lower-call-tir"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return _Lowerer(mod).run()


class _Lowerer(Rebuilder):
    def is_dataflow(self, block: BindingBlock) -> bool:
        return False

    def block(self, old: BindingBlock, bindings: tuple[Binding, ...]) -> BindingBlock:
        return BindingBlock(bindings, span=old.span)

    def define(self, var: Var, annotation: Annotation, value: Expr) -> Var:
        if isinstance(var, DataflowVar):
            fresh = Var(var.name, annotation, span=var.span)
            self.vars[var] = fresh
            return fresh
        return super().define(var, annotation, value)

    def binding(self, binding: Binding) -> None:
        value = binding.value
        if isinstance(binding, MatchCast):
            source = self.use(value)
            var = self.define(binding.var, binding.var.annotation, source)
            self.bindings.append(MatchCast(var, source, binding.annotation, span=binding.span))
            return
        if not (isinstance(value, Call) and isinstance(value.op, (CallTIR, CallDPSLibrary))):
            super().binding(binding)
            return
        call = self.use(value)
        assert isinstance(call, Call)
        callee, args = call.args[0], call.args[1]
        assert isinstance(args, Tuple)
        if len(call.ty_args) == 1:
            outputs = [self.define(binding.var, call.ty_args[0], call)]
        else:
            outputs = [
                self.new_var(f"{binding.var.name}_{i}", out) for i, out in enumerate(call.ty_args)
            ]
        self.bindings += [self.alloc(out, binding) for out in outputs]
        symbols: list[Expr] = []
        if len(call.args) > 2 and isinstance(call.args[2], ShapeExpr):
            symbols = [PrimValue(dim) for dim in call.args[2].dims]
        self.emit(CallDPS()(callee, *args.fields, *outputs, *symbols), f"_{binding.var.name}")
        if len(call.ty_args) != 1:
            result = Tuple(tuple(outputs), span=value.span)
            var = self.define(binding.var, binding.var.annotation, result)
            self.bindings.append(VarBinding(var, result, span=binding.span))

    def alloc(self, out: Var, binding: Binding) -> VarBinding:
        annotation = out.annotation
        assert isinstance(annotation, TensorType)
        assert annotation.dims is not None
        call = AllocTensor(dtype=str(annotation.dtype))(ShapeExpr(annotation.dims))
        return VarBinding(out, call, span=binding.span)
