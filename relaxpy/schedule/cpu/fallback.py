"""The rule for what no other rule knows: parallel where that is provably safe, otherwise as written."""

from __future__ import annotations

from relaxpy.tir._tvm import tirx
from relaxpy.tir.schedule import parallelise_outer_loops
from relaxpy.tir.target import Target


def schedule_any(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Any program: outermost loops parallel where TVM proves their iterations independent."""
    del target  # nothing here depends on the processor
    return parallelise_outer_loops(func)
