"""ConvertToDataflow: group consecutive pure bindings into dataflow blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.analysis.in_place import state
from relaxpy.analysis.purity import is_pure
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    DataflowBlock,
    Function,
    If,
    SeqExpr,
    Var,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter, used_vars
from relaxpy.op.call import CallBuiltin, CallInplacePacked, CallTIRInplace
from relaxpy.op.memory import CheckDim, Intrinsic
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs


@dataclass(frozen=True)
class ConvertToDataflow(Pass):
    """Put every maximal run of bindings without effects and without control flow into one dataflow block
    (`ConvertToDataflow` in TVM). Passes that work on dataflow blocks then also apply to programs written without
    `R.dataflow()`. Adjacent blocks are merged. The outputs of a block are exactly the variables used after it.

    Bindings that update memory of the caller in place stay outside of the blocks, because their order relative to other
    uses of that memory matters.

    Before:
        @R.function(pure=False)
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
            a = R.exp(x)
            b = R.tanh(a)
            _ = R.print(b)
            with R.dataflow():
                c = R.negative(b)
                R.output(c)
            d = R.nn.relu(c)
            return d
    After:
        @R.function(pure=False)
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
            with R.dataflow():
                a = R.exp(x)
                b = R.tanh(a)
                R.output(b)
            _ = R.print(b)
            with R.dataflow():
                c = R.negative(b)
                d = R.nn.relu(c)
                R.output(d)
            return d
    """

    name: ClassVar[str] = "convert-to-dataflow"
    level: ClassVar[int] = 1
    min_size: int = 2
    """Runs with fewer bindings stay unchanged."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return mod.map_graph_functions(
            lambda _, f: with_outputs(_Converter(mod, self.min_size).rewrite_Function(f))
        )


class _Converter(Rewriter):
    def __init__(self, mod: IRModule, min_size: int) -> None:
        super().__init__()
        self.mod = mod
        self.min_size = min_size
        self.state: frozenset[Var] = frozenset()
        """The caller's memory that calls of the current function may update."""

    def rewrite_Function(self, node: Function) -> Function:
        outer, self.state = self.state, state(node)
        result = super().rewrite_Function(node)
        self.state = outer
        return result

    def rewrite_SeqExpr(self, node: SeqExpr) -> Any:
        node = self.generic(node)
        old = {block.bindings: block for block in node.blocks}
        blocks = [
            same if (same := old.get(block.bindings)) and type(same) is type(block) else block
            for block in self.blocks(node)
        ]
        if blocks == list(node.blocks):
            return node
        return dataclasses.replace(node, blocks=tuple(blocks))

    def blocks(self, seq: SeqExpr) -> Sequence[BindingBlock]:
        """Return the bindings of a body, grouped into blocks."""
        marked = {
            b for block in seq.blocks if isinstance(block, DataflowBlock) for b in block.bindings
        }
        found: list[BindingBlock] = []
        plain: list[Binding] = []
        run: list[Binding] = []

        def close_run() -> None:
            """End the current run: it becomes a block unless it is too short."""
            if len(run) < self.min_size and marked.isdisjoint(run):
                plain.extend(run)
            elif run:
                close_plain()
                found.append(DataflowBlock(tuple(run), span=run[0].span))
            run.clear()

        def close_plain() -> None:
            if plain:
                found.append(BindingBlock(tuple(plain), span=plain[0].span))
                plain.clear()

        for binding in seq.bindings:
            if self.may_move(binding):
                run.append(binding)
            else:
                close_run()
                plain.append(binding)
        close_run()
        close_plain()
        return found

    def may_move(self, binding: Binding) -> bool:
        """May this binding be part of a dataflow block?"""
        value = binding.value
        if isinstance(value, (If, Function)):
            return False
        if not isinstance(value, Call):
            return True
        match value.op:
            case CallTIRInplace() | CallInplacePacked():
                return self.state.isdisjoint(used_vars(value))
            case CallBuiltin():
                return False
            case Intrinsic():
                return isinstance(value.op, CheckDim)
            case _:
                return is_pure(value, self.mod)
