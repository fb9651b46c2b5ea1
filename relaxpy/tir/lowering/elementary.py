"""Elementary functions written out, for code generators that have none of their own.

Programs call them: `T.exp(x)`, `T.erf(x)`, `T.atan2(y, x)`. That is what operators are legalised to, what is fused,
printed and recognised. LLVM would call the C library once an element for them, so this target's backend replaces every
call by arithmetic that vectorises (`relaxpy.tir.numerics`), before its rules look at the loops. Calls in a user's own
programs are the same calls, and mean the same.

Arguments of float16 and bfloat16 are computed in float32 and rounded once; what is left in float64 is a call of the C
library. Writing out twice is writing out once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from relaxpy.ir.dtype import DType
from relaxpy.tir.numerics import hyperbolic, math, trigonometry
from relaxpy.tir.numerics.floats import is_nan, let, libm, through_float32
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import contains, rewritten, walk
from relaxpy.tir.writer.vectors import vector_value

Expr = tvm.ir.Expr
Function = Callable[..., Expr]


def _narrow_as_float32(function: Function) -> Function:
    """A function that the C library has, of float32 for narrower floats."""
    return lambda *xs: through_float32(function, function, *xs)


def _exp10(x: Expr) -> Expr:
    """10 to the power x: TVM's product with log(10) loses digits of large results."""
    return math.pow(tirx.const(10.0, str(x.ty.dtype)), x)


def _ldexp(x: Expr, exponent: Expr) -> Expr:
    """X times 2 to an integer."""
    return through_float32(lambda x: tirx.ldexp(x, exponent), lambda x: tirx.ldexp(x, exponent), x)


def _nextafter(x: Expr, y: Expr) -> Expr:
    """The number of the dtype that follows x on the way to y."""
    dtype = DType(str(x.ty.dtype))
    if not dtype.is_narrow:
        return tirx.nextafter(x, y)
    return let("x", x, lambda x: let("y", y, lambda y: _next_narrow(x, y, dtype.bits)))


def _next_narrow(x: Expr, y: Expr, bits: int) -> Expr:
    """By the bits: numbers of one sign are in the order of their magnitudes, and those of integers."""
    dtype, word = str(x.ty.dtype), f"int{max(bits, 8)}"
    wide_x, wide_y = x.astype("float32"), y.astype("float32")
    zero, one = tirx.FloatImm("float32", 0.0), tirx.IntImm(word, 1)
    code = tirx.reinterpret(word, x)
    grows = tirx.EQ((wide_y > wide_x).astype("int8"), (wide_x > zero).astype("int8"))
    least = tirx.Select(wide_y < zero, tirx.IntImm(word, -(1 << (bits - 1))) + one, one)
    moved = tirx.Select(tirx.EQ(wide_x, zero), least, tirx.Select(grows, code + one, code - one))
    unknown = tirx.any(is_nan(wide_x), is_nan(wide_y))
    found = tirx.Select(tirx.EQ(wide_x, wide_y), y, tirx.reinterpret(dtype, moved))
    return tirx.Select(unknown, (wide_x + wide_y).astype(dtype), found)


ELEMENTARY: dict[str, Function] = {
    "exp": math.exp, "log": math.log, "log1p": math.log1p, "pow": math.pow, "sigmoid": math.sigmoid, "erf": math.erf,
    "sin": trigonometry.sin, "cos": trigonometry.cos, "tan": trigonometry.tan, "asin": trigonometry.asin,
    "acos": trigonometry.acos, "atan": trigonometry.atan, "atan2": trigonometry.atan2,
    "sinh": hyperbolic.sinh, "cosh": hyperbolic.cosh, "tanh": hyperbolic.tanh, "asinh": hyperbolic.asinh,
    "acosh": hyperbolic.acosh, "atanh": hyperbolic.atanh,
    "sqrt": _narrow_as_float32(tirx.sqrt), "rsqrt": _narrow_as_float32(tirx.rsqrt),
    "fmod": _narrow_as_float32(libm("fmod")), "exp2": _narrow_as_float32(tirx.exp2),
    "exp10": _exp10, "log10": _narrow_as_float32(tirx.log10),
    "hypot": _narrow_as_float32(tirx.hypot), "copysign": _narrow_as_float32(tirx.copysign),
    "ldexp": _ldexp, "nextafter": _nextafter,
}  # fmt: skip
"""What becomes of the calls of `T`'s functions, by their names."""
_PREFIX = "tirx."


