"""FuseOpsByPattern: cut regions that match registered patterns out into separate functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from relaxpy.analysis.dataflow_match import Match
from relaxpy.analysis.pattern_regions import PatternRegions, PatternReport, warn_unmatched
from relaxpy.ir.expr import DataflowBlock
from relaxpy.ir.module import IRModule
from relaxpy.ir.pattern import AnyPattern, Pattern
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.outline import COMPOSITE, PRIMITIVE, Region, outline


@dataclass(frozen=True)
class FusionPattern:
    """A named pattern of values that are computed together."""

    name: str
    """Name of the function and value of its attribute `Composite`: `"attention"`, `"blas.matmul_bias"`."""
    pattern: AnyPattern
    annotations: Mapping[str, Pattern] = field(default_factory=dict[str, Pattern])
    """Names of subpatterns, for `check` (TVM's `annotation_patterns`)."""
    check: Callable[[Match, Mapping[str, Pattern]], bool] | None = None
    """Accepts or rejects a match. Gets `annotations`, so that it can find subpatterns by name:
    `match[names["weight"]]`.
    """
    attrs: Mapping[str, Any] | Callable[[Match], Mapping[str, Any]] | None = None
    """Attributes of the functions, or a function that makes them of a match; None: `{"Composite": name}`.
    `{"Primitive": True}` makes FuseTensorIR merge the tensor programs into one; FuseOps leaves such functions as they
    are."""
    further_outputs: bool = False
    """Also match regions whose inner values are used elsewhere. These values become additional results of the function.
    """
    expected: bool = False
    """Warn (`UnmatchedPatternWarning`) if a module has no region that matches."""

    def refusal(self, match: Match) -> str:
        """The reason why a match is rejected; empty if it is accepted."""
        if self.check is None or self.check(match, self.annotations):
            return ""
        return "the check of the pattern returned false"


@dataclass(frozen=True)
class FuseOpsByPattern(Pass):
    """Cut the regions of dataflow blocks that match patterns into private functions (paper §4.2; TVM's
    `FuseOpsByPattern`). Patterns are tried in the order of registration: a special fusion (attention, say) that comes
    first keeps its operators together, and FuseOps groups the rest. Regions are disjoint, and no path leads out of a
    region and back in. A region with an inner value that is used elsewhere does not match, unless the pattern allows
    further outputs.

    The pass works at every level: on operators before legalisation, on tensor programs, on library calls.

    Before:
        @I.ir_module
        class Module:
            @R.function
            def main(
                x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 32), "float32")
            ) -> R.Tensor(("n", 32), "float32"):
                n = T.int64()
                with R.dataflow():
                    lv = R.matmul(x, w)
                    lv1 = R.nn.relu(lv)
                    gv = R.exp(lv1)
                    R.output(gv)
                return gv
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(
                x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 32), "float32")
            ) -> R.Tensor(("n", 32), "float32"):
                n = T.int64()
                cls = Module
                with R.dataflow():
                    lv1 = cls.fused_matmul_relu(x, w)
                    gv = R.exp(lv1)
                    R.output(gv)
                return gv

            @R.function(private=True)
            def fused_matmul_relu(
                x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 32), "float32")
            ) -> R.Tensor(("n", 32), "float32"):
                R.func_attr({"Composite": "matmul_relu"})
                n = T.int64()
                with R.dataflow():
                    lv = R.matmul(x, w)
                    lv1 = R.nn.relu(lv)
                    R.output(lv1)
                return lv1
    """

    name: ClassVar[str] = "fuse-ops-by-pattern"
    patterns: tuple[FusionPattern, ...] = ()

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        reports = [PatternReport(pattern.name) for pattern in self.patterns]

        def regions(block: DataflowBlock, at: IRModule) -> list[Region]:
            found = PatternRegions(block, at)
            return [
                Region(region.members, _function_name(pattern.name), _attrs(pattern, region.match))
                for pattern, report in zip(self.patterns, reports, strict=True)
                for region in found.claim(
                    pattern.pattern,
                    pattern.refusal,
                    report,
                    further_outputs=pattern.further_outputs,
                )
            ]

        fused = outline(mod, regions, whole=(PRIMITIVE, COMPOSITE))
        warn_unmatched(r for p, r in zip(self.patterns, reports, strict=True) if p.expected)
        return fused


def _attrs(pattern: FusionPattern, match: Match) -> Mapping[str, Any]:
    if pattern.attrs is None:
        return {COMPOSITE: pattern.name}
    return pattern.attrs(match) if callable(pattern.attrs) else pattern.attrs


def _function_name(name: str) -> str:
    """A valid identifier for a pattern name: `fused_blas_matmul` for `blas.matmul`."""
    return "fused_" + re.sub(r"\W+", "_", name).strip("_")
