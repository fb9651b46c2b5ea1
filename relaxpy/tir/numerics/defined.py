"""Operations of tensor programs whose result a processor leaves open, with the results of the operators of the same
name: conversions of floats to integers, and shifts. Divisions are defined for every program, in its lowering
(`relaxpy.tir.lowering.traps`), but for those by a difference that is always 0, or by the smallest integer, which has no
negative: TVM's simplifier fails on them.

And loops over unsigned integers, which become loops over int64: TVM's analyser takes 0 - 1 for the last value of one
that never runs, and refuses the negative number.

And indices of few bits that wrap around. TVM's analyser, which schedules and passes ask, takes `cast(int64, a * b)` for
`cast(int64, a) * cast(int64, b)`, and `cast(int8, i)` for `i`. It knows nothing of numbers made of bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy.tir.analyzer import int64, unproved_beyond_64_bits
from relaxpy.tir.nodes import DIVISIONS, dtype_of, operator_of, with_body
from relaxpy.tir.numerics import integer, scalar
from relaxpy.tir.numerics.floats import is_compound, let
from relaxpy.tir.ranges import Ranges, limits
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import contains, rewritten

_ORDERS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_SHIFTS = {tirx.LShift: integer.left_shift, tirx.RShift: integer.right_shift}


def with_defined_results(func: Any) -> Any:
    """Return the function with conversions of floats that saturate (NaN gives 0), shifts that shift everything out for
    a negative number or for the number of bits and more, loops over signed integers, and indices that may wrap hidden
    from the analyser."""
    return _with_divisors(_with_hidden_wraps(_with_saturation(_with_signed_loops(func))))


def _with_divisors(func: Any) -> Any:
    """What is divided by an expression that simplifies to 0, as 0: what it is at run time; and the smallest integer as
    a divisor made of its bits."""
    analyzer = tvm.sym.Analyzer()

    def quotient(node: Any) -> Any:
        dtype, divisor = dtype_of(node), node.b
        if "int" not in dtype or "x" in dtype or isinstance(divisor, tvm.ir.Var):
            return node
        with unproved_beyond_64_bits():
            divisor = analyzer.simplify(divisor)
        if _is_zero(divisor):
            return tirx.const(0, dtype)
        return type(node)(node.a, _as_bits(divisor)) if _is_least(divisor) else node

    return with_body(func, rewritten(func.body, (DIVISIONS, quotient)))


def _with_signed_loops(func: Any) -> Any:
    def signed(loop: Any) -> Any:
        dtype = dtype_of(loop.loop_var)
        if not dtype.startswith("uint"):
            return loop
        old, var = loop.loop_var, tirx.Var(loop.loop_var.name, "int64")
        number = tirx.Cast(old.ty, var)
        body = rewritten(loop.body, (tvm.ir.Var, lambda v: number if v.same_as(old) else v))
        step = None if loop.step is None else int64(loop.step)
        return tirx.For(
            var, int64(loop.min), int64(loop.extent), loop.kind, body, loop.thread_binding, loop.annotations, step,
        )  # fmt: skip

    return with_body(func, rewritten(func.body, (tirx.For, signed)))


def _with_saturation(func: Any) -> Any:
    ranges = Ranges(func)

    def convert(node: Any) -> Any:
        old, new = dtype_of(node.value), dtype_of(node)
        if "float" not in old or "int" not in new or "x" in new:
            return node
        return scalar.cast(node.value, new)

    def shift(node: Any) -> Any:
        low, high = ranges.of(node.b)
        is_scalar = "x" not in dtype_of(node)
        if not is_scalar or (low >= 0 and high < tvm.DataType(dtype_of(node)).bits):
            return node
        return _shifted(_SHIFTS[type(node)], node.a, node.b)

    conversions = (tirx.Cast, convert), (tuple(_SHIFTS), shift)
    return with_body(func, rewritten(func.body, *conversions, (_ORDERS, _signed_order)))


def _signed_order(node: Any) -> Any:
    """A comparison of unsigned integers as one of int64: TVM's simplifier subtracts what is compared, and refuses a
    negative number of an unsigned type. Elements are not simplified, except beside a 0."""
    a, b, dtype = node.a, node.b, dtype_of(node.a)
    if not dtype.startswith("uint") or "x" in dtype:
        return node
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        left, right = int(a.value), int(b.value)
        return _literal(node, (left > right) - (left < right))
    if _is_zero(b) and isinstance(node, (tirx.LT, tirx.GE)):
        return _literal(node, 0)
    if _is_zero(a) and isinstance(node, (tirx.GT, tirx.LE)):
        return _literal(node, 0)
    if dtype == "uint64" or contains(node, tvm.ir.TensorLoad):
        return node
    return type(node)(a.astype("int64"), b.astype("int64"))


def _literal(node: Any, order: int) -> Any:
    """A comparison of literals that has the result of one whose sides are ordered so."""
    return type(node)(tirx.const(order, "int64"), tirx.const(0, "int64"))


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.IntImm) and int(value.value) == 0


def _is_least(value: Any) -> bool:
    """Is it the smallest number of a signed type?"""
    own = limits(dtype_of(value))
    return isinstance(value, tirx.IntImm) and own is not None and int(value.value) == own[0] < 0


def _shifted(shift: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """A shift, which uses its operands several times."""
    if is_compound(a):
        return let("shifted", a, lambda name: _shifted(shift, name, b))
    if is_compound(b):
        return let("places", b, lambda name: shift(a, name))
    return shift(a, b)


def _with_hidden_wraps(func: Any) -> Any:
    ranges = Ranges(func, of_user=True)

    def hide(node: Any) -> Any:
        if not ranges.wraps(node):
            return node
        number = ranges.wrapped(node)
        if number is not None:  # TVM's simplifier refuses to compute it
            return tirx.const(number, dtype_of(node))
        # A conversion is taken to keep the number. Of a literal, TVM refuses it if it does not.
        return (
            tirx.Cast(node.ty, _signed(node.value))
            if isinstance(node, tirx.Cast)
            else _as_bits(node)
        )

    def hide_place(node: Any) -> Any:
        is_element = contains(node, tvm.ir.TensorLoad) and not _may_become_a_literal(node)
        return node if is_element else hide(node)

    def index(expr: Any) -> Any:
        return rewritten(expr, (_WRAPPING, hide))

    def load(node: Any) -> Any:
        found = [index(i) for i in node.indices]
        return node if _all_same(found, node.indices) else tirx.BufferLoad(node.source, found)

    def store(node: Any) -> Any:
        found = [index(i) for i in node.indices]
        if _all_same(found, node.indices):
            return node
        return tirx.BufferStore(node.buffer, node.value, found)

    def bind(node: Any) -> Any:
        value = index(node.value)
        return node if value.same_as(node.value) else tirx.Bind(node.var, value)

    indices = ((tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.Bind, bind))
    body = rewritten(func.body, *indices)
    return with_body(func, rewritten(body, (_WRAPPING, hide_place), (tvm.ir.Call, _hidden_once)))


_WRAPPING = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Cast)


def _may_become_a_literal(node: Any) -> bool:
    """Is it a conversion with a literal in it that its type does not have? TVM refuses to convert that one, which is
    all that is left of `T.if_then_else(0 <= k and k < k, x[k], -3)`."""
    if not isinstance(node, tirx.Cast):
        return False
    own = limits(dtype_of(node))
    return own is not None and contains(
        node.value, tirx.IntImm, lambda number: not own[0] <= int(number.value) <= own[1]
    )


def _as_bits(value: Any) -> Any:
    """The integer, made of its bits."""
    dtype = dtype_of(value)
    other = dtype.removeprefix("u") if dtype.startswith("u") else f"u{dtype}"
    return tirx.reinterpret(dtype, tirx.reinterpret(other, value))


def _signed(value: Any) -> Any:
    """The bits of an integer as a signed one."""
    dtype = dtype_of(value)
    return tirx.reinterpret(dtype[1:], value) if dtype.startswith("u") else _as_bits(value)


def _hidden_once(call: Any) -> Any:
    """The call, if its value is not hidden twice."""
    parts = [call]
    while len(parts) < 4 and operator_of(parts[-1]).endswith(".reinterpret"):
        (inner,) = parts[-1].args
        if not isinstance(inner, tvm.ir.Call):
            return call
        parts.append(inner)
    same = [dtype_of(part) for part in parts]
    is_twice = len(parts) == 4 and same[:2] == same[2:] and same[0] != same[1]
    return parts[2] if is_twice and operator_of(parts[3]).endswith(".reinterpret") else call


def _all_same(new: Sequence[Any], old: Sequence[Any]) -> bool:
    return all(a.same_as(b) for a, b in zip(new, old, strict=True))
