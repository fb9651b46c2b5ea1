"""Powers of differences to a maximum, as in softmax: weights, at most 1, which take half the operations of `exp`.

In `exp(x[i, j] - largest[i])`, where `largest` is the maximum over the same `x`, nothing is above 0. A power that is
below the normal numbers counts as 0, as in attention: beside the largest weight, which is 1, it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from relaxpy.tir.numerics.elementary import function_of
from relaxpy.tir.numerics.math import exp_of_negative
from relaxpy.tir.programs.loops import Expr, PrimFunc
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Load, Stage, Var
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, rewritten


@lru_cache(maxsize=1024)  # once for each rule and estimate
def with_weights(func: PrimFunc) -> PrimFunc:
    """Return the function with the powers that are weights expanded; the others stay calls."""
    if not contains(func.body, tvm.ir.Call, _is_power):
        return func
    stages = s.read_stages(func) or ()
    largest = [
        stage
        for stage in stages
        if stage.combiner is not None
        and (stage.combiner.of_numbers() or stage.combiner).kind == "max"
        and len(stage.reduce_axes) == 1
    ]
    found: list[tirx.BufferStore] = []

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        own = next((stage for stage in stages if stage.buffer.same_as(node.buffer)), None)
        if own is None:
            return node
        axes = (*own.axes, *own.reduce_axes)

        def power(call: tvm.ir.Call) -> Expr:
            if _is_power(call) and any(_is_difference(call.args[0], x, axes) for x in largest):
                return exp_of_negative(call.args[0])
            return call

        value = rewritten(node.value, (tvm.ir.Call, power))
        if value.same_as(node.value):
            return node
        found.append(node)
        return tirx.BufferStore(node.buffer, value, list(node.indices))

    body = rewritten(func.body, (tirx.BufferStore, store)) if largest else func.body
    return func.with_body(body) if found else func


def _is_power(call: tvm.ir.Call) -> bool:
    return function_of(call) == "exp" and str(call.ty.dtype) == "float32"


def _is_difference(value: Expr, largest: Stage, axes: Sequence[Var]) -> bool:
    """Is the value an element of which a stage takes the maximum, minus that maximum?"""
    if not isinstance(value, tirx.Sub) or not isinstance(value.b, Load):
        return False
    if not value.b.source.same_as(largest.buffer):
        return False
    place = {
        axis: index
        for axis, index in zip(largest.index, value.b.indices, strict=True)
        if isinstance(axis, Var)
    }
    (reduced,) = largest.reduce_axes
    return any(
        tvm_ffi.structural_equal(s.substitute(largest.value, {**place, reduced: axis}), value.a)
        for axis in axes
    )
