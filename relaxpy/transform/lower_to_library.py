"""LowerToLibrary: replace regions that match registered patterns by library calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.dataflow_match import Match
from relaxpy.analysis.pattern_regions import PatternRegions, PatternReport, warn_unmatched
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import DimLike
from relaxpy.ir.expr import (
    Binding,
    DataflowBlock,
    DataflowVar,
    Expr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.pattern import ConstPattern, Pattern, VarPattern, Wildcard, walk
from relaxpy.op.call import call_dps_library
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_blocks import change_blocks


@dataclass(frozen=True)
class LibraryPattern:
    """A pattern and the library function that computes it."""

    name: str
    """The name in reports: `"attention"`."""
    pattern: Pattern
    library: str | Callable[[Match], str]
    """The registered name of the function (`relaxpy.register_library`), or a function that returns the name for a
    match.
    """
    arguments: tuple[Pattern, ...] | Callable[[Match], Sequence[Expr]] | None = None
    """The arguments of the library function, in order: what patterns matched, or what a function makes of a match:
    values that were matched, and constants, such as a weight in the layout that the library reads. None: the tensors
    matched by the pattern's holes (wildcards, variables, constants of any value), in the order of the pattern."""
    condition: Callable[[Match], bool] | None = None
    """Does the function support this match: its types, ranks, known shapes?"""
    workspace: Callable[[Match], DimLike] | None = None
    """The size in bytes of the function's workspace. It becomes an additional output of type uint8, passed as the last
    argument, so that it is part of the memory plan."""
    expected: bool = True
    """Warn (`UnmatchedPatternWarning`) if a module has no region that matches."""

    def refusal(self, match: Match) -> str:
        """The reason why the library cannot compute a match; empty if it can."""
        root = match.roots[0]
        if not isinstance(root, Var) or _outputs(root.annotation) is None:
            return "the shape or dtype of its result is unknown"
        if self.condition is not None and not self.condition(match):
            return "the condition of the rule returned false"
        return ""

    def tensors(self, match: Match) -> tuple[Expr, ...]:
        """The arguments of the library function."""
        if callable(self.arguments):
            return tuple(self.arguments(match))
        if self.arguments is not None:
            return tuple(match[argument] for argument in self.arguments)
        holes = [p for p in walk(self.pattern) if _is_hole(p) and p in match]
        return tuple(
            match[p]
            for p in holes
            if isinstance(p, Pattern)
            and isinstance(match.values[p], Expr)
            and isinstance(match.annotation(p), TensorType)
        )


@dataclass(frozen=True)
class LowerToLibrary(Pass):
    """Replace the regions of dataflow blocks that match patterns by calls of library functions in destination-passing
    style. The rest goes on to code generation (partial lowering, paper §4.6, figure 12; TVM's `FuseOpsByPattern` with
    `RunCodegen`). Patterns are tried in the order of registration; a binding is matched by one pattern at most.

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
                with R.dataflow():
                    lv1 = R.call_dps_library(
                        "blas.matmul_relu", (x, w), out_ty=R.Tensor((n, 32), "float32")
                    )
                    gv = R.exp(lv1)
                    R.output(gv)
                return gv
    """

    name: ClassVar[str] = "lower-to-library"
    patterns: tuple[LibraryPattern, ...] = ()

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        reports = [PatternReport(pattern.name) for pattern in self.patterns]

        def lowered(block: DataflowBlock) -> DataflowBlock:
            found = PatternRegions(block, mod)
            calls: dict[Var, list[Binding]] = {}
            gone: set[int] = set()
            for pattern, report in zip(self.patterns, reports, strict=True):
                for region in found.claim(pattern.pattern, pattern.refusal, report):
                    gone |= region.members
                    root = expect(Var, region.match.roots[0])
                    calls[root] = _library_call(pattern, region.match, root)
            if not calls:
                return block
            bindings: list[Binding] = []
            for i, binding in enumerate(block.bindings):
                bindings += calls.get(binding.var, [] if i in gone else [binding])
            return dataclasses.replace(block, bindings=tuple(bindings))

        after = mod.map_graph_functions(lambda _, function: change_blocks(function, lowered))
        warn_unmatched(r for p, r in zip(self.patterns, reports, strict=True) if p.expected)
        return after


def _library_call(pattern: LibraryPattern, match: Match, root: Var) -> list[Binding]:
    """The bindings that replace a region; the last one binds `root`."""
    name = pattern.library if isinstance(pattern.library, str) else pattern.library(match)
    outputs = _outputs(root.annotation)
    assert outputs is not None
    span = match.bindings[-1].span
    args = Tuple(pattern.tensors(match))
    if pattern.workspace is None:
        call = dataclasses.replace(call_dps_library(name, args, outputs), span=span)
        return [VarBinding(root, call, span=span)]
    room = TensorType((pattern.workspace(match),), "uint8")
    call = dataclasses.replace(call_dps_library(name, args, (*outputs, room)), span=span)
    whole = DataflowVar(f"{root.name}_and_workspace", TupleType((*outputs, room)), span=span)
    found: list[Binding] = [VarBinding(whole, call, span=span)]
    if isinstance(root.annotation, TensorType):
        return [*found, VarBinding(root, TupleGetItem(whole, 0), span=span)]
    parts = [DataflowVar(f"{root.name}_{i}", out, span=span) for i, out in enumerate(outputs)]
    found += [VarBinding(v, TupleGetItem(whole, i), span=span) for i, v in enumerate(parts)]
    return [*found, VarBinding(root, Tuple(tuple(parts)), span=span)]


def _outputs(annotation: Annotation) -> tuple[TensorType, ...] | None:
    """The tensors of a value, if a library can be given memory for each; else None."""
    fields = annotation.fields if isinstance(annotation, TupleType) else (annotation,)
    known = tuple(
        f
        for f in fields
        if isinstance(f, TensorType) and f.dims is not None and f.dtype is not None
    )
    return known if known and len(known) == len(fields) else None


def _is_hole(pattern: object) -> bool:
    return isinstance(pattern, (Wildcard, VarPattern)) or (
        isinstance(pattern, ConstPattern) and pattern.value is None
    )
