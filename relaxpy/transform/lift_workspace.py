"""LiftWorkspace: move the workspaces of tensor programs into the memory plan of the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.ir.module import IRModule
from relaxpy.tir.lowering.workspace import Launches, allocated, lifted
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.schedule import is_scheduled
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.buffer_limit import buffer_limit
from relaxpy.transform.launches import with_launches


@dataclass(frozen=True)
class LiftWorkspace(Pass):
    """Let the caller allocate the global memory that a tensor program allocates between its phases (figure 11 of the
    paper). The workspace becomes a parameter before the outputs, and thus part of the memory plan
    (`relaxpy.tir.lowering.workspace` lists the programs to which this applies). TVM's kernels allocate it from their
    runtime in every call.

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
    mandatory: ClassVar[bool] = True
    prerequisites: ClassVar[tuple[str, ...]] = ("lower-call-tir",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        limit = buffer_limit(mod, ctx.target)
        found = {name: _lifted(program, limit) for name, program in mod.prim_funcs.items()}
        return with_launches(mod, {name: one for name, one in found.items() if one is not None})


def _lifted(program: object, most_buffers: int | None) -> Launches | None:
    """Lift the allocations of a program that its author scheduled, as far as the buffer limit allows. For other
    programs the schedule rules decide which intermediates are stored in memory: see
    `relaxpy.backend.schedule_tensor_programs`."""
    if not isinstance(program, PrimFunc) or not is_scheduled(program.func):
        return None
    return lifted(program, allocated(program.func), most_buffers)
