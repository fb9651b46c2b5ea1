"""LiftWorkspace: memory that tensor programs allocate for themselves becomes part of the plan."""

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
        limit = buffer_limit(mod, ctx.target)
        found = {name: _lifted(program, limit) for name, program in mod.prim_funcs.items()}
        return with_launches(mod, {name: one for name, one in found.items() if one is not None})


def _lifted(program: object, most_buffers: int | None) -> Launches | None:
    """With what a program of its author's arrangement allocates, as far as a launch may take it. In others the
    schedule rules decide which intermediates are memory at all: see `relaxpy.backend.schedule_tensor_programs`."""
    if not isinstance(program, PrimFunc) or not is_scheduled(program.func):
        return None
    return lifted(program, allocated(program.func), most_buffers)
