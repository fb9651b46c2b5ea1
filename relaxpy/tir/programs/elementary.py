"""Expand elementary functions, for code generators that have none of their own.

Programs call them: `T.exp(x)`, `T.erf(x)`, `T.atan2(y, x)`. Operators are legalised to these calls, which are then
fused, printed and recognised. LLVM would call the C library once per element, so this target's backend replaces every
call by arithmetic that vectorises (`relaxpy.tir.numerics`), before its rules analyse the loops. The same applies to
calls in a user's own programs.

Arguments of float16 and bfloat16 are computed in float32 and rounded once; float64 functions remain calls of the C
library. The expansion is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from relaxpy.ir.dtype import DType
from relaxpy.tir.nodes import with_body
from relaxpy.tir.numerics.elementary import NARROW, applied, function_of
from relaxpy.tir.programs.vectors import vector_value
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import contains, rewritten

Expr = tvm.ir.Expr


@lru_cache(maxsize=1024)  # used by every schedule rule, and by all estimates of work
def written_out(func: tirx.PrimFunc, *, by_avx512: bool = False) -> tirx.PrimFunc:
    """Return the function with its calls of elementary functions expanded; `by_avx512`: for a target that has the
    instructions of `relaxpy.tir.numerics.avx512`."""
    if not contains(func.body, tvm.ir.Call, lambda call: function_of(call) is not None):
        return func
    body = value_written_out(func.body, by_avx512=by_avx512)
    return with_body(func, body)


def value_written_out(value: Expr, *, by_avx512: bool = False) -> Expr:
    """Return the expression with its calls of elementary functions expanded, as `written_out`."""
    function = partial(applied, by_avx512=by_avx512)
    value = rewritten(value, (tirx.Cast, partial(_with_few_digits, function)))
    return rewritten(value, (tvm.ir.Call, partial(_written_out, function)))


def _with_few_digits(function: Callable[..., Expr], cast: tirx.Cast) -> Expr:
    """Expand the functions that are factors of a number which is rounded to a narrow float: an error relative to a
    factor is one relative to the product."""
    kind = str(cast.ty.dtype)
    if "x" in kind or "float" not in kind or not DType(kind).is_narrow:
        return cast
    value = _factor(function, cast.value)
    return cast if value.same_as(cast.value) else tirx.Cast(cast.ty, value)


def _factor(function: Callable[..., Expr], value: Expr) -> Expr:
    match value:
        case tirx.Mul() | tirx.Div():
            a, b = _factor(function, value.a), _factor(function, value.b)
            same = a.same_as(value.a) and b.same_as(value.b)
            return value if same else type(value)(a, b)
        case tvm.ir.Call() if function_of(value) in NARROW and str(value.ty.dtype) == "float32":
            return function(str(function_of(value)), value.args, narrow=True)
        case _:
            return value


def _written_out(function: Callable[..., Expr], call: tvm.ir.Call) -> Expr:
    name = function_of(call)
    if name is None:
        return call
    lanes = int(tvm.DataType(str(call.ty.dtype)).lanes)
    if lanes == 1:
        return function(name, call.args)
    return _of_vectors(partial(function, name), call, lanes)


def _of_vectors(function: Callable[[list[Expr]], Expr], call: tvm.ir.Call, lanes: int) -> Expr:
    """The vectorised function, or, if there is none, the function of one element after the other."""

    def lane(vector: Expr, place: int) -> Expr:
        return tirx.Shuffle([vector], [tirx.IntImm("int32", place)])

    kinds = [str(tvm.DataType(str(x.ty.dtype)).with_lanes(1)) for x in call.args]
    size = tirx.IntImm("int64", lanes)
    operands = [tirx.decl_buffer([size], kind, "x", layout=None) for kind in kinds]
    given = dict(zip(operands, call.args, strict=True))
    found = vector_value(lambda i: function([tirx.BufferLoad(x, [i]) for x in operands]), lanes)
    if found is not None:
        return rewritten(found, (tvm.ir.TensorLoad, lambda load: given.get(load.source, load)))
    each = [function([lane(x, place) for x in call.args]) for place in range(lanes)]
    return tirx.Shuffle(each, [tirx.IntImm("int32", place) for place in range(lanes)])
