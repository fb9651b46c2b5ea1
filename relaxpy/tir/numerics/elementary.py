"""The arithmetic that elementary functions are expanded to, for each elementary function of `T`.

Arguments of float16, bfloat16 and float8 are computed in float32 and rounded once; float64 is left to the C library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from relaxpy.ir.dtype import DType
from relaxpy.tir.numerics import avx512, hyperbolic, math, trigonometry
from relaxpy.tir.numerics.floats import is_nan, let, libm, through_float32
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import rewritten, walk

Expr = tvm.ir.Expr
Function = Callable[..., Expr]


def _narrow_as_float32(function: Function) -> Function:
    """A function of the C library, computed in float32 for narrower floats."""
    return lambda *xs: through_float32(function, function, *xs)


def _exp10(x: Expr) -> Expr:
    """10 to the power x. TVM's product with log(10) loses digits of large results."""
    return math.pow(tirx.const(10.0, str(x.ty.dtype)), x)


def _ldexp(x: Expr, exponent: Expr) -> Expr:
    """The product of x and 2 to the power of an integer."""
    return through_float32(lambda x: tirx.ldexp(x, exponent), lambda x: tirx.ldexp(x, exponent), x)


def _nextafter(x: Expr, y: Expr) -> Expr:
    """The next representable number after x towards y."""
    return let("x", x, lambda x: let("y", y, lambda y: _next(x, y, DType(str(x.ty.dtype)))))


def _next(x: Expr, y: Expr, dtype: DType) -> Expr:
    """Computed on the bits: numbers of one sign are ordered like their bits as integers."""
    bits, kind = max(dtype.bits, 8), "float32" if dtype.is_narrow else str(dtype)
    word = f"int{bits}"
    wide_x, wide_y = (x.astype(kind), y.astype(kind)) if dtype.is_narrow else (x, y)
    zero, one = tirx.FloatImm(kind, 0.0), tirx.IntImm(word, 1)
    code = tirx.reinterpret(word, x)
    grows = tirx.EQ((wide_y > wide_x).astype("int8"), (wide_x > zero).astype("int8"))
    least = tirx.Select(wide_y < zero, tirx.IntImm(word, -(1 << (bits - 1))) + one, one)
    moved = tirx.Select(tirx.EQ(wide_x, zero), least, tirx.Select(grows, code + one, code - one))
    unknown = tirx.any(is_nan(wide_x), is_nan(wide_y))
    found = tirx.Select(tirx.EQ(wide_x, wide_y), y, tirx.reinterpret(str(dtype), moved))
    either = wide_x + wide_y
    return tirx.Select(unknown, either.astype(str(dtype)) if dtype.is_narrow else either, found)


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
"""The expansion of `T`'s functions, by name."""
NARROW: dict[str, Function] = {
    "exp": partial(math.exp_float32, narrow=True),
    "sigmoid": partial(math.sigmoid_float32, narrow=True),
    "tanh": partial(hyperbolic.tanh_float32, narrow=True),
}
"""Shorter ones of float32, for results that are rounded to narrow floats: to 17 bits, and relative to the result."""
_AVX512: dict[str, tuple[Function, Function]] = {
    "exp": (avx512.exp_float32, avx512.exp_narrow),
    "sigmoid": (avx512.sigmoid_float32, avx512.sigmoid_narrow),
}
"""Those of float32 and the shorter ones that AVX-512 has instructions for."""


def function_of(call: tvm.ir.Call) -> str | None:
    """The name of the elementary function that is called; None for other calls, and for integers."""
    name = str(getattr(call.op, "name", "")).removeprefix("tirx.")
    return name if name in ELEMENTARY and "float" in str(call.ty.dtype) else None


@dataclass(frozen=True, eq=False)
class _Formula:
    """An expanded function, for arguments of given dtypes."""

    value: Expr
    operands: tuple[tvm.ir.Var, ...]
    """Buffers whose elements represent the arguments."""
    names: tuple[tvm.ir.Var, ...]
    """The variables that it binds."""
    length: int
    """The number of its nodes, without operands."""


@cache
def _formula(
    name: str, dtypes: tuple[str, ...], narrow: bool = False, by_avx512: bool = False
) -> _Formula:
    """Simplified once and cached: the simplifier takes longer than everything else."""
    operands = tuple(_operand(dtype) for dtype in dtypes)
    function = (NARROW if narrow else ELEMENTARY)[name]
    if by_avx512 and name in _AVX512:
        wide, own = _AVX512[name]
        function = own if narrow else partial(through_float32, wide, function, narrow=own)
    value = function(*(tirx.BufferLoad(x, [_FIRST]) for x in operands))
    value = tvm.sym.Analyzer().simplify(value)
    names: dict[tvm.ir.Var, None] = {}
    walk(value, (tirx.Let, lambda node: names.setdefault(node.var)))
    length = _nodes(value) - len(operands) * _nodes(tirx.BufferLoad(operands[0], [_FIRST]))
    return _Formula(value, operands, tuple(names), length)


def _nodes(value: Expr) -> int:
    found: list[Expr] = []
    walk(value, (tvm.ir.Expr, found.append))
    return len(found)


_FIRST = tirx.IntImm("int64", 0)


def _operand(dtype: str) -> tvm.ir.Var:
    return tirx.decl_buffer([tirx.IntImm("int64", 1)], dtype, "x", layout=None)


def applied(
    name: str, args: Sequence[Expr], *, narrow: bool = False, by_avx512: bool = False
) -> Expr:
    """The function of these arguments, with fresh variables; `narrow`: one of `NARROW`; `by_avx512`: with the
    instructions of `relaxpy.tir.numerics.avx512` where there are any for it."""
    formula = _formula(name, tuple(str(x.ty.dtype) for x in args), narrow, by_avx512)
    given = dict(zip(formula.operands, args, strict=True))
    fresh = {var: tirx.Var(var.name, var.ty) for var in formula.names}
    return rewritten(
        formula.value,
        (tvm.ir.TensorLoad, lambda load: given[load.source]),
        (tvm.ir.Var, lambda var: fresh.get(var, var)),
        (tirx.Let, lambda node: tirx.Let(fresh.get(node.var, node.var), node.value, node.body)),
    )


def length_of(call: tvm.ir.Call) -> int:
    """The number of nodes that replace a call, without its arguments."""
    name = function_of(call)
    if name is None or tvm.DataType(str(call.ty.dtype)).lanes != 1:
        return 1
    return _formula(name, tuple(str(x.ty.dtype) for x in call.args)).length
