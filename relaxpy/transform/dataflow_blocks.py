"""Transform the dataflow blocks of a function one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from relaxpy.ir.expr import DataflowBlock, Function, SeqExpr
from relaxpy.ir.visitor import Rewriter

BlockChange = Callable[[DataflowBlock], DataflowBlock]


def change_blocks(function: Function, change: BlockChange) -> Function:
    """Return the function with `change` applied to each of its dataflow blocks, including those in branches. A block
    without bindings is removed."""
    body = _Blocks(change).rewrite(function.body)
    return function if body is function.body else dataclasses.replace(function, body=body)


class _Blocks(Rewriter):
    def __init__(self, change: BlockChange) -> None:
        super().__init__()
        self.change = change

    def rewrite_SeqExpr(self, node: SeqExpr) -> SeqExpr:
        new = self.generic(node)
        if all(block.bindings for block in new.blocks):
            return new
        kept = tuple(block for block in new.blocks if block.bindings)
        return dataclasses.replace(new, blocks=kept)

    def rewrite_DataflowBlock(self, node: DataflowBlock) -> DataflowBlock:
        return self.change(node)
