"""Recognise the steps of a recurrent layer: the program of `relaxpy.tir.programs.recurrent`, to the last operation.

The block of the rows says what its steps compute. With that the writer must give the same loops, so the text is only a
hint: a program that differs is not recognised, whatever it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.ir.cell import Cell
from relaxpy.tir import te
from relaxpy.tir.analyzer import VarTable
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import Buffer
from relaxpy.tir.programs.recurrent import CELL, Operands, read, recurrent
from relaxpy.tir.recognise.rows import rows_of
from relaxpy.tir.tvm import tirx, tvm_ffi

_BY_RANK = {1: "lengths", 2: "bias", 3: "peepholes", 5: "projection"}
"""The operands that may be left out, by their ranks."""


@dataclass(frozen=True, eq=False)
class RecurrentForm:
    """The steps of a recurrent layer."""

    step: Cell
    batch_first: bool
    x: Operands
    """The buffers."""
    outs: Sequence[Buffer]
    """The outputs, the last h, and of an LSTM the last c."""


def recurrent_of(func: tirx.PrimFunc) -> RecurrentForm | None:
    """The form of a program; None for others."""
    rows = rows_of(func)
    if len(rows) != 1 or CELL not in rows[0].block.annotations:
        return None
    params = list(func.params)
    if not all(hasattr(p.ty, "shape") for p in params):
        return None
    try:
        step, batch_first = read(str(rows[0].block.annotations[CELL]))
        operands, outs = _parted(step, params)
        again = _written(step, batch_first, operands)
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    bare = tirx.PrimFunc(func.params, func.body, func.ret_type)
    if not tvm_ffi.structural_equal(bare, again, map_free_vars=True):
        return None
    return RecurrentForm(step, batch_first, operands, outs)


def _parted(step: Cell, params: Sequence[Buffer]) -> tuple[Operands, Sequence[Buffer]]:
    """The operands and the results among the parameters."""
    states = 2 if step.kind == "lstm" else 1
    given, outs = params[: -1 - states], params[-1 - states :]
    fixed, others = given[: 2 + states], given[2 + states :]
    found = {_BY_RANK[len(each.shape)]: each for each in others}
    return Operands(*fixed, **found), outs


def _written(step: Cell, batch_first: bool, operands: Operands) -> tirx.PrimFunc:
    """The program of these steps, for parameters of the same shapes."""
    table = VarTable(shared=True)
    inputs = [
        te.placeholder(list(map(table.to_dim, x.shape)), str(x.dtype), x.name)
        for x in operands.given
    ]
    func = PrimFunc.from_te(inputs, recurrent(step, operands.of(inputs), batch_first)).func
    return tirx.PrimFunc(func.params, func.body, func.ret_type)
