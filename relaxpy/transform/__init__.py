"""The passes: functions from module to module, one per file. `relaxpy.build.pipeline` defines their order."""

from relaxpy.transform.annotate import Annotate
from relaxpy.transform.base import (
    Instrument,
    Pass,
    PassContext,
    Sequential,
    function_pass,
    module_pass,
)
from relaxpy.transform.bind_params import BindParams
from relaxpy.transform.bind_unknown_shapes import BindUnknownShapes
from relaxpy.transform.calibrate import Calibrate
from relaxpy.transform.canonicalize_bindings import CanonicalizeBindings
from relaxpy.transform.cast_weights import CastWeights
from relaxpy.transform.causal_attention import CausalAttention
from relaxpy.transform.check_calls import CheckCalls
from relaxpy.transform.check_numbers import CheckNumbers
from relaxpy.transform.check_tensor_programs import CheckTensorPrograms
from relaxpy.transform.checkpoint import Checkpoint
from relaxpy.transform.combine_parallel import CombineParallel
from relaxpy.transform.convert_layout import ConvertLayout
from relaxpy.transform.convert_to_dataflow import ConvertToDataflow
from relaxpy.transform.dead_code_elimination import DeadCodeElimination
from relaxpy.transform.decompose_ops import DecomposeOps
from relaxpy.transform.drop_unit_axes import DropUnitAxes
from relaxpy.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from relaxpy.transform.fold_constant import FoldConstant
from relaxpy.transform.fold_scale_axis import FoldScaleAxis
from relaxpy.transform.fuse_attention import FuseAttention
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_ops_by_pattern import FuseOpsByPattern, FusionPattern
from relaxpy.transform.fuse_softmax import FuseSoftmax
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR
from relaxpy.transform.gradient import Gradient
from relaxpy.transform.hoist_invariants import HoistInvariants
from relaxpy.transform.inline_private_functions import InlinePrivateFunctions
from relaxpy.transform.join_sizes import JoinSizes
from relaxpy.transform.lambda_lift import LambdaLift
from relaxpy.transform.legalize_ops import LegalizeOps
from relaxpy.transform.lift_packers import LiftPackers
from relaxpy.transform.lift_transform_params import LiftTransformParams
from relaxpy.transform.lift_workspace import LiftWorkspace
from relaxpy.transform.lower_call_tir import LowerCallTIR
from relaxpy.transform.lower_shapes import LowerShapes
from relaxpy.transform.lower_to_library import LibraryPattern, LowerToLibrary
from relaxpy.transform.measure_errors import MeasureErrors
from relaxpy.transform.mixed_precision import MixedPrecision
from relaxpy.transform.monomorphise import Monomorphise
from relaxpy.transform.nest_loops import NestLoops
from relaxpy.transform.normalize import Normalize
from relaxpy.transform.plan_memory import PlanMemory
from relaxpy.transform.quantize_weights import QuantizeWeights
from relaxpy.transform.realize import Realize
from relaxpy.transform.remove_unused_outputs import RemoveUnusedOutputs
from relaxpy.transform.rewrite_reshapes import RewriteReshapes
from relaxpy.transform.simplify_expr import SimplifyExpr
from relaxpy.transform.specialize_functions import SpecializeFunctions
from relaxpy.transform.transpose_linear import TransposeLinear
from relaxpy.transform.update_in_place import UpdateInPlace
from relaxpy.transform.winograd import Winograd

__all__ = [
    "Annotate",
    "BindParams",
    "BindUnknownShapes",
    "Calibrate",
    "CanonicalizeBindings",
    "CastWeights",
    "CausalAttention",
    "CheckCalls",
    "CheckNumbers",
    "CheckTensorPrograms",
    "Checkpoint",
    "CombineParallel",
    "ConvertLayout",
    "ConvertToDataflow",
    "DeadCodeElimination",
    "DecomposeOps",
    "DropUnitAxes",
    "EliminateCommonSubexpr",
    "FoldConstant",
    "FoldScaleAxis",
    "FuseAttention",
    "FuseOps",
    "FuseOpsByPattern",
    "FuseSoftmax",
    "FuseTensorIR",
    "FusionPattern",
    "Gradient",
    "HoistInvariants",
    "InlinePrivateFunctions",
    "Instrument",
    "JoinSizes",
    "LambdaLift",
    "LegalizeOps",
    "LibraryPattern",
    "LiftPackers",
    "LiftTransformParams",
    "LiftWorkspace",
    "LowerCallTIR",
    "LowerShapes",
    "LowerToLibrary",
    "MeasureErrors",
    "MixedPrecision",
    "Monomorphise",
    "NestLoops",
    "Normalize",
    "Pass",
    "PassContext",
    "PlanMemory",
    "QuantizeWeights",
    "Realize",
    "RemoveUnusedOutputs",
    "RewriteReshapes",
    "Sequential",
    "SimplifyExpr",
    "SpecializeFunctions",
    "TransposeLinear",
    "UpdateInPlace",
    "Winograd",
    "function_pass",
    "module_pass",
]


def __dir__() -> list[str]:
    return sorted(__all__)
