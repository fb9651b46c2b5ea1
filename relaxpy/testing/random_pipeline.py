"""Random pipelines: optional passes are left out, moved, or repeated.

A pass must be correct for any well-formed input, so every such pipeline must preserve the results of a program.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from relaxpy.build.pipeline import default_pipeline
from relaxpy.transform import (
    CombineParallel,
    ConvertToDataflow,
    DeadCodeElimination,
    Pass,
    Sequential,
)

_PHASES = {phase.name: phase.passes for phase in default_pipeline().phases}

ANYWHERE: tuple[Pass, ...] = tuple(
    sorted(
        {*_PHASES["simplify"], ConvertToDataflow(), *_PHASES["match"], CombineParallel()},
        key=lambda step: (step.name, repr(step)),
    )
)
"""Passes that may run at any position between the first normal form and the lowering of functions."""
NECESSARY: tuple[Pass, ...] = (
    *(step for step in _PHASES["normalise"] if step not in ANYWHERE),
    *_PHASES["legalise"],
)
LOWERING: tuple[Pass, ...] = tuple(
    step for step in _PHASES["lower"] if step != DeadCodeElimination()
)
MOST = 6
"""The most of these movable passes in a pipeline."""


def random_pipeline(seed: int) -> Sequential:
    """The required passes in order, with some of the others at random positions. Fusion, layout and each pass of the
    memory plan may be left out. The same seed gives the same pipeline."""
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


def random_order(seed: int) -> Sequential:
    """All passes of the default pipeline, in another order that their prerequisites allow: those between the first
    normal form and the lowering of functions are mixed, as are those on memory. The same seed gives the same order."""
    rng = random.Random(seed)
    between = ("simplify", "normalise", "match", "legalise", "fuse", "layout")
    mixed = _mixed([step for name in between for step in _PHASES[name]], rng)
    memory = _mixed(_PHASES["memory"], rng)
    return Sequential((*_PHASES["prepare"], *mixed, *_PHASES["lower"], *memory, *_PHASES["shapes"]))


def _mixed(passes: Sequence[Pass], rng: random.Random) -> list[Pass]:
    """The passes in a random order in which each comes after its prerequisites."""
    waiting, done = list(passes), list[Pass]()
    while waiting:
        left = {step.name for step in waiting}
        ready = [step for step in waiting if left.isdisjoint(step.prerequisites)]
        step = rng.choice(ready)
        waiting.remove(step)
        done.append(step)
    return done
