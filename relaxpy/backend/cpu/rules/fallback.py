"""The rule for programs that no other rule recognises: parallel where that is proved safe, otherwise unchanged."""

from __future__ import annotations

from relaxpy.analysis.independence import in_order
from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.lowering.workspace import handed_on
from relaxpy.tir.schedule import parallelise_outer_loops
from relaxpy.tir.tvm import tirx


def schedule_any(func: tirx.PrimFunc, target: CpuTarget) -> Arrangement:
    """Schedule any program: outermost loops become parallel if their iterations are proved to be independent. TVM's
    scheduler relies on the declared reads and kinds of axes, `in_order` on the accesses."""
    del target  # independent of the processor
    return Arrangement(lambda: in_order(parallelise_outer_loops(func)), handed_on(func))
