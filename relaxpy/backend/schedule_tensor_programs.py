"""ScheduleTensorPrograms: move the workspaces of schedules into the graph's memory plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import called_functions
from relaxpy.backend.registry import backend_of
from relaxpy.backend.slots import call_of, program_targets
from relaxpy.errors import BuildError
from relaxpy.ir.module import IRModule
from relaxpy.target import Target
from relaxpy.tir.lowering.workspace import Launches, buffer_count, divided
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.launches import with_launches


@dataclass(frozen=True)
class ScheduleTensorPrograms(Pass):
    """Determine for each tensor program its launches on the target, and the workspaces that they share. A program with
    several launches becomes one program per launch. Workspaces are allocated by the calling function and passed before
    the outputs, so that they are part of the memory plan. `LiftWorkspace` does the same for programs that their author
    scheduled (figure 11 of the paper).

    If launches on the target take a limited number of buffers, programs that need more are divided first, into runs of
    statements that fit. The alternatives of a target share the planned memory: each gets the workspaces that it asks
    for, and ignores those of the others.

    The loops themselves are written later, when a kernel is compiled and not in the cache, so the program stays
    readable. Its attribute `relaxpy.workspaces` lists the parameters that are workspaces. A workspace that the text
    does not use belongs to the schedule: in the example, the sums of 32 rows each, which a long reduction over rows
    computes first.

    Before:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def centre(x: T.Buffer(("n", 512), "float32"), y: T.Buffer(("n", 512), "float32")):
                n = T.int64()
                total = T.sblock_alloc_buffer((512,), "float32")
                for j, i in T.grid(512, n):
                    with T.sblock("total"):
                        vj, vi = T.axis.remap("SR", [j, i])
                        with T.init():
                            total[vj] = T.float32(0)
                        total[vj] = total[vj] + x[vi, vj]
                for i, j in T.grid(n, 512):
                    with T.sblock("y"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        y[vi, vj] = x[vi, vj] - total[vj]

            @R.function
            def main(x: R.Tensor(("n", 512), dtype="float32")) -> R.Tensor(("n", 512), dtype="float32"):
                n = T.int64()
                cls = Module
                y = R.memory.alloc_tensor(R.shape([n, 512]), dtype="float32")
                _y = R.vm.call_dps(cls.centre, x, y)
                return y
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("n", 512), dtype="float32")) -> R.Tensor(("n", 512), dtype="float32"):
                n = T.int64()
                cls = Module
                y = R.memory.alloc_tensor(R.shape([n, 512]), dtype="float32")
                workspace = R.memory.alloc_tensor(R.shape([512]), dtype="float32")
                workspace1 = R.memory.alloc_tensor(R.shape([((n + 31) // 32) * 512]), dtype="float32")
                _y = R.vm.call_dps(cls.centre_lifted, x, workspace, workspace1, y)
                return y

            @T.prim_func(private=True)
            def centre_lifted(
                x: T.Buffer(("n", 512), "float32"),
                total: T.Buffer((512,), "float32"),
                partial: T.Buffer(("(n + 31) // 32 * 512",), "float32"),
                y: T.Buffer(("n", 512), "float32"),
            ):
                T.func_attr({"relaxpy.workspaces": [1, 2]})
                n = T.int64()
                for j, i in T.grid(512, n):
                    with T.sblock("total"):
                        vj, vi = T.axis.remap("SR", [j, i])
                        with T.init():
                            total[vj] = T.float32(0)
                        total[vj] = total[vj] + x[vi, vj]
                for i, j in T.grid(n, 512):
                    with T.sblock("y"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        y[vi, vj] = x[vi, vj] - total[vj]
    """

    name: ClassVar[str] = "schedule-tensor-programs"
    mandatory: ClassVar[bool] = True
    prerequisites: ClassVar[tuple[str, ...]] = ("lower-call-tir",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        target = ctx.target or Target.host()
        mod = with_launches(mod, _divided(mod, program_targets(mod, target), target))
        # Each alternative gets the workspaces of those before it, and asks for those that it lacks in addition.
        for number in range(len(target.alternatives)):
            mod = with_launches(mod, _launches(mod, target, number))
        _require_room(mod, target)
        return mod


def _launches(mod: IRModule, target: Target, number: int) -> dict[str, Launches]:
    """The launches that alternative `number` of each program's target needs."""
    found: dict[str, Launches] = {}
    own = program_targets(mod, target)
    for name, program in _programs(mod):
        for alternative in own.get(name, target).alternatives[number : number + 1]:
            launches = backend_of(alternative).launches(program, alternative)
            if launches is not None:
                found[name] = launches
    return found


def _programs(mod: IRModule) -> list[tuple[str, PrimFunc]]:
    """The programs whose text is known."""
    return [
        (name, program)
        for name, program in mod.prim_funcs.items()
        if isinstance(program, PrimFunc) and not program.opaque
    ]


def _divided(mod: IRModule, own: Mapping[str, Target], target: Target) -> dict[str, Launches]:
    """Divide the programs that take more buffers than a launch on their device may."""
    found: dict[str, Launches] = {}
    for name, program in _programs(mod):
        limit = own.get(name, target).max_buffers_per_launch
        if limit is not None and buffer_count(program) > limit:
            launches = divided(program, limit)
            if launches is not None:
                found[name] = launches
    return found


def _require_room(mod: IRModule, target: Target) -> None:
    """Check that no launch takes more buffers than its device may.

    Raises: BuildError (`launch-buffers`).
    """
    own = program_targets(mod, target)
    for name, program in _programs(mod):
        found = own.get(name, target)
        limit, count = found.max_buffers_per_launch, buffer_count(program)
        if limit is not None and count > limit and name in called_functions(mod):
            raise BuildError(
                "launch-buffers",
                f'the tensor program "{name}" has {count} buffers, but a launch on {found} can have at most {limit}',
                span=program.span or call_of(mod, name),
                help="split it into programs with fewer buffers",
            )
