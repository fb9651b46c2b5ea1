"""The default pipeline as data: numbered phases in the order of the paper's figure 13."""

from __future__ import annotations

from collections.abc import Collection

from relaxpy.backend.lift_graphs import LiftGraphs
from relaxpy.backend.place_values import PlaceValues
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule_tensor_programs import ScheduleTensorPrograms
from relaxpy.target import Target
from relaxpy.transform import (
    BindParams,
    BindUnknownShapes,
    CanonicalizeBindings,
    CausalAttention,
    CheckCalls,
    CheckTensorPrograms,
    CombineParallel,
    ConvertToDataflow,
    DeadCodeElimination,
    DecomposeOps,
    DropUnitAxes,
    EliminateCommonSubexpr,
    FoldConstant,
    FoldScaleAxis,
    FuseAttention,
    FuseOps,
    FuseSoftmax,
    FuseTensorIR,
    HoistInvariants,
    InlinePrivateFunctions,
    JoinSizes,
    LambdaLift,
    LegalizeOps,
    LiftPackers,
    LiftWorkspace,
    LowerCallTIR,
    LowerShapes,
    Monomorphise,
    NestLoops,
    Normalize,
    PlanMemory,
    RemoveUnusedOutputs,
    RewriteReshapes,
    SimplifyExpr,
    TransposeLinear,
    UpdateInPlace,
)
from relaxpy.transform.phases import Phase, Pipeline

STANDARD: tuple[Phase, ...] = (
    # 1. The source program: bind parameters, A-normal form, functions of the types that are used. Assumptions of tensor
    # programs are proved or become checks.
    Phase(
        "prepare", (BindParams(), Normalize(), Monomorphise(), CheckTensorPrograms(), CheckCalls())
    ),
    # 2. Simplification: inlining of small functions, copy propagation, what is the same in all steps of a loop,
    # constant folding, simpler expressions, scales into weights, common subexpressions, dead code.
    Phase(
        "simplify",
        (
            InlinePrivateFunctions(),
            CanonicalizeBindings(),
            NestLoops(),
            HoistInvariants(),
            FoldConstant(),
            CanonicalizeBindings(),
            SimplifyExpr(),
            FoldScaleAxis(),
            EliminateCommonSubexpr(),
            RemoveUnusedOutputs(),
            DeadCodeElimination(),
        ),
    ),
    # 3. Every shape of known rank is named by symbols, operators that are calls of others become those, and consecutive
    # pure bindings form dataflow blocks, which later passes match.
    Phase("normalise", (BindUnknownShapes(), DecomposeOps(), ConvertToDataflow())),
    # 4. Special patterns of operators, such as attention and wide products. Register library patterns and fusions of
    # your own here. What is computed only of weights that the caller packs moves to their packers.
    Phase(
        "match",
        (
            DropUnitAxes(),
            FuseSoftmax(),
            FuseAttention(),
            CausalAttention(),
            TransposeLinear(),
            CombineParallel(convolutions=False),  # for devices on which a launch takes long
            LiftPackers(),
        ),
    ),
    # 5. The remaining operators become tensor programs.
    Phase("legalise", (LegalizeOps(),)),
    # 6. Tensor programs are fused (figure 9).
    Phase("fuse", (FuseOps(), FuseTensorIR())),
    # 7. Kernels take a sum of many sizes as one, functions are lifted to the top level, values are placed on devices,
    # and allocation becomes explicit.
    Phase(
        "lower",
        (DeadCodeElimination(), JoinSizes(), LambdaLift(), PlaceValues(), LowerCallTIR()),
    ),
    # 8. Properties that the target's schedules need are made explicit: launches, and workspaces (figure 11). Memory is
    # reused: by views, in place, and after the last use (algorithm 3).
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
    # 9. Symbolic shapes become slots of an integer heap. Launches on static memory are put into graphs (§4.5).
    Phase("shapes", (LowerShapes(), LiftGraphs())),
)


def default_pipeline(target: str | Target = "llvm", *, without: Collection[str] = ()) -> Pipeline:
    """The standard pipeline of a target (default: this machine's CPU) with the passes of its backend, without the
    passes named in `without` (`"fuse-ops"`). `Pipeline` has methods to insert passes of your own. Raises UsageError for
    an unknown name."""
    target = Target.parse(target)
    backend = backend_of(target)
    standard = Pipeline(phases=STANDARD, kinds=backend.kinds)
    return backend.pipeline(standard, target).without(*without)
