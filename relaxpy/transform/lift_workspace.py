"""LiftWorkspace: memory that tensor programs allocate for themselves becomes part of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import without_unused_programs
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Expr, GlobalVar, PrimValue, ShapeExpr
from relaxpy.ir.module import BufferParam, IRModule, ScalarParam
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import AllocTensor, CallDPS
from relaxpy.shape.lattice import accepts
from relaxpy.shape.prove import equal
from relaxpy.tir.lowering.workspace import Lifted, lift_workspaces
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class LiftWorkspace(Pass):
    """Figure 11 of the paper: what a tensor program allocates in global memory, between its phases,
    is allocated by the function that calls it and given to it, before its outputs; so it takes part
    in the memory plan (`relaxpy.tir.lowering.workspace` says for which programs). TVM's kernels ask their
    runtime for it in every call.

    Before:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def twice(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                T.func_attr({"tirx.is_scheduled": True})
                n = T.int64()
                workspace = T.alloc_buffer((n,), "float32")
                for i in T.parallel(n):
                    with T.sblock("first"):
                        vi = T.axis.spatial(n, i)
                        workspace[vi] = x[vi] * T.float32(2)
                for i in T.parallel(n):
                    with T.sblock("second"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = workspace[n - 1 - vi]

            @R.function
            def main(x: R.Tensor((8,), dtype="float32")) -> R.Tensor((8,), dtype="float32"):
                cls = Module
                y = R.memory.alloc_tensor(R.shape([8]), dtype="float32")
                _y = R.vm.call_dps(cls.twice, x, y)
                return y
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor((8,), dtype="float32")) -> R.Tensor((8,), dtype="float32"):
                cls = Module
                y = R.memory.alloc_tensor(R.shape([8]), dtype="float32")
                workspace = R.memory.alloc_tensor(R.shape([8]), dtype="float32")
                _y = R.vm.call_dps(cls.twice_lifted, x, workspace, y)
                return y

            @T.prim_func(private=True)
            def twice_lifted(
                x: T.Buffer(("n",), "float32"),
                workspace: T.Buffer(("n",), "float32"),
                y: T.Buffer(("n",), "float32"),
            ):
                T.func_attr({"tirx.is_scheduled": True})
                n = T.int64()
                for i in T.parallel(n):
                    with T.sblock("first"):
                        vi = T.axis.spatial(n, i)
                        workspace[vi] = x[vi] * T.float32(2)
                for i in T.parallel(n):
                    with T.sblock("second"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = workspace[n - 1 - vi]
    """

    name: ClassVar[str] = "lift-workspace"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        found = {name: _lifted(program) for name, program in mod.prim_funcs.items()}
        lifted = {name: one for name, one in found.items() if one is not None}
        if not lifted:
            return mod
        lifter = _Lifter(mod, lifted)
        new = lifter.run()
        functions = {**new.functions, **lifter.programs}
        return without_unused_programs(new.with_functions(functions), mod)


def _lifted(program: object) -> Lifted | None:
    return lift_workspaces(program) if isinstance(program, PrimFunc) else None


class _Lifter(Rebuilder):
    def __init__(self, mod: IRModule, lifted: dict[str, Lifted]) -> None:
        super().__init__(mod)
        self.lifted = lifted
        self.callees = {name: mod.fresh_name(f"{name}_lifted") for name in lifted}
        self.programs: dict[str, PrimFunc] = {}
        """The new programs."""

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=CallDPS(), args=(GlobalVar(name=name), *args)) if name in self.lifted:
                return self.lift(value, name, self.lifted[name], args)
            case _:
                return value

    def lift(self, call: Call, name: str, lifted: Lifted, args: list[Expr]) -> Call:
        """The call with its workspaces, which are allocated before it; as it is where nothing says how large they
        are."""
        bound = self.sizes(lifted, args)
        shapes = [workspace.shape for workspace in lifted.workspaces]
        if any(symbol not in bound for shape in shapes for dim in shape for symbol in dim.vars):
            return call
        given: list[Expr] = []
        for workspace in lifted.workspaces:
            dims = tuple(dim.substitute(bound) for dim in workspace.shape)
            tensor = AllocTensor(dtype=str(workspace.dtype))(ShapeExpr(dims))
            given.append(self.emit(tensor, "workspace", TensorType(dims, workspace.dtype)))
        self.programs[self.callees[name]] = lifted.program
        at = lifted.position
        new = (GlobalVar(self.callees[name]), *args[:at], *given, *args[at:])
        return Call(call.op, new, call.ty_args, span=call.span)

    def sizes(self, lifted: Lifted, args: list[Expr]) -> dict[SymVar, Dim]:
        """What the new program's symbols are in a call of the old one."""
        bound: dict[SymVar, Dim] = {}
        params = lifted.program.params
        buffers = [param for param in params if isinstance(param, BufferParam)]
        del buffers[lifted.position : lifted.position + len(lifted.workspaces)]
        scalars = [param for param in params if isinstance(param, ScalarParam)]
        for param, arg in zip(buffers, args, strict=False):
            accepts(TensorType(param.shape, param.dtype), deduce(arg, self.mod), bound, equal)
        for scalar, arg in zip(scalars, args[len(buffers) :], strict=False):
            if isinstance(arg, PrimValue) and isinstance(arg.value, Dim):
                bound[scalar.var] = arg.value
        return bound
