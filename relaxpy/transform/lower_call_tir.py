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
    PrimValue,
    ShapeExpr,
    Tuple,
    Var,
)
from relaxpy.ir.module import IRModule
from relaxpy.op.call import CallDPSLibrary, CallTIR
from relaxpy.op.memory import AllocTensor, CallDPS
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class LowerCallTIR(Pass):
    """Figure 5: `call_tir(f, args, out, symbols)` becomes an allocation of each output and a call of f with inputs, outputs and symbols
    (`CallTIRRewrite` in TVM); the same for library functions. Since memory is written now, dataflow blocks become plain ones
    (`ToNonDataflow`).

    Before:
        gv = R.call_tir(cls.exp, (x,), out_ty=R.Tensor((n,), dtype="float32"))
    After:
        gv = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
        _ = R.vm.call_dps(cls.exp, x, gv)
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

    def value(self, value: Expr) -> Expr:
        if not (isinstance(value, Call) and isinstance(value.op, (CallTIR, CallDPSLibrary))):
            return value
        callee, args = value.args[0], value.args[1]
        assert isinstance(args, Tuple)
        outputs = [self.alloc(out) for out in value.ty_args]
        symbols: list[Expr] = []
        if len(value.args) > 2 and isinstance(value.args[2], ShapeExpr):
            symbols = [PrimValue(dim) for dim in value.args[2].dims]
        self.emit(CallDPS()(callee, *args.fields, *outputs, *symbols), "_")
        return outputs[0] if len(outputs) == 1 else Tuple(tuple(outputs))

    def alloc(self, out: Annotation) -> Var:
        assert isinstance(out, TensorType) and out.dims is not None and out.dtype is not None
        return self.emit(AllocTensor(dtype=str(out.dtype))(ShapeExpr(out.dims)), "alloc")
