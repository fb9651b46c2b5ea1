"""CheckTensorPrograms: refuse unsafe user tensor programs, or mark them for run-time checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from relaxpy.analysis.independence import in_order
from relaxpy.analysis.index_checks import (
    checks_of,
    is_checked,
    with_choices,
)
from relaxpy.errors import BuildError
from relaxpy.ir.module import CHECK_INDICES, IRModule
from relaxpy.tir.allowed import refusals
from relaxpy.tir.numerics.defined import with_defined_results
from relaxpy.tir.numerics.shallow import with_shallow_integers
from relaxpy.tir.plain import plain
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class CheckTensorPrograms(Pass):
    """Make the module's tensor programs safe to run on any arguments.

    A program that certainly accesses memory outside its buffers is refused (`tir-extern`). A program whose indices are
    not all proved to be in bounds is marked and checked at run time (`tir-bounds`). Parallel and vectorised loops whose
    iterations are not proved to be independent become serial. Selects that guard a memory access become
    `T.if_then_else`, which evaluates only one side.

    The pass runs before legalisation: the tensor programs of operators are in bounds by construction.

    Before:
        @I.ir_module
        class Module:

            @T.prim_func
            def gather(x: T.Buffer(("n",), "float32"), i: T.Buffer(("m",), "int64"), y: T.Buffer(("m",), "float32")):
                n, m = T.int64(), T.int64()
                for k in range(m):
                    with T.sblock("y"):
                        v = T.axis.spatial(m, k)
                        y[v] = x[i[v]]
    After:
        @I.ir_module
        class Module:

            @T.prim_func
            def gather(x: T.Buffer(("n",), "float32"), i: T.Buffer(("m",), "int64"), y: T.Buffer(("m",), "float32")):
                T.func_attr({"relaxpy.check_indices": "gather"})
                n, m = T.int64(), T.int64()
                for k in range(m):
                    with T.sblock("y"):
                        v = T.axis.spatial(m, k)
                        y[v] = x[i[v]]
    """

    name: ClassVar[str] = "check-tensor-programs"
    mandatory: ClassVar[bool] = True

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        changed: dict[str, PrimFunc] = {}
        for name, program in mod.prim_funcs.items():
            if not isinstance(program, PrimFunc):
                continue
            try:
                func = _checked(program.func, name)
            except BuildError as error:
                error.message = f"{name}: {error.message}"
                raise error.located(program.span) from None
            if not func.same_as(program.func):
                changed[name] = PrimFunc(func, program.span)
        return mod.with_functions({**mod.functions, **changed}) if changed else mod


@lru_cache(maxsize=4096)
def _checked(func: Any, name: str) -> Any:
    for found in refusals(func):
        raise BuildError("tir-extern", found.message, help=found.help)
    func = in_order(with_defined_results(with_shallow_integers(plain(func))))
    if checks_of(func, eager=True):
        func = with_choices(func)
        if checks_of(func) and not is_checked(func):
            func = func.with_attr(CHECK_INDICES, name)
    return func
