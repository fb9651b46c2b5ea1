"""Products of matrices by cuBLASLt where there are many rows (paper §4.6, partial lowering).

Patterns of operators mark a product with its bias and activation (`cublas_patterns`): it becomes one tensor program
with two attributes, `relaxpy.library`, the library function of the same meaning, and `relaxpy.library_rows`, the least
number of rows for which it is called. So the program says in loops what is computed, and the attributes who computes it
when. A launch has both: its code runs for few rows, and the library for others. The branch is taken by the host, which
knows the sizes, in each launch and not between launches: a branch of the graph would end a run of launches that is
recorded and replayed (`relaxpy.backend.lift_graphs`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from relaxpy.analysis.dataflow_match import Match
from relaxpy.backend.arrangement import Arrangement, Rule
from relaxpy.backend.cuda.target import CUBLAS, CudaTarget
from relaxpy.backend.gpu.launch_args import size_numbers
from relaxpy.backend.gpu.schedule.matmul import arrange_matmul
from relaxpy.backend.int_expr import int_expr
from relaxpy.ir.dim import Dim
from relaxpy.ir.module import BufferParam
from relaxpy.ir.pattern import Pattern, is_const, is_var
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import LibraryCall
from relaxpy.tir.forms.matmul import matmul_of
from relaxpy.tir.prim_func import LIBRARY, LIBRARY_ROWS, PrimFunc, given_workspaces
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import int64
from relaxpy.transform.base import Pass
from relaxpy.transform.convert_to_dataflow import ConvertToDataflow
from relaxpy.transform.fuse_ops_by_pattern import FuseOpsByPattern, FusionPattern
from relaxpy.transform.outline import PRIMITIVE
from relaxpy.transform.product_patterns import ProductPattern, dims_of, product_patterns

_LEAST_ROWS = {65: ("float16", "bfloat16"), 5: ("float32",)}
"""The least number of rows for which a product of these dtypes is the library's.

Not measured: no device was at hand. For few rows the time is that of reading the weight, and the kernels of
`relaxpy.backend.gpu.schedule` read it once: up to 64 rows by tensor cores, up to 4 in float32. A product of m rows has
m operations for each byte of a weight of 2 bytes, and m / 2 in float32. While it reads a byte, an H100 does 295
operations (990 T/s by 3.35 TB/s) by tensor cores and 20 in float32, an A100 153 and 10. So memory limits 64 rows; above
4 rows of float32 our tiles read from shared memory what registers could hold.
"""
_WORKSPACE = 32 << 20
"""The bytes that NVIDIA recommends for Hopper; 4 MiB are enough for others, but alternatives share the plan."""
_CALL = "relaxpy.library.call"
"""Attribute of a scheduled program: its library call, as JSON without the numbers that its launch adds."""
_ACTIVATIONS = "gelu_tanh", "relu"
"""The library's GELU is the approximation by tanh."""


def cublas_passes() -> tuple[Pass, ...]:
    """The passes that mark products. A product by itself is a block, too."""
    return ConvertToDataflow(min_size=1), cublas_patterns()


def cublas_patterns() -> FuseOpsByPattern:
    """The pass that marks products in dataflow blocks."""
    found = (
        _pattern(product, dtypes, rows)
        for rows, dtypes in _LEAST_ROWS.items()
        for product in product_patterns(_ACTIVATIONS, _weight)
    )
    return FuseOpsByPattern(tuple(found))


def _weight() -> Pattern:
    """A value from outside of the block. One that is computed there, such as a weight of 4 bits that is made floats, is
    fused into the product instead of being stored for the library."""
    return is_var() | is_const()


def _pattern(product: ProductPattern, dtypes: tuple[str, ...], least: int) -> FusionPattern:
    name = f"{CUBLAS}.{product.name}"

    def takes(match: Match, _: Mapping[str, Pattern]) -> bool:
        if product.dtype(match) not in dtypes:
            return False
        right, *bias = (dims_of(match.annotation(hole)) for hole in product.holes[1:])
        out = dims_of(match.annotation(product.product))
        if right is None or out is None or len(right) != 2 or any(d.value == 1 for d in right):
            return False
        rows = _product_of(out[:-1]).value
        return all(each == out[-1:] for each in bias) and (rows is None or rows >= least)

    attrs = {PRIMITIVE: True, LIBRARY: name, LIBRARY_ROWS: least}
    return FusionPattern(name, product.pattern, check=takes, attrs=attrs)


def _product_of(dims: tuple[Dim, ...]) -> Dim:
    found = Dim.of(1)
    for dim in dims:
        found = found * dim
    return found


def _arrange(func: tirx.PrimFunc, target: CudaTarget) -> Arrangement | None:
    """The schedule of a product that is marked, with the library call; None for other programs."""
    name = str((func.attrs or {}).get(LIBRARY, ""))
    own = arrange_matmul(func, target)
    form = matmul_of(func)
    if not name or name.partition(".")[0] not in target.libraries or own is None or form is None:
        return None
    places = {
        "left": _place(func, form.lhs.buffer),
        "right": _place(func, form.rhs.buffer),
        "out": max(PrimFunc(func).written),
    }
    if "_bias" in name:
        given = given_workspaces(func)
        others = {*range(len(func.params)), *given} - {*places.values(), *given}
        if len(others) != 1:
            return None
        places["bias"] = others.pop()

    def write() -> tirx.PrimFunc:
        (workspace,) = given_workspaces(func)
        given = {**places, "workspace": workspace}
        dtype, least = str(form.lhs.buffer.dtype), int(func.attrs[LIBRARY_ROWS])
        call = LibraryCall(name, dtype, given, 0, least, _WORKSPACE)
        return own.write().with_attr(_CALL, json.dumps(asdict(call)))

    return Arrangement(write, (_workspace(),), own.family)


def _workspace() -> Any:
    return tirx.decl_buffer([int64(_WORKSPACE)], "uint8", "cublas_workspace", layout=None)


def _place(func: tirx.PrimFunc, buffer: Any) -> int:
    return next(n for n, param in enumerate(func.params) if param.same_as(buffer))


RULE = Rule(CUBLAS, _arrange)


def library_call(
    func: tirx.PrimFunc, launch: tuple[IntExpr, ...]
) -> tuple[LibraryCall | None, tuple[IntExpr, ...]]:
    """The library call of a scheduled program, and its launch with the numbers that the call takes: rows, columns and
    depth. None without one."""
    text = (func.attrs or {}).get(_CALL)
    if text is None:
        return None, launch
    call = LibraryCall.decode({**json.loads(str(text)), "first": len(launch)})
    program = PrimFunc(func)
    numbers = size_numbers(program)
    left, out = (program.params[call.places[name]] for name in ("left", "out"))
    assert isinstance(left, BufferParam)
    assert isinstance(out, BufferParam)
    sizes = (_product_of(out.shape[:-1]), out.shape[-1], left.shape[-1])
    return call, (*launch, *(int_expr(size, numbers) for size in sizes))
