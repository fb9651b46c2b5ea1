"""Programs whose kernels may hand memory on from part to part: told without arranging them, for every program of every
build."""

from __future__ import annotations

from relaxpy.analysis.index_checks import is_checked
from relaxpy.backend.cpu.rules.blocks import may_be_long
from relaxpy.backend.cpu.rules.places import product
from relaxpy.tir.forms import stages as s
from relaxpy.tir.lowering.workspace import handed_on
from relaxpy.tir.schedule import asserts
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import constant


def may_have_workspaces(func: tirx.PrimFunc) -> bool:
    """False for a program whose arrangement needs no workspaces, whichever rule makes it: stages that run together, row
    by row, and a single stage but for a long reduction (`relaxpy.backend.cpu.rules.reduction`).

    It looks at stages as they were when functions were calls, which are known from the passes before. Where elementary
    functions that are written out make more stages of it, memory may stay inside the kernel.
    """
    stages = None if is_checked(func) or asserts(func) else s.stages_of(func)
    if stages is None:
        return True if is_checked(func) else bool(handed_on(func))
    if len(stages) == 1:
        return stages[0].combiner is not None and may_be_long(stages[0])
    rows = s.common_rows(stages)
    return constant(product(stages[-1].buffer.shape[:rows])) == 1
