"""`relaxpy.build.memory_plan`: the memory that a module takes once built, without compiling its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.build.codegen import generate
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.module import IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.runtime.memory_plan import MemoryPlan, plan_of
from relaxpy.shape.declare import with_bounds
from relaxpy.tir.target import Target
from relaxpy.transform.base import Pass, PassContext


def memory_plan(
    mod: IRModule,
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
    *,
    bounds: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    pipeline: Pass | None = None,
) -> MemoryPlan:
    """The plan that `relaxpy.build` with the same arguments would make: passes run, kernels are not compiled. `sizes`
    are the values of symbolic variables to say it for, if not their bounds.

    Raises: RelaxError as `relaxpy.build`; UsageError (`plan-sizes`) for a size that is not said.
    """
    mod = with_bounds(mod, bounds or {})
    check_well_formed(mod)
    context = PassContext(Target.parse(target), dict(params or {}))
    with deep_recursion():
        program = generate((pipeline or default_pipeline()).run(mod, context))
    weights = sum(array.nbytes for array in program.constants)
    return plan_of(program.functions, weights, sizes or {})
