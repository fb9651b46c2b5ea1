"""Lower intrinsics for the target's code generator, and combine products with sums (fused multiply-add).

TVM's `LowerIntrin` does the same with an analyser that visits every node and learns every bound variable and condition:
0.35 s for a matrix product, more than half of the compilation of attention. It needs the analyser only for floor
divisions by other numbers than powers of two. For programs without them (TVM's simplifier, or our schedules, have
removed most) this pass gives the identical tree in 3 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from relaxpy.tir.name_length import has_more_levels
from relaxpy.tir.nodes import FLOOR_DIVISIONS, dtype_of, operator_of, with_body
from relaxpy.tir.ranges import Ranges
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import contains, rewritten

Expr = tvm.ir.Expr
Rule = Callable[[tvm.ir.Call], "Expr | None"]

_RULES = ("llvm.FLowerIntrinsic", "llvm.FLegalize", "default.FLowerIntrinsic", "default.FLegalize")
"""Attributes of operators that hold the lowering rule of a call, in the order in which TVM's pass tries them on x86."""
_FUSED = re.compile(r"float(16|32|64)(x\d+)?")
"""Types for which a product and a sum are one operation."""
_BITS = "tirx.reinterpret"


@tvm.transform.module_pass(opt_level=0, name="relaxpy.LowerIntrinsics")
def lower_intrinsics(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """TVM's `LowerIntrin`, with a fast path for programs whose floor divisions need no analyser."""
    done: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    rest: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for var, func in mod.functions.items():
        if _is_for_x86(func) and not _divides(func):
            done[var] = with_body(func, _lowered(func.body))
        else:
            rest[var] = _with_made_integers(func)
    if rest:
        left = tirx.transform.LowerIntrin()(tvm.IRModule(rest))
        done |= {var: _with_zeros(func) for var, func in left.functions.items()}
    # In the original order, in which they are emitted.
    return tvm.IRModule({var: done[var] for var in mod.functions})


def _with_made_integers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with conversions of integers that may wrap made of bits. `LowerIntrin` takes `cast(int8, x)`
    of an unsigned x for a number of at least 0, and writes a floor division of it as one that truncates."""
    ranges = Ranges(func)

    def made(node: tirx.Cast) -> Expr:
        dtype = dtype_of(node)
        if dtype.startswith("bool") or not ranges.wraps(node):
            return node
        is_place = dtype.startswith("int") and dtype_of(node.value).startswith("int")
        if is_place and tvm.DataType(dtype).bits >= _BITS_OF_PLACES and not _has_loads(node.value):
            return node
        other = dtype.removeprefix("u") if dtype.startswith("u") else f"u{dtype}"
        return tirx.reinterpret(dtype, node.value.astype(other))

    return with_body(func, rewritten(func.body, (tirx.Cast, made)))


_BITS_OF_PLACES = 32


def _has_loads(value: Expr) -> bool:
    return contains(value, tvm.ir.TensorLoad)


@tvm.transform.module_pass(opt_level=0, name="relaxpy.NameDividends")
def name_dividends(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Return the module with names for integers that are divided, as `Let`s, where divisions are nested: `LowerIntrin`
    writes a dividend twice."""
    return tvm.IRModule({var: _with_named_dividends(func) for var, func in mod.functions.items()})


def _with_named_dividends(func: tirx.PrimFunc) -> tirx.PrimFunc:
    def named(node: Expr) -> Expr:
        if not has_more_levels(node.a, _NESTED - 1):
            return node
        var = tirx.Var("dividend", node.a.ty)
        return tirx.Let(var, node.a, type(node)(var, node.b))

    if not has_more_levels(func.body, _NESTED):
        return func
    return with_body(func, rewritten(func.body, (FLOOR_DIVISIONS, named)))


_NESTED = 3
"""Levels of a dividend that has a name."""


def _is_for_x86(func: tirx.PrimFunc) -> bool:
    target = func.attrs["target"]
    return target.kind.name == "llvm" and str(target.attrs.get("mtriple", "")).startswith("x86_64")


def _divides(func: tirx.PrimFunc) -> bool:
    """Has the function floor divisions by other numbers than powers of two?"""
    return contains(func.body, FLOOR_DIVISIONS, lambda node: _power_of_two(node.b) is None)


def _power_of_two(value: Expr) -> int | None:
    """The exponent of a constant power of two, of all lanes if it is a vector; None for other values."""
    if isinstance(value, tirx.Broadcast):
        value = value.value
    number = int(value.value) if isinstance(value, tirx.IntImm) else 0
    return number.bit_length() - 1 if number > 0 and number & (number - 1) == 0 else None


def _lowered(node: tirx.Stmt | Expr) -> tirx.Stmt | Expr:
    entries = (
        (tvm.ir.Call, _call),
        (tirx.Add, _sum),
        (tirx.FloorDiv, _shifted),
        (tirx.FloorMod, _masked),
    )
    return rewritten(node, *entries)


def _shifted(node: Expr) -> Expr:
    """The quotient by a power of two, rounded down."""
    return node.a >> _same_lanes(_exponent(node), node.b)


def _masked(node: Expr) -> Expr:
    """The remainder of that quotient."""
    return node.a & _same_lanes((1 << _exponent(node)) - 1, node.b)


def _exponent(division: Expr) -> int:
    """That of the power of two by which is divided."""
    found = _power_of_two(division.b)
    assert found is not None, "functions with other divisions are left to TVM"
    return found


def _same_lanes(value: int, like: Expr) -> Expr:
    """The integer in a type, in each lane if that is a vector."""
    if isinstance(like, tirx.Broadcast):
        return tirx.Broadcast(tirx.const(value, like.value.ty.dtype), like.lanes)
    return tirx.const(value, like.ty.dtype)


def _with_zeros(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if not contains(func.body, tvm.ir.Call, lambda call: operator_of(call) == _BITS):
        return func
    return with_body(func, rewritten(func.body, (tvm.ir.Call, _bits)))


def _bits(call: tvm.ir.Call) -> Expr:
    """The zero that a zero of another type is, which TVM takes for a null pointer; other calls."""
    if operator_of(call) != _BITS or not isinstance(call.args[0], tirx.IntImm):
        return call
    is_number = isinstance(call.ty, tvm.ir.PrimType) and call.args[0].value == 0
    return tirx.const(0, dtype_of(call)) if is_number else call


def _call(call: tvm.ir.Call) -> Expr:
    name = operator_of(call)
    if name == _BITS:
        return _bits(call)
    rule = _rule(name) if name else None
    found = rule(call) if rule is not None else None
    # The result of a rule may have rules itself.
    return call if found is None or found.same_as(call) else _lowered(found)


def _sum(sum: tirx.Add) -> Expr:
    if isinstance(sum.a, tirx.Mul) or isinstance(sum.b, tirx.Mul):
        if not _FUSED.fullmatch(dtype_of(sum)):
            return sum
        for product, other in ((sum.b, sum.a), (sum.a, sum.b)):
            if isinstance(product, tirx.Mul):
                fused = tirx.call_intrin(sum.ty, "tirx.fma", product.a, product.b, other)
                return _call(fused)
    return sum


@cache
def _rule(name: str) -> Rule | None:
    """The lowering rule of an operator; None: its calls stay."""
    rules = (tvm.ir.Op.get(name).get_attr(attribute) for attribute in _RULES)
    return next((rule for rule in rules if rule is not None), None)
