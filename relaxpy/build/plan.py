"""`relaxpy.build.memory_plan`: the memory plan of a module, without compiling its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.backend.registry import backend_of
from relaxpy.build.codegen import generate
from relaxpy.build.pack_option import with_packed_params
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.accessors import expect
from relaxpy.ir.module import IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.runtime.bytecode import KernelImage, KernelInfo
from relaxpy.runtime.inspect.memory_plan import MemoryPlan, nbytes_of, plan_of
from relaxpy.shape.declare import with_bounds
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import Pass, PassContext


def memory_plan(
    mod: IRModule,
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
    *,
    bounds: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    pipeline: Pass | None = None,
    inside_kernels: bool = False,
    pack: bool | Sequence[str] = False,
) -> MemoryPlan:
    """The plan of the executable that `relaxpy.build` with the same arguments would make. Passes run, but kernels are
    not compiled. `sizes` are the values of symbolic variables; the default are their bounds. With `inside_kernels`
    kernels are scheduled, to include the memory that they allocate.

    Raises: RelaxError like `relaxpy.build`; UsageError (`plan-sizes`) for a missing size.
    """
    mod = with_packed_params(with_bounds(mod, bounds or {}), pack)
    check_well_formed(mod)
    resolved = Target.parse(target)
    backend = backend_of(resolved)
    here = (each for each in resolved.alternatives if each.is_host_loadable)
    alternative = next(here, resolved.alternatives[0])  # as `Executable.memory_plan`
    context = PassContext(resolved, dict(params or {}))
    kernels: list[KernelInfo] = []
    with deep_recursion():
        lowered = (pipeline or default_pipeline(resolved)).run(mod, context)
        program = generate(lowered, resolved)
        for name in program.kernels if inside_kernels else ():
            func = expect(PrimFunc, lowered[name])
            scheduled = backend.schedule(func.func, alternative, {})
            memory = backend.kernel_memory(scheduled, alternative)
            kernels.append(KernelInfo(name, (KernelImage("", "", memory=memory),)))
    weights = sum(array.nbytes for array in program.constants)
    packed: dict[str, dict[str, int]] = {}
    for weight in program.weight_params:
        code = program.functions[weight.function]
        parameter = code.params[weight.param]
        packed.setdefault(code.name, {})[parameter.name] = nbytes_of(code, weight.param)
    return replace(plan_of(program.functions, weights, sizes or {}, kernels), packed=packed)
