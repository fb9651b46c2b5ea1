"""The rule for what no other rule knows: parallel where that is provably safe, otherwise as written."""

from __future__ import annotations

from relaxpy.analysis.independence import in_order
from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.lowering.workspace import handed_on
from relaxpy.tir.schedule import parallelise_outer_loops
from relaxpy.tir.tvm import tirx


def schedule_any(func: tirx.PrimFunc, target: CpuTarget) -> Arrangement:
    """Any program: outermost loops parallel where their iterations are proved to be independent. TVM's scheduler goes
    by what the author declares, reads and kinds of axes; `in_order` by the accesses."""
    del target  # nothing here depends on the processor
    return Arrangement(lambda: in_order(parallelise_outer_loops(func)), handed_on(func))
