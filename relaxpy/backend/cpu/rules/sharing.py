"""Which programs may need workspaces? Decided without scheduling them, for every program in every build."""

from __future__ import annotations

from relaxpy.analysis.index_checks import is_checked
from relaxpy.backend.cpu.rules.blocks import may_be_long
from relaxpy.backend.cpu.rules.long_rows import may_be_cut
from relaxpy.backend.cpu.rules.places import product
from relaxpy.tir.lowering.workspace import handed_on
from relaxpy.tir.programs.loops import constant
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.schedule import asserts
from relaxpy.tir.tvm import tirx


def may_have_workspaces(func: tirx.PrimFunc) -> bool:
    """Return False for a program whose schedule needs no workspaces, whichever rule applies: stages that run together,
    row by row, unless rows are long, and a single stage unless it is a long reduction
    (`relaxpy.backend.cpu.rules.reduction`).

    The stages are read before elementary functions are expanded, since they are cached from earlier passes. If the
    expansion creates more stages, their memory may stay inside the kernel.
    """
    stages = None if is_checked(func) or asserts(func) else s.stages_of(func)
    if stages is None:
        return True if is_checked(func) else bool(handed_on(func))
    if may_be_cut(stages):
        return True
    if len(stages) == 1:
        return stages[0].combiner is not None and may_be_long(stages[0])
    rows = s.common_rows(stages)
    return constant(product(stages[-1].buffer.shape[:rows])) == 1
