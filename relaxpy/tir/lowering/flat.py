"""Flatten buffers to one dimension, with TVM's pass, but without its wrong quotients and remainders.

The pass simplifies each index as a map of the loops around it. For a quotient or remainder that does not divide evenly
it pads the loops, which is right for sums of loops without an offset, divided by positive numbers: `(i * 4 + j) // 4`.
For others it is not: `(2 - i) % n` becomes `i % -n * -1`, without the 2, and `(i - 1) // 7 // 5` is rounded wrongly.
Those are hidden from the pass.

The pass divides by dimensions, and ends with an error if one turns out to be 0 (`max(0, -n)`, of `x[:, n:0]`). Those
are 0 before it runs.

Memory of no elements gets one, which nothing reads: languages of devices have no empty arrays.
"""

from __future__ import annotations

from typing import Any

from relaxpy.tir.nodes import FLOOR_DIVISIONS, operator_of, size_vars, with_body
from relaxpy.tir.operators import READS_STATE, register
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, rewritten, walk

Expr = tvm.ir.Expr

_HIDDEN = "relaxpy.division"

register(_HIDDEN, "Its operand, a quotient or remainder of which no pass knows.", READS_STATE)


@tvm.transform.module_pass(opt_level=0, name="relaxpy.FlattenBuffer")
def flatten_buffers(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Return the module with buffers of one dimension."""
    hidden = {var: _hidden(_with_no_elements(func)) for var, func in mod.functions.items()}
    flat = tirx.transform.FlattenBuffer()(tvm.IRModule(hidden))
    return tvm.IRModule({var: _shown(func) for var, func in flat.functions.items()})


def _with_no_elements(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with 0 for dimensions that are no larger whatever the sizes are."""
    buffers = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    walk(func.body, (tirx.AllocBuffer, lambda stmt: buffers.append(stmt.buffer)))
    buffers = [each for each in buffers if any(map(_is_limited, each.shape))]
    if not buffers:
        return func
    analyzer = tvm.sym.Analyzer()
    for size in size_vars(func):
        analyzer.update(size, tvm.sym.ConstIntBound(0, tvm.sym.ConstIntBound.POS_INF))

    def is_nothing(size: Expr) -> bool:
        return _is_limited(size) and analyzer.const_int_bound(size).max_value <= 0

    def sized(buffer: Expr) -> Expr:
        shape = [
            tirx.const(0, size.ty.dtype) if is_nothing(size) else size for size in buffer.shape
        ]
        return tirx.decl_buffer(
            shape, buffer.dtype, buffer.name, strides=buffer.strides, elem_offset=buffer.elem_offset,
            scope=buffer.scope(), data_alignment=buffer.data_alignment, layout=buffer.layout,
        )  # fmt: skip

    new = {buffer: sized(buffer) for buffer in buffers if any(map(is_nothing, buffer.shape))}
    if not new:
        return func
    return tvm_ffi.structural_map(func, (tvm.ir.Var, lambda var: new.get(var, var)))


def _is_limited(size: Expr) -> bool:
    """May it be a constant though it has variables?"""
    return contains(size, (tirx.Max, tirx.Min))


def without_empty_memory(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function, whose buffers are flat, with an element in those of its own memory that have none."""
    new: dict[Any, Any] = {}

    def note(stmt: Any) -> None:
        old = stmt.buffer
        if any(isinstance(size, tirx.IntImm) and int(size.value) == 0 for size in old.shape):
            new[old] = tirx.decl_buffer(
                (1,), old.dtype, old.name, scope=old.scope(), data_alignment=old.data_alignment, layout=None
            )  # fmt: skip

    walk(func.body, (tirx.AllocBuffer, note))
    if not new:
        return func
    return tvm_ffi.structural_map(func, (tvm.ir.Var, lambda var: new.get(var, var)))


def _hidden(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if not contains(func.body, FLOOR_DIVISIONS):
        return func
    sizes = _Sizes(func)
    from_0 = not contains(func.body, tirx.For, lambda loop: not sizes.are_in(loop.min, least=0))

    def hide(node: Expr) -> Expr:
        if from_0 and sizes.is_even(node.a) and sizes.are_in(node.b):
            return node
        return tirx.call_intrin(node.ty, _HIDDEN, node)

    return with_body(func, rewritten(func.body, (FLOOR_DIVISIONS, hide)))


def _shown(func: tirx.PrimFunc) -> tirx.PrimFunc:
    def show(call: tvm.ir.Call) -> Expr:
        return call.args[0] if operator_of(call) == _HIDDEN else call

    return with_body(func, rewritten(func.body, (tvm.ir.Call, show)))


class _Sizes:
    """The dimensions of a function's arguments, which are not negative."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.known = size_vars(func)

    def are_in(self, expr: Expr, least: int = 1) -> bool:
        """Is it a constant of at least `least`, or a product or sum of such constants and of sizes?"""
        if isinstance(expr, (tirx.Mul, tirx.Add)):
            return self.are_in(expr.a, least) and self.are_in(expr.b, least)
        return expr in self.known or (isinstance(expr, tirx.IntImm) and int(expr.value) >= least)

    def is_even(self, expr: Expr) -> bool:
        """Is it a sum of variables, times positive factors, without an offset?"""
        match expr:
            case tvm.ir.Var():
                return True
            case tirx.Add():
                return self.is_even(expr.a) and self.is_even(expr.b)
            case tirx.Mul():
                factors = ((expr.a, expr.b), (expr.b, expr.a))
                return any(self.is_even(a) and self.are_in(b) for a, b in factors)
            case tirx.FloorDiv() | tirx.FloorMod():
                return self.is_even(expr.a) and self.are_in(expr.b)
            case _:
                return False
