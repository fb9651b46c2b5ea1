"""Integer divisions on which a processor traps: by a 0 that is known only at run time they give 0, as in numpy, and the
smallest integer divided by -1 is itself, with remainder 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from relaxpy.tir.lowering.exact import compared
from relaxpy.tir.name_length import DEEPEST, has_more_levels
from relaxpy.tir.nodes import DIVISIONS, dtype_of, operator_of, size_vars, with_body
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, contains_any, rewritten, walk

Expr = tvm.ir.Expr
_GUARDED = (tirx.Select, tirx.Let)


def without_traps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with integer divisions that give a result for all operands, also in the sizes of its buffers.

    LLVM may hoist a division by a symbol before the check that the loop around it runs at all. In this way sizes of 0
    were divided by in programs that never divide by them.
    """
    places = _Places(func)
    body = rewritten(func.body, *((kind, _guard(kind, places)) for kind in DIVISIONS))
    return with_body(func, body)


def _guard(kind: Callable[..., Expr], places: _Places) -> Callable[[Expr], Expr]:
    def replace(node: Expr) -> Expr:
        if "int" not in dtype_of(node):
            return node
        guarded = _guarded(node.b)
        may_be_zero = not guarded and _may_be_zero(node.b)
        is_signed = "uint" not in dtype_of(node) and _OVERFLOW not in guarded
        may_overflow = is_signed and places.may_be_minus_1(node.b) and places.may_be_least(node.a)
        if not may_be_zero and not may_overflow:
            return node
        bound: list[tuple[Expr, Expr]] = []
        a = _once(node.a, bound, is_place=False) if may_overflow else node.a
        b = _once(node.b, bound, is_place=not may_overflow)
        zero, one = (_same(value, b) for value in (0, 1))
        by_zero = tirx.EQ(b, zero)
        traps = [by_zero] if may_be_zero else []
        if may_overflow:
            # Not a comparison with the smallest integer: TVM's simplifier would compute with it.
            is_least = tirx.EQ(tirx.bitwise_not(a), _same(_largest(a), a))
            traps.append(tirx.And(tirx.EQ(b, _same(-1, b)), is_least))
        result = kind(a, tirx.Select(reduce(tirx.Or, traps), one, b))
        if may_be_zero:
            result = tirx.Select(by_zero, zero, result)
        for var, value in reversed(bound):
            result = tirx.Let(var, value, result)
        return result

    return replace


_ZERO, _OVERFLOW = "zero", "overflow"
_READS = (
    (tvm.ir.TensorLoad, lambda _: True),
    (tvm.ir.Call, lambda call: operator_of(call) == "tirx.masked_load"),
)


def _guarded(divisor: Expr) -> set[str]:
    """What a guard that stands there already keeps from a divisor: programs come here more than once, and each guard
    repeats its operands."""
    if not isinstance(divisor, tirx.Select) or not _is_number(divisor.true_value, 1):
        return set()
    found: set[str] = set()
    parts = [divisor.condition]
    while parts:
        part = parts.pop()
        if isinstance(part, tirx.Or):
            parts += [part.a, part.b]
        elif _tests(part, divisor.false_value, 0):
            found.add(_ZERO)
        elif _tests(part.a if isinstance(part, tirx.And) else part, divisor.false_value, -1):
            found.add(_OVERFLOW)
    return found if _ZERO in found else set()


def _tests(condition: Expr, operand: Expr, value: int) -> bool:
    """Does the condition compare the operand with this number?"""
    pair = compared(condition)
    return (
        pair is not None
        and _is_number(pair[1], value)
        and tvm_ffi.structural_equal(pair[0], operand)
    )


def _is_number(expr: Expr, value: int) -> bool:
    if isinstance(expr, tirx.Broadcast):
        return _is_number(expr.value, value)
    return isinstance(expr, tirx.IntImm) and int(expr.value) == value


def _once(operand: Expr, bound: list[tuple[Expr, Expr]], *, is_place: bool) -> Expr:
    """The operand, or a name for it: it is used several times, and chains of divisions would double with each. Places
    and sizes stay while they are short, since passes simplify them."""
    if not contains(operand, _GUARDED):
        return operand
    if (
        is_place
        and not has_more_levels(operand, 2 * DEEPEST)
        and not contains_any(operand, *_READS)
    ):
        return operand
    var = tirx.Var("operand", operand.ty)
    bound.append((var, operand))
    return var


def _same(value: int, like: Expr) -> Expr:
    """The integer in the type of an expression."""
    return tirx.const(value, dtype_of(like))


def _largest(expr: Expr) -> int:
    return (1 << (tvm.DataType(dtype_of(expr)).bits - 1)) - 1


def _may_be_zero(divisor: Expr) -> bool:
    """Is this an integer that is neither a constant (TVM refuses 0) nor at least 1 by construction?"""
    if isinstance(divisor, tirx.Broadcast):
        return _may_be_zero(divisor.value)
    if isinstance(divisor, tirx.Max):
        return not any(isinstance(e, tirx.IntImm) and e.value > 0 for e in (divisor.a, divisor.b))
    return not isinstance(divisor, tirx.IntImm)


class _Places:
    """Tells integers that count places (loops, axes, sizes, sums and products of them, and names of such), which are
    far from the limits of their type, from those that may be anything."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.sizes: set[Expr] = size_vars(func)
        self.known = set(self.sizes)

        def block(node: s_tir.SBlock) -> None:
            self.known.update(axis.var for axis in node.iter_vars)

        def bind(node: tirx.Bind | tirx.Let) -> None:
            if not self.may_be_least(node.value):
                self.known.add(node.var)

        walk(
            func.body,
            (tirx.For, lambda loop: self.known.add(loop.loop_var)),
            (s_tir.SBlock, block),
        )
        walk(func.body, ((tirx.Bind, tirx.Let), bind))  # loops are visited after what is in them

    def may_be_minus_1(self, divisor: Expr) -> bool:
        """Is it neither a size nor another constant?"""
        if isinstance(divisor, tirx.Broadcast):
            return self.may_be_minus_1(divisor.value)
        if isinstance(divisor, tirx.IntImm):
            return int(divisor.value) == -1
        if isinstance(divisor, tirx.Max):
            return self.may_be_minus_1(divisor.a) and self.may_be_minus_1(divisor.b)
        if isinstance(divisor, (tirx.Mul, tirx.Add)):
            return self.may_be_minus_1(divisor.a) or self.may_be_minus_1(divisor.b)
        if isinstance(divisor, tirx.Select):  # that a guard left
            values = divisor.true_value, divisor.false_value
            return any(map(self.may_be_minus_1, values))
        return divisor not in self.sizes

    def may_be_least(self, dividend: Expr) -> bool:
        """Is it an integer that may be the smallest of its type?"""
        if tvm.DataType(dtype_of(dividend)).bits < _BITS_OF_PLACES:
            return True
        return contains_any(
            dividend,
            ((tvm.ir.TensorLoad, tvm.ir.Call, tirx.Let), lambda _: True),
            (tirx.Cast, lambda cast: tvm.DataType(dtype_of(cast.value)).bits > 32),
            (tirx.IntImm, lambda number: int(number.value) < -_LARGE),
            (tvm.ir.Var, lambda var: var not in self.known),
        )


_BITS_OF_PLACES = 32
_LARGE = 1 << 30
