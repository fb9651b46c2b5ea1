"""Programs that a library computes where there is much to do (paper §4.6, partial lowering).

Patterns of operators mark what a library knows (`relaxpy.backend.cuda.cublas`, `relaxpy.backend.cuda.cudnn`): it
becomes one tensor program with the attribute `relaxpy.library`, the library function of the same meaning. So the
program says in loops what is computed, and the attribute who may compute it. A rule of the library adds the call to the
program's own schedule. A launch has both: its code runs where there is little to do, and the library elsewhere. The
branch is taken by the host, which knows the sizes, in each launch and not between launches: a branch of the graph would
end a run of launches that is recorded and replayed (`relaxpy.backend.lift_graphs`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cuda.target import CudaTarget
from relaxpy.backend.gpu.launch_args import size_numbers
from relaxpy.backend.int_expr import int_expr
from relaxpy.ir.accessors import expect
from relaxpy.ir.dim import Dim
from relaxpy.ir.module import BufferParam
from relaxpy.ir.pattern import Pattern, is_const, is_var
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import LibraryCall
from relaxpy.tir.prim_func import LIBRARY, LIBRARY_OPTIONS, PrimFunc, given_workspaces
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.tvm import tirx

WORKSPACE = 32 << 20
"""The bytes of a workspace: what NVIDIA recommends for cuBLASLt on Hopper. All calls of a plan share them."""
_CALL = "relaxpy.library.call"
"""Attribute of a scheduled program: its library call, as JSON without the numbers that its launch adds."""
Product = Sequence[tuple[str, int]]
"""A number that a call takes: a product of extents, each of a tensor by its name in the call, and of an axis."""


def function_of(func: tirx.PrimFunc, library: str, target: CudaTarget) -> str:
    """The function of this library that a program is marked with, if the target calls it; else ""."""
    name = str((func.attrs or {}).get(LIBRARY, ""))
    return name if name.startswith(f"{library}.") and library in target.libraries else ""


def with_library(
    func: tirx.PrimFunc,
    own: Arrangement,
    dtype: str,
    places: Mapping[str, int],
    numbers: Sequence[Product],
    least: int,
) -> Arrangement:
    """The schedule of a program that is marked, with the library's call and a workspace for it. `places` are the
    parameters by their names in the call. The first of the `numbers` says how much there is to do; for less than
    `least` the program's own schedule runs."""

    def write() -> tirx.PrimFunc:
        (workspace,) = given_workspaces(func)
        options = json.loads(str(func.attrs.get(LIBRARY_OPTIONS, "{}")))
        given = {**places, "workspace": workspace}
        name, count = str(func.attrs[LIBRARY]), len(numbers)
        call = LibraryCall(name, dtype, given, 0, count, least, WORKSPACE, options)
        said = {"call": asdict(call), "numbers": numbers}
        return own.write().with_attr(_CALL, json.dumps(said))

    workspace = tirx.decl_buffer([int64(WORKSPACE)], "uint8", "library_workspace", layout=None)
    return Arrangement(write, (workspace,), own.family)


def library_call(
    func: tirx.PrimFunc, launch: tuple[IntExpr, ...]
) -> tuple[LibraryCall | None, tuple[IntExpr, ...]]:
    """The library call of a scheduled program, and its launch with the numbers that the call takes. None without
    one."""
    text = (func.attrs or {}).get(_CALL)
    if text is None:
        return None, launch
    said = json.loads(str(text))
    call = LibraryCall.decode({**said["call"], "first": len(launch)})
    program = PrimFunc(func)
    sizes = size_numbers(program)

    def extent(name: str, axis: int) -> Dim:
        tensor = expect(BufferParam, program.params[call.places[name]])
        return tensor.shape[axis]

    products = (product_of([extent(*each) for each in product]) for product in said["numbers"])
    return call, (*launch, *(int_expr(product, sizes) for product in products))


def stored() -> Pattern:
    """The pattern of a weight: a value from outside of the block. One that is computed there, such as a weight of 4
    bits that is made floats, is fused into the program instead of being stored for the library."""
    return is_var() | is_const()


def product_of(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions."""
    found = Dim.of(1)
    for dim in dims:
        found = found * dim
    return found


def place_of(func: tirx.PrimFunc, buffer: Any) -> int:
    """The number of a parameter."""
    return next(n for n, param in enumerate(func.params) if param.same_as(buffer))
