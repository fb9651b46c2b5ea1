"""Copy elements as bits: a stage that only copies is rewritten on integers of the same width.

So every type is moved in the widest vectors, bit by bit, including the payload of a NaN. (A narrow float would
otherwise be widened for arithmetic.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import ml_dtypes
import numpy as np

from relaxpy.tir.programs.loops import Buffer, Expr, Program, simplify
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Load, Stage
from relaxpy.tir.tvm import tirx, tvm


def as_bits(p: Program, stage: Stage, shared: Collection[Buffer] = ()) -> Stage:
    """Rewrite a stage whose value is an element, a constant, or a choice among these on unsigned integers, through
    views declared here. Other stages are returned unchanged, and so are stages that access a buffer in `shared`, which
    other stages access too: for LLVM a view and its buffer are different memory."""
    dtype = str(stage.buffer.dtype)
    if stage.combiner is not None or not dtype.startswith(("float", "bfloat", "bool")):
        return stage
    width = max(8, int(tvm.DataType(dtype).bits))
    bits = f"uint{width}"
    views: dict[Buffer, Buffer] = {}

    def view(buffer: Buffer) -> Buffer:
        if buffer not in views:
            views[buffer] = p.flat_view(buffer, bits)
        return views[buffer]

    def element(node: Load) -> Expr:
        place = simplify(s.flat_index(node.indices, node.source.shape))
        return tirx.BufferLoad(view(node.source), [place])

    if any(buffer in shared for buffer in (stage.buffer, *(r.source for r in stage.loads))):
        return stage
    if not _is_moved(stage.value, dtype):
        return stage
    value = _moved(stage.value, element, bits)
    index = s.flat_index(stage.index, stage.buffer.shape)
    return replace(stage, buffer=view(stage.buffer), index=(index,), value=value)


def _is_moved(value: Expr, dtype: str) -> bool:
    match value:
        case Load():
            return str(value.source.dtype) == dtype
        case tirx.FloatImm():
            return (
                str(value.ty.dtype) == dtype and dtype != "float64"
            )  # TVM has no unsigned 64-bit constants
        case tirx.Select():
            condition, arms = value.condition, [value.true_value, value.false_value]
        case tvm.ir.Call() if s.is_choice(value):
            condition, *arms = value.args
        case _:
            return False
    # A condition that reads elements computes with them.
    return not s.loads_of(condition) and all(_is_moved(arm, dtype) for arm in arms)


def _moved(value: Expr, element: Callable[[Load], Expr], bits: str) -> Expr:
    match value:
        case Load():
            return element(value)
        case tirx.FloatImm():
            dtype = np.dtype(getattr(ml_dtypes, str(value.ty.dtype), None) or str(value.ty.dtype))
            return tirx.const(int(np.array(value.value, dtype).view(bits)), bits)
        case tirx.Select():
            yes, no = (_moved(arm, element, bits) for arm in (value.true_value, value.false_value))
            return tirx.Select(value.condition, yes, no)
        case _:
            condition, *arms = value.args
            return tirx.if_then_else(condition, *(_moved(arm, element, bits) for arm in arms))
