"""`relaxpy.build`: a module in, an executable out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.build.codegen import Program, generate
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import UsageError
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.runtime.bytecode import KernelInfo
from relaxpy.runtime.executable import Executable
from relaxpy.schedule import schedule_kernel
from relaxpy.tir.compile import compile_object
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.target import Target
from relaxpy.transform.base import Instrument, Pass, PassContext


def build(
    mod: IRModule | Function,
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
    *,
    pipeline: Pass | None = None,
    instruments: Sequence[Instrument] = (),
) -> Executable:
    """Compile a module, once for all shapes that it can take.

    `target` is `"llvm"` for this machine's CPU with its features, or names another (`"llvm
    -mcpu=x86-64-v3"`); the executable stores it resolved. `params` are arrays to bind to
    parameters by name (`"w"`, or `"main.w"`); they are not copied: leave them as they are until
    the executable is saved. `pipeline` replaces the default passes;
    `instruments` are called after each pass. The same module and target give the same bytes in
    any process.

    Raises: RelaxError, located where the program says what cannot be built.
    """
    if isinstance(mod, Function):
        mod = IRModule({str(mod.attrs.get("global_symbol", "main")): mod})
    if not isinstance(mod, IRModule):
        raise UsageError(
            "build-module",
            f"a module is expected, got {type(mod).__name__}",
            help="decorate a class with @I.ir_module, or parse text with relaxpy.parse(text)",
        )
    resolved = Target.parse(target)
    check_well_formed(mod)
    context = PassContext(resolved, dict(params or {}), tuple(instruments))
    with deep_recursion():
        lowered = (pipeline or default_pipeline()).run(mod, context)
        return link(lowered, generate(lowered), resolved)


def link(mod: IRModule, program: Program, target: Target) -> Executable:
    """Schedule and compile the tensor programs that the bytecode calls, and put everything
    together."""
    kernels: list[KernelInfo] = []
    variants: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name in program.kernels:
        func = mod[name]
        assert isinstance(func, PrimFunc)
        scheduled = schedule_kernel(func.func, target)
        variants[name] = scheduled.parallel
        serial = name
        if not scheduled.parallel.same_as(scheduled.serial):
            serial = mod.fresh_name(f"{name}__serial")
            variants[serial] = scheduled.serial
        kernels.append(KernelInfo(name, name, serial))
        sources[name] = func.script(name)
    return Executable(
        functions=tuple(program.functions),
        constants=tuple(program.constants),
        kernels=tuple(kernels),
        libraries=tuple(program.libraries),
        packed=tuple(program.packed),
        objects=(compile_object(variants, target),) if variants else (),
        target={
            "kind": target.kind,
            "mcpu": target.mcpu,
            "features": target.required_features,
            "text": str(target),
        },
        sources=sources,
    )
