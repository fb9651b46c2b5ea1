"""A scan as a private function that calls itself for each half of its rows: what rules of differentiation write for
steps that follow each other.

Its derivative is that of a recursion: of n rows, log2 n depths each compute again the states of their first half, and
nothing else is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaxpy.ir.annotation import TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar, dim_op
from relaxpy.ir.expr import Call, Expr, Function, GlobalVar, SeqExpr, Tuple, Var
from relaxpy.ir.known import KnownTensor
from relaxpy.op.base import as_expr
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.rule import Rule


def scan_function(
    bb: BlockBuilder, rule: Rule, step: Any, first: Sequence[Expr], rows: Mapping[str, Expr], shared: Mapping[str, Expr]
) -> tuple[GlobalVar, list[Expr]]:  # fmt: skip
    """A function of states, rows and what all steps share, which gives the last states and the outputs of the steps,
    and its arguments. `step(b, states, row, shared)` emits a step; it returns states, and an output that has the shape
    of the first state."""
    symbols: dict[Dim, Dim] = {}

    def own(dim: Dim) -> Dim:
        """A symbol of the function for each size that is not known."""
        if dim.value is not None:
            return dim
        return symbols.setdefault(dim, SymVar(f"n{len(symbols)}").dim)

    def param(name: str, known: KnownTensor, lead: Sequence[Dim] = ()) -> Var:
        dims = (*lead, *map(own, known.dims[len(lead) :]))
        return Var(name, TensorType(dims, known.dtype))

    length = SymVar("length").dim
    states = [param(f"state{i}", rule.known(each)) for i, each in enumerate(first)]
    given = {name: param(name, rule.known(each), (length,)) for name, each in rows.items()}
    same = {name: param(name, rule.known(each)) for name, each in shared.items()}
    params = [*states, *given.values(), *same.values()]
    kinds = [rule.known(each) for each in states]
    outputs = TensorType((length, *kinds[0].dims), kinds[0].dtype)
    ret = TupleType((*(TensorType(each.dims, each.dtype) for each in kinds), outputs))
    name = bb.add_func(Function(tuple(params), SeqExpr((), Tuple(())), ret), "scan").name
    called, b = GlobalVar(name), Rule(bb.emit)
    with bb.function(name, params, private=True, ret=ret):
        with bb.seq() as halves:
            middle, now, found = length // 2, list[Expr](states), list[Expr]()
            for begin, end in ((Dim.of(0), middle), (middle, length)):
                part = [b.strided_slice(each, (0,), (begin,), (end,)) for each in given.values()]
                done = bb.emit(Call(called, (*now, *part, *same.values())))
                *now, y = b.fields(done)
                found.append(y)
            whole = bb.match_cast(b.concat(tuple(found), axis=0), outputs)
            halves.result(Tuple((*now, whole)))
        with bb.seq() as one:
            row = {n: b.reshape(each, b.dims(each)[1:]) for n, each in _only(bb, b, given).items()}
            after, y = step(b, states, row, same)
            whole = bb.match_cast(b.expand_dims(y, 0), outputs)
            one.result(Tuple((*after, whole)))
        with bb.seq() as none:
            none.result(Tuple((*states, b.zeros(outputs.dims, outputs.dtype))))
        with bb.seq() as short:
            short.result(bb.emit_if(as_expr(dim_op("lt", 0, length)), one.seq, none.seq))
        last = bb.emit_if(as_expr(dim_op("lt", 1, length)), halves.seq, short.seq)
        bb.emit_func_output(last)
    return called, [*first, *rows.values(), *shared.values()]


def _only(bb: BlockBuilder, b: Rule, rows: Mapping[str, Var]) -> dict[str, Var]:
    """Rows of which there is one."""
    found: dict[str, Var] = {}
    for name, each in rows.items():
        known = b.known(each)
        found[name] = bb.match_cast(each, TensorType((1, *known.dims[1:]), known.dtype))
    return found
