"""Functions that compute values of weights ahead of a call, and what is left of the function that they came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    DataflowBlock,
    DataflowVar,
    Expr,
    Function,
    SeqExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter, free_sym_vars, used_symbols
from relaxpy.op.deduce import deduce
from relaxpy.shape.defined import defined_symbols
from relaxpy.shape.lattice import erase
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.fresh_symbols import FreshSymbols


class WithoutBindings(Rewriter):
    """Removes the bindings of some variables."""

    def __init__(self, gone: Collection[Var]) -> None:
        super().__init__()
        self.gone = gone

    def rewrite_SeqExpr(self, node: SeqExpr) -> SeqExpr:
        node = self.generic(node)
        blocks: list[BindingBlock] = []
        for block in node.blocks:
            kept = tuple(b for b in block.bindings if b.var not in self.gone)
            if len(kept) == len(block.bindings):
                blocks.append(block)
            elif kept:
                blocks.append(dataclasses.replace(block, bindings=kept))
        return dataclasses.replace(node, blocks=tuple(blocks))


def weights_first(function: Function, bindings: Sequence[VarBinding]) -> Function:
    """The function with these bindings, which depend on parameters only, before all others."""
    if not bindings:
        return function
    rest = WithoutBindings({binding.var for binding in bindings}).rewrite_SeqExpr(function.body)
    first, *others = rest.blocks or (DataflowBlock(()),)
    if isinstance(first, DataflowBlock):
        blocks = (dataclasses.replace(first, bindings=(*bindings, *first.bindings)), *others)
    else:
        blocks = (DataflowBlock(tuple(bindings)), first, *others)
    body = dataclasses.replace(rest, blocks=blocks)
    return with_outputs(dataclasses.replace(function, body=body))


def still_needed(
    weights: Sequence[Var], used: Collection[Var], others: Sequence[Var], function: Function
) -> list[Var]:
    """The weights that a function still needs: those in `used`, and those that define a symbol which neither they nor
    `others` define."""
    kept = {weight for weight in weights if weight in used}
    symbolic = [w for w in weights if w not in kept and free_sym_vars([w.annotation])]
    needed: set[SymVar] = set()
    if symbolic:
        needed = {*used_symbols(function.body), *free_sym_vars([function.ret])}
    for weight in symbolic:
        annotations = [var.annotation for var in (*others, *kept)]
        lacking = {*needed, *free_sym_vars(annotations)} - defined_symbols(annotations)
        if not lacking.isdisjoint(free_sym_vars([weight.annotation])):
            kept.add(weight)
    return [weight for weight in weights if weight in kept]


def weight_function(
    mod: IRModule,
    weights: Sequence[Var],
    bindings: Sequence[VarBinding],
    result: Var | Sequence[Var],
    name: str,
) -> Function:
    """The public function from weights to one value of these bindings, or to a tuple of several. It has symbols and
    variables of its own."""
    copy = FreshSymbols()
    params: list[Var] = []
    known = defined_symbols(weight.annotation for weight in weights)
    for weight in weights:
        # it depends on a size that only an input defines
        annotation = erase(weight.annotation, lambda symbol: symbol in known)
        param = Var(weight.name, copy.rewrite_annotation(annotation), span=weight.span)
        copy.vars[weight] = param
        params.append(param)
    made: list[Binding] = []
    for binding in bindings:
        value = copy.rewrite(binding.value)
        annotation = copy.rewrite_annotation(binding.var.annotation)
        var = DataflowVar(binding.var.name, annotation, span=binding.var.span)
        copy.vars[binding.var] = var
        made.append(VarBinding(var, value, span=binding.span))
    found: Expr = (
        copy.vars[result]
        if isinstance(result, Var)
        else Tuple(tuple(copy.vars[var] for var in result))
    )
    body = SeqExpr((DataflowBlock(tuple(made)),), found)
    return with_outputs(
        Function(tuple(params), body, deduce(found, mod), attrs={"global_symbol": name})
    )
