"""Extents of loops, axes and regions in the form that TVM's parser gives them. The parser simplifies extents, so a
program must contain simplified extents to be equal to itself after printing and parsing."""

from __future__ import annotations

from typing import Any

from relaxpy.tir.analyzer import int64
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

STEPS = 8
"""The number of runs of TVM's simplifier. One run does not always reach a fixed point; two or three do."""


def with_parsed_extents(func: Any) -> Any:
    """Return the function with every extent in the form that the parser gives it."""
    forms = [(tvm.ir.Range, _range), (tirx.For, _loop)]
    return func.with_body(tvm_ffi.structural_map(func.body, forms))


def whole(size: Any) -> Any:
    """The range of all indices below `size`."""
    return tvm.ir.Range.from_min_extent(int64(0), parsed_extent(int64(0), size))


def parsed_extent(start: Any, extent: Any) -> Any:
    """The parsed form of the extent of a range that is written `start:start + extent`."""
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
