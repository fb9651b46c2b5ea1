"""The rule for programs that no other rule recognises: parallel where that is proved safe, otherwise unchanged."""

from __future__ import annotations

from relaxpy.analysis.independence import in_order
from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.lowering.workspace import handed_on
from relaxpy.tir.schedule import with_outer_loops_parallel
from relaxpy.tir.tvm import tirx


def schedule_any(func: tirx.PrimFunc, target: CpuTarget) -> Arrangement:
    """Schedule any program: outermost loops become parallel if their iterations are proved to be independent."""
    del target  # independent of the processor
    return Arrangement(lambda: in_order(with_outer_loops_parallel(func)), handed_on(func))
