"""The pipeline, as data: numbered phases in the order of the paper's figure 13."""

from __future__ import annotations

from collections.abc import Collection

from relaxpy.backend.place_values import PlaceValues
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule_tensor_programs import ScheduleTensorPrograms
from relaxpy.target import Target
from relaxpy.transform import (
    BindParams,
    BindUnknownShapes,
    CanonicalizeBindings,
    CheckCalls,
    CheckTensorPrograms,
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
    PlanMemory,
    RemoveUnusedOutputs,
    RewriteReshapes,
    UpdateInPlace,
)
from relaxpy.transform.phases import Phase, Pipeline

STANDARD: tuple[Phase, ...] = (
    # 1. The program as written: parameters in, A-normal form; tensor programs, and what they take for granted, proved
    # or checked.
    Phase("prepare", (BindParams(), Normalize(), CheckTensorPrograms(), CheckCalls())),
    # 2. What need not be computed goes: small functions, other names, constants, repetitions, what nothing uses.
    Phase(
        "simplify",
        (
            InlinePrivateFunctions(),
            CanonicalizeBindings(),
            FoldConstant(),
            CanonicalizeBindings(),
            FoldBatchNorm(),
            EliminateCommonSubexpr(),
            RemoveUnusedOutputs(),
            DeadCodeElimination(),
        ),
    ),
    # 3. Every shape of known rank is named, and pure bindings in a row are dataflow: what is matched from here on.
    Phase("normalise", (BindUnknownShapes(), ConvertToDataflow())),
    # 4. Operators that together are something special: attention, wide products; here register libraries and fusions of
    # your own.
    Phase("match", (FuseAttention(), CombineParallelMatmul())),
    # 5. The other operators become tensor programs.
    Phase("legalise", (LegalizeOps(),)),
    # 6. Tensor programs that belong together become one (figure 9).
    Phase("fuse", (FuseOps(), FuseTensorIR())),
    # 7. Functions become flat, values get devices, and what functions allocate becomes explicit.
    Phase("lower", (DeadCodeElimination(), LambdaLift(), PlaceValues(), LowerCallTIR())),
    # 8. What the target's schedules need is known: launches, and workspaces (figure 11). Memory is shared: with another
    # shape, with what it is computed from, one after the other (algorithm 3).
    Phase(
        "memory",
        (
            ScheduleTensorPrograms(),
            LiftWorkspace(),
            RewriteReshapes(),
            UpdateInPlace(),
            PlanMemory(),
        ),
    ),
    # 9. Symbolic shapes become slots of an integer heap.
    Phase("shapes", (LowerShapes(),)),
)


def default_pipeline(target: str | Target = "llvm", *, without: Collection[str] = ()) -> Pipeline:
    """The pipeline of a target (this machine's processor): the standard one with what its backend adds, but for the
    passes of these names (`"fuse-ops"`). `Pipeline` has methods to put passes of your own anywhere. Raises UsageError
    for a name that no pass has."""
    target = Target.parse(target)
    backend = backend_of(target)
    standard = Pipeline(phases=STANDARD, kinds=backend.kinds)
    return backend.pipeline(standard, target).without(*without)
