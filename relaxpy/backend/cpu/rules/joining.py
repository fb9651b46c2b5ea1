"""How a processor combines two values of a reduction."""

from __future__ import annotations

from collections.abc import Callable

from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.numerics import avx512
from relaxpy.tir.programs.loops import Expr
from relaxpy.tir.recognise.stages import Stage


def joining(stage: Stage, target: CpuTarget) -> Callable[[Expr, Expr], Expr]:
    """The function that joins two values of a reduction, the accumulated one first: `Combiner.join`, or what the target
    has instructions for."""
    combiner = stage.combiner
    assert combiner is not None, "only reductions come here"
    if target.has_avx512 and str(stage.buffer.dtype) == "float32":
        match combiner.kind:
            case "maximum":
                return avx512.larger
            case "minimum":
                return avx512.smaller
            case _:
                pass
    return combiner.join
