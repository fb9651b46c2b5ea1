"""Extents of loops, axes and regions in the form that TVM's parser gives them: it simplifies what the text says, so a
program must hold what simplification leaves as it is, or it does not parse back to itself."""

from __future__ import annotations

from typing import Any

from relaxpy.tir.analyzer import int64
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

STEPS = 8
"""TVM's simplification is not always done after one run; it is after two or three."""


def with_parsed_extents(func: Any) -> Any:
    """The function with every extent as the parser of its text has it."""
    forms = [(tvm.ir.Range, _range), (tirx.For, _loop)]
    return func.with_body(tvm_ffi.structural_map(func.body, forms))


def whole(size: Any) -> Any:
    """The range of all indices below `size`."""
    return tvm.ir.Range.from_min_extent(int64(0), parsed_extent(int64(0), size))


def parsed_extent(start: Any, extent: Any) -> Any:
    """What the parser makes of the extent of a range from `start`, written `start:start + extent`."""
    if isinstance(extent, (tirx.IntImm, tvm.ir.Var)):
        return extent
    simplify = tvm.sym.Analyzer().simplify
    for _ in range(STEPS):
        simpler = simplify(start + extent - start)
        if tvm_ffi.structural_equal(simpler, extent):
            return extent
        extent = simpler
    return extent


def _range(found: Any) -> Any:
    extent = parsed_extent(found.min, found.extent)
    return found if extent is found.extent else tvm.ir.Range.from_min_extent(found.min, extent)


def _loop(loop: Any) -> Any:
    extent = parsed_extent(loop.min, loop.extent)
    if extent is loop.extent:
        return loop
    return tirx.For(
        loop.loop_var, loop.min, extent, loop.kind, loop.body, loop.thread_binding,
        loop.annotations, loop.step,
    )  # fmt: skip
