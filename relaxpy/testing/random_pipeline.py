"""Random pipelines: passes that a build can do without are left out, put elsewhere, or run twice.

What a pass promises it promises wherever its input is well formed, so every such pipeline must compile a program
to the same results.
"""

from __future__ import annotations

import random

from relaxpy.build.pipeline import default_pipeline
from relaxpy.transform import ConvertToDataflow, DeadCodeElimination, Pass, Sequential

_PHASES = {phase.name: phase.passes for phase in default_pipeline().phases}

ANYWHERE: tuple[Pass, ...] = tuple(
    sorted(
        {*_PHASES["simplify"], ConvertToDataflow(), *_PHASES["match"]}, key=lambda step: step.name
    )
)
"""May stand at any place between the first normal form and the lowering of functions."""
NECESSARY: tuple[Pass, ...] = (
    *(step for step in _PHASES["normalise"] if step not in ANYWHERE),
    *_PHASES["legalise"],
)
LOWERING: tuple[Pass, ...] = tuple(
    step for step in _PHASES["lower"] if step != DeadCodeElimination()
)
MOST = 6
"""How many of those that may stand anywhere a pipeline has at most."""


def random_pipeline(seed: int) -> Sequential:
    """The necessary passes in their order, some of the others anywhere; fusion, layout and each pass of the memory
    plan may be left out. The same seed gives the same pipeline."""
    rng = random.Random(seed)
    middle = list(NECESSARY)
    if rng.random() < 0.7:
        middle += _PHASES["fuse"]
    if rng.random() < 0.5:
        middle += _PHASES["layout"]
    for step in rng.choices(ANYWHERE, k=rng.randint(1, MOST)):
        middle.insert(rng.randint(0, len(middle)), step)
    memory = [step for step in _PHASES["memory"] if rng.random() < 0.8]
    return Sequential((*_PHASES["prepare"], *middle, *LOWERING, *memory, *_PHASES["shapes"]))
