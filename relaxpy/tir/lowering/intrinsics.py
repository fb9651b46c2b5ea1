"""Lower intrinsics for the target's code generator, and combine products with sums (fused multiply-add).

TVM's `LowerIntrin` does the same with an analyser that visits every node and learns every bound variable and condition:
0.35 s for a matrix product, a quarter of its compilation. It needs the analyser only for floor divisions. For programs
without them (TVM's simplifier, or our schedules, have removed most) this pass gives the identical tree in 3 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains

Expr = tvm.ir.Expr
Rule = Callable[[tvm.ir.Call], "Expr | None"]

_RULES = ("llvm.FLowerIntrinsic", "llvm.FLegalize", "default.FLowerIntrinsic", "default.FLegalize")
"""Attributes of operators that hold the lowering rule of a call, in the order in which TVM's pass tries them on x86."""
_FUSED = re.compile(r"float(16|32|64)(x\d+)?")
"""Types for which a product and a sum are one operation."""
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


@tvm.transform.module_pass(opt_level=0, name="relaxpy.LowerIntrinsics")
def lower_intrinsics(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """TVM's `LowerIntrin`, with a fast path for programs without floor divisions."""
    done: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    rest: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for var, func in mod.functions.items():
        if _is_for_x86(func) and not _divides(func):
            done[var] = func.with_body(_lowered(func.body))
        else:
            rest[var] = func
    if rest:
        done |= dict(tirx.transform.LowerIntrin()(tvm.IRModule(rest)).functions.items())
    # In the original order, in which they are emitted.
    return tvm.IRModule({var: done[var] for var in mod.functions})


def _is_for_x86(func: tirx.PrimFunc) -> bool:
    target = func.attrs["target"]
    return target.kind.name == "llvm" and str(target.attrs.get("mtriple", "")).startswith("x86_64")


def _divides(func: tirx.PrimFunc) -> bool:
    return contains(func.body, _DIVISIONS)


def _lowered(node: tirx.Stmt | Expr) -> tirx.Stmt | Expr:
    return tvm_ffi.structural_map(node, ((tvm.ir.Call, _call), (tirx.Add, _sum)))


def _call(call: tvm.ir.Call) -> Expr:
    rule = _rule(call.op.name) if isinstance(call.op, tvm.ir.Op) else None
    found = rule(call) if rule is not None else None
    # The result of a rule may have rules itself.
    return call if found is None or found.same_as(call) else _lowered(found)


def _sum(sum: tirx.Add) -> Expr:
    if _FUSED.fullmatch(str(sum.ty.dtype)):
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