@lru_cache(maxsize=1024)  # asked by every schedule rule, and by all that counts operations
def written_out(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its calls of elementary functions written out."""
    if not contains(func.body, tvm.ir.Call, lambda call: _name(call) is not None):
        return func
    body = value_written_out(func.body)
    return func if body.same_as(func.body) else func.with_body(body)


def value_written_out(value: Expr) -> Expr:
    """The expression with its calls of elementary functions written out."""
    return rewritten(value, (tvm.ir.Call, _written_out))


def _name(call: tvm.ir.Call) -> str | None:
    """The elementary function that is called; None for other calls, and of integers."""
    name = str(getattr(call.op, "name", "")).removeprefix(_PREFIX)
    return name if name in ELEMENTARY and "float" in str(call.ty.dtype) else None


def _written_out(call: tvm.ir.Call) -> Expr:
    name = _name(call)
    if name is None:
        return call
    lanes = int(tvm.DataType(str(call.ty.dtype)).lanes)
    return _applied(name, call.args) if lanes == 1 else _of_vectors(name, call, lanes)


@dataclass(frozen=True, eq=False)
class _Formula:
    """A function written out, of arguments of some dtypes."""

    value: Expr
    operands: tuple[tvm.ir.Var, ...]
    """Buffers whose elements stand for the arguments."""
    names: tuple[tvm.ir.Var, ...]
    """The variables that are bound in it."""


@cache
def _formula(name: str, dtypes: tuple[str, ...]) -> _Formula:
    """Simplified once: the simplifier takes longer than all else."""
    operands = tuple(_operand(dtype, 1) for dtype in dtypes)
    value = ELEMENTARY[name](*(tirx.BufferLoad(x, [_FIRST]) for x in operands))
    value = tvm.sym.Analyzer().simplify(value)
    names: dict[tvm.ir.Var, None] = {}
    walk(value, (tirx.Let, lambda node: names.setdefault(node.var)))
    return _Formula(value, operands, tuple(names))


_FIRST = tirx.IntImm("int64", 0)


def _operand(dtype: str, size: int) -> tvm.ir.Var:
    return tirx.decl_buffer([tirx.IntImm("int64", size)], dtype, "x", layout=None)


def _applied(name: str, args: Sequence[Expr]) -> Expr:
    """The function of these arguments, its variables new."""
    formula = _formula(name, tuple(str(x.ty.dtype) for x in args))
    given = dict(zip(formula.operands, args, strict=True))
    fresh = {var: tirx.Var(var.name, var.ty) for var in formula.names}
    return rewritten(
        formula.value,
        (tvm.ir.TensorLoad, lambda load: given[load.source]),
        (tvm.ir.Var, lambda var: fresh.get(var, var)),
        (tirx.Let, lambda node: tirx.Let(fresh.get(node.var, node.var), node.value, node.body)),
    )


def _of_vectors(name: str, call: tvm.ir.Call, lanes: int) -> Expr:
    """The function of whole vectors, or, where there is none, of one element after the other."""

    def lane(vector: Expr, place: int) -> Expr:
        return tirx.Shuffle([vector], [tirx.IntImm("int32", place)])

    kinds = [str(tvm.DataType(str(x.ty.dtype)).with_lanes(1)) for x in call.args]
    operands = [_operand(kind, lanes) for kind in kinds]
    given = dict(zip(operands, call.args, strict=True))
    found = vector_value(
        lambda i: _applied(name, [tirx.BufferLoad(x, [i]) for x in operands]), lanes
    )
    if found is not None:
        return rewritten(found, (tvm.ir.TensorLoad, lambda load: given.get(load.source, load)))
    each = [_applied(name, [lane(x, place) for x in call.args]) for place in range(lanes)]
    return tirx.Shuffle(each, [tirx.IntImm("int32", place) for place in range(lanes)])
