"""The pipeline, as data: numbered phases in the order of the paper's figure 13."""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.transform import (
    BindParams,
    BindUnknownShapes,
    FuseOps,
    FuseTensorIR,
    LambdaLift,
    LegalizeOps,
    LowerCallTIR,
    LowerShapes,
    Normalize,
    Pass,
    PlanMemory,
    Sequential,
)


@dataclass(frozen=True)
class Phase:
    """A step of the pipeline that people speak of."""

    name: str
    passes: tuple[Pass, ...]


DEFAULT: tuple[Phase, ...] = (
    # 1. The program as written: parameters in, A-normal form, every shape of known rank named.
    Phase("prepare", (BindParams(), Normalize(), BindUnknownShapes())),
    # 2. Operators become tensor programs.
    Phase("legalise", (LegalizeOps(),)),
    # 3. Tensor programs that belong together become one (figure 9).
    Phase("fuse", (FuseOps(), FuseTensorIR())),
    # 4. Functions become flat, memory explicit and shared.
    Phase("lower", (LambdaLift(), LowerCallTIR(), PlanMemory())),
    # 5. Symbolic shapes become slots of an integer heap.
    Phase("shapes", (LowerShapes(),)),
)


def default_pipeline(phases: tuple[Phase, ...] = DEFAULT) -> Sequential:
    """All phases as one pass."""
    return Sequential(tuple(step for phase in phases for step in phase.passes))
