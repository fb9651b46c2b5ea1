"""Decompressed values that several matrix products read: each product gets a computation of its own.

Fusion groups a value with its post-dominator. The readers of a shared value have none that it could be fused into, so
the value would be in memory, and its readers would be products of floats. Where the product has another factor that is
decompressed (activations and weights that are both quantised), it is computed on what is compressed, if both are fused
into it: one computation for each product costs nothing. So it is with a weight that is decompressed of parameters
alone: floats of all weights that a training step reads twice, forward and back, would be in memory between.
"""

from __future__ import annotations

import dataclasses
from functools import cache, partial

from relaxpy.analysis.fusion_graph import FusionGraph, decompresses
from relaxpy.analysis.scope import dependencies
from relaxpy.ir.accessors import expect
from relaxpy.ir.expr import Binding, Call, DataflowBlock, DataflowVar, Function, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter
from relaxpy.op.call import CallTIR
from relaxpy.tir.recognise.pattern_kind import PatternKind
from relaxpy.transform.dataflow_blocks import change_blocks


def repeat_decompressions(mod: IRModule) -> IRModule:
    """Return the module with such values of its dataflow blocks computed once for each product."""

    def change(_name: str, function: Function) -> Function:
        return change_blocks(function, partial(_repeated, mod=mod))

    return mod.map_graph_functions(change)


def _repeated(block: DataflowBlock, mod: IRModule) -> DataflowBlock:
    shared = _shared(block, mod)
    if not shared:
        return block
    bindings: list[Binding] = []
    again: dict[int, list[int]] = {}
    """Of each binding, those that are repeated for it."""
    for source, (_, *readers) in shared.items():
        for reader in readers:
            again.setdefault(reader, []).append(source)
    for number, binding in enumerate(block.bindings):
        own = _Renamed()
        for source in again.get(number, ()):
            old = expect(VarBinding, block.bindings[source])
            var = DataflowVar(old.var.name, old.var.annotation, span=old.var.span)
            bindings.append(VarBinding(var, old.value, span=old.span))
            own.vars[old.var] = var
        bindings.append(own.rewrite(binding) if own.vars else binding)
    return dataclasses.replace(block, bindings=tuple(bindings))


def _shared(block: DataflowBlock, mod: IRModule) -> dict[int, list[int]]:
    """The bindings that are repeated, and the readers of each."""
    bindings, needs = block.bindings, dependencies(block.bindings)

    @cache
    def is_small(number: int) -> bool:
        value = bindings[number].value
        return isinstance(value, Call) and type(value.op) is CallTIR and decompresses(value, mod)

    readers: dict[int, list[int]] = {}
    for user, used in enumerate(needs):
        for number in used:
            readers.setdefault(number, []).append(user)
    shared = {
        number: users
        for number, users in sorted(readers.items())
        if len(users) > 1 and isinstance(bindings[number].var, DataflowVar) and is_small(number)
    }
    if not shared:
        return {}
    kinds = [node.kind for node in FusionGraph(block, mod).nodes]

    def multiplies(user: int, number: int) -> bool:
        is_product = kinds[user] is PatternKind.OUTPUT_EWISE_FUSIBLE
        others = needs[user] - {number}
        return is_product and (not needs[number] or any(is_small(other) for other in others))

    return {
        number: users
        for number, users in shared.items()
        if kinds[number] <= PatternKind.INJECTIVE and all(multiplies(u, number) for u in users)
    }


class _Renamed(Rewriter):
    """Replaces variables in a binding."""
