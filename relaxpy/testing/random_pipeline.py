"""Random pipelines: passes that a build can do without are left out, put elsewhere, or run twice.

What a pass promises it promises wherever its input is well formed, so every such pipeline must compile a program
to the same results.
"""

from __future__ import annotations

import random

from relaxpy.transform import (
    BindParams,
    BindUnknownShapes,
    CanonicalizeBindings,
    CombineParallelMatmul,
    ConvertToDataflow,
    DeadCodeElimination,
    EliminateCommonSubexpr,
    FoldBatchNorm,
    FoldConstant,
    FuseAttention,
    FuseOps,
    FuseTensorIR,
    InlinePrivateFunctions,
    LambdaLift,
    LegalizeOps,
    LiftWorkspace,
    LowerCallTIR,
    LowerShapes,
    Normalize,
    PackWeights,
    Pass,
    PlanMemory,
    RemoveUnusedOutputs,
    RewriteReshapes,
    Sequential,
    UpdateInPlace,
)

ANYWHERE: tuple[Pass, ...] = (
    CanonicalizeBindings(),
    CombineParallelMatmul(),
    ConvertToDataflow(),
    DeadCodeElimination(),
    EliminateCommonSubexpr(),
    FoldBatchNorm(),
    FoldConstant(),
    FuseAttention(),
    InlinePrivateFunctions(),
    RemoveUnusedOutputs(),
)
"""May stand at any place between the first normal form and the lowering of functions."""
MEMORY: tuple[Pass, ...] = (LiftWorkspace(), RewriteReshapes(), UpdateInPlace(), PlanMemory())
"""May each be left out."""
MOST = 6
"""How many of them a pipeline has at most."""


def random_pipeline(seed: int) -> Sequential:
    """The necessary passes in their order, some of the others anywhere. The same seed gives the same pipeline."""
    rng = random.Random(seed)
    middle: list[Pass] = [BindUnknownShapes(), LegalizeOps()]
    if rng.random() < 0.7:
        middle += [FuseOps(), FuseTensorIR()]
    if rng.random() < 0.5:
        middle.append(PackWeights())
    for step in rng.choices(ANYWHERE, k=rng.randint(1, MOST)):
        middle.insert(rng.randint(0, len(middle)), step)
    memory = [step for step in MEMORY if rng.random() < 0.8]
    lowering = [LambdaLift(), LowerCallTIR(), *memory, LowerShapes()]
    return Sequential((BindParams(), Normalize(), *middle, *lowering))
