"""The pipeline, as data: numbered phases in the order of the paper's figure 13."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from relaxpy.errors import UsageError
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
    PackWeights,
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
    # 4. Constants are laid out as the kernels read them.
    Phase("layout", (PackWeights(),)),
    # 5. Functions become flat, memory explicit and shared.
    Phase("lower", (LambdaLift(), LowerCallTIR(), PlanMemory())),
    # 6. Symbolic shapes become slots of an integer heap.
    Phase("shapes", (LowerShapes(),)),
)


def default_pipeline(
    phases: tuple[Phase, ...] = DEFAULT, *, without: Collection[str] = ()
) -> Sequential:
    """All phases as one pass, but for the passes of these names (`"pack-weights"`). Raises UsageError for a name that
    none of them has."""
    steps = [step for phase in phases for step in phase.passes]
    names = [step.name for step in steps]
    for name in without:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise UsageError(
                "unknown-pass",
                f"the pipeline has no pass {name!r}",
                help=f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}",
            )
    return Sequential(tuple(step for step in steps if step.name not in without))
