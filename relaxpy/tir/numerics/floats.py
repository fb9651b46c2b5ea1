"""Building blocks of elementary functions: polynomials, the bits of a float32, named values, and the choice between our
own arithmetic (which vectorises) and the C library (which is accurate in float64)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relaxpy.ir.dtype import DType
from relaxpy.tir.nodes import DIVISIONS
from relaxpy.tir.tvm import te, tirx, tvm
from relaxpy.tir.walk import contains

Expr = tvm.ir.Expr

SIGN_BIT = -0x80000000
INFINITY_BITS = 0x7F800000
_INFINITIES = {
    "float16": 0x7C00,
    "bfloat16": INFINITY_BITS >> 16,
    "float32": INFINITY_BITS,
    "float64": 0x7FF << 52,
}
"""The bits of infinity; those of a NaN, without the sign, are larger."""


def through_float32(
    compute: Callable[..., Expr],
    intrinsic: Callable[..., Expr],
    *operands: Expr,
    narrow: Callable[..., Expr] | None = None,
) -> Expr:
    """`compute` on float32, with casts around it for the narrower types; `intrinsic` for other types. `narrow`, if
    there is one, is a shorter computation whose result is accurate enough to be rounded to a narrower type."""
    xs = [x.asobject() if isinstance(x, te.tensor.TensorSlice) else x for x in operands]
    dtype = str(xs[0].ty.dtype)
    if dtype == "float32":
        return compute(*xs)
    if DType(dtype).is_narrow:
        return (narrow or compute)(*(x.astype("float32") for x in xs)).astype(dtype)
    return intrinsic(*xs)


def libm(name: str) -> Callable[..., Expr]:
    """The C library's function on float64 or float32, for functions without a TVM intrinsic, or with one that is a less
    accurate series."""

    def call(*xs: Expr) -> Expr:
        dtype = str(xs[0].ty.dtype)
        return tirx.call_pure_extern(dtype, name if dtype == "float64" else f"{name}f", *xs)

    return call


def horner(coefficients: Sequence[float], x: Expr) -> Expr:
    """The polynomial with these coefficients, the highest first, by Horner's rule: one fused multiply-add each."""
    dtype = str(x.ty.dtype)
    value: Expr = tirx.FloatImm(dtype, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + tirx.FloatImm(dtype, coefficient)
    return value


def let(name: str, value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """Compute `value` once, bound to a name in `body`."""
    var = tirx.Var(name, str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def is_compound(value: Expr) -> bool:
    """Must a value that is used several times have a name? Chains of such would double with each, and the names within
    it may be defined only once. (Divisions become choices, too.)"""
    return contains(value, (tirx.Let, tirx.Select, *DIVISIONS))


def f32(value: float) -> Expr:
    return tirx.FloatImm("float32", value)


def f64(value: float) -> Expr:
    return tirx.FloatImm("float64", value)


def i32(value: int) -> Expr:
    return tirx.IntImm("int32", value)


def to_bits(x: Expr) -> Expr:
    """Reinterpret a float32 as the int32 of its bits."""
    return tirx.reinterpret("int32", x)


def from_bits(x: Expr) -> Expr:
    """Reinterpret an int32 as the float32 of these bits."""
    return tirx.reinterpret("float32", x)


def is_nan(x: Expr) -> Expr:
    """Is a float, or each lane of a vector, a NaN? Tested on the bits: TVM simplifies `x != x` to false, and its
    `isnan` takes scalars only; compilers for accelerators may assume that no comparison meets a NaN."""
    kind = tvm.DataType(str(x.ty.dtype))
    bits, lanes = int(kind.bits), int(kind.lanes)
    infinity = _INFINITIES[str(kind).split("x", 1)[0]]

    def number(value: int) -> Expr:
        scalar = tirx.IntImm(f"int{bits}", value)
        return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)

    word = tirx.reinterpret(f"int{bits}" if lanes == 1 else f"int{bits}x{lanes}", x)
    return (word & number((1 << (bits - 1)) - 1)) > number(infinity)


def is_unordered(x: Expr) -> Expr:
    """As `is_nan`, in one comparison, for processors."""
    kind = tvm.DataType(str(x.ty.dtype))
    lanes = int(kind.lanes)
    if str(kind.with_lanes(1)) not in ("float32", "float64"):
        return is_nan(x)

    def each(value: Expr) -> Expr:
        return value if lanes == 1 else tirx.Broadcast(value, lanes)

    infinity = tirx.FloatImm(str(kind.with_lanes(1)), float("inf"))
    # A number in between: TVM takes the negation of a comparison for the opposite one.
    ordered = (x <= each(infinity)).astype("int8" if lanes == 1 else f"int8x{lanes}")
    return tirx.EQ(ordered, each(tirx.IntImm("int8", 0)))


def magnitude(x: Expr) -> Expr:
    """The number without its sign bit."""
    return from_bits(to_bits(x) & i32(0x7FFFFFFF))


def with_sign_of(magnitude: Expr, sign: Expr) -> Expr:
    """A number that is not negative, with the sign bit of another."""
    return from_bits(to_bits(magnitude) | (to_bits(sign) & i32(SIGN_BIT)))
