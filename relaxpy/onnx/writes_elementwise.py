"""Elementwise operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relaxpy.frontend.onnx.element_types import NUMBERS
from relaxpy.ir import DType
from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.op import activation, binary, compare, search, unary
from relaxpy.op.datatype import Astype, Bitcast, WrapParam
from relaxpy.op.device import StopLiftParams
from relaxpy.op.gradient import EndCheckpoint, NoGrad, StartCheckpoint

_SAME: dict[Any, str] = {
    unary.Exp: "Exp", unary.Log: "Log", unary.Sqrt: "Sqrt", unary.Sin: "Sin", unary.Cos: "Cos", unary.Tan: "Tan",
    unary.Asin: "Asin", unary.Acos: "Acos", unary.Atan: "Atan", unary.Sinh: "Sinh", unary.Cosh: "Cosh",
    unary.Tanh: "Tanh", unary.Asinh: "Asinh", unary.Acosh: "Acosh", unary.Atanh: "Atanh", unary.Erf: "Erf",
    unary.Sigmoid: "Sigmoid", unary.Abs: "Abs", unary.Sign: "Sign", unary.LogicalNot: "Not",
    activation.Relu: "Relu", binary.Add: "Add", binary.Subtract: "Sub", binary.Multiply: "Mul",
    binary.Maximum: "Max", binary.Minimum: "Min", binary.LogicalAnd: "And", binary.LogicalOr: "Or",
    binary.LogicalXor: "Xor", search.Where: "Where", StopLiftParams: "Identity", NoGrad: "Identity",
    StartCheckpoint: "Identity", EndCheckpoint: "Identity",
}  # fmt: skip
"""Operators that ONNX has under another name."""

_OF_FLOATS = {unary.Ceil: "Ceil", unary.Floor: "Floor", unary.Round: "Round"}
"""Those that are the identity of integers, and not ONNX's."""


@writes(*_SAME)
def same(at: Place, op: Any, *xs: Tensor) -> Any:
    return at.node(_SAME[type(op)], *xs)


@writes(*_OF_FLOATS)
def rounded(at: Place, op: Any, x: Tensor) -> Any:
    return at.node(_OF_FLOATS[type(op)] if x.dtype.is_float else "Identity", x)


@writes(unary.Trunc)
def trunc(at: Place, op: Any, x: Tensor) -> Any:
    if not x.dtype.is_float:
        return at.node("Identity", x)
    return at.node("Mul", at.node("Sign", x), at.node("Floor", at.node("Abs", x)))


@writes(unary.Negative)
def negative(at: Place, op: Any, x: Tensor) -> Any:
    if x.dtype.is_int and not x.dtype.is_signed:
        return at.node("Sub", at.number(0, x.dtype), x)
    return at.node("Neg", x)


@writes(unary.Square)
def square(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Mul", x, x)


@writes(unary.Rsqrt)
def rsqrt(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Reciprocal", at.node("Sqrt", x))


@writes(unary.Log2, unary.Log10)
def log_to_base(at: Place, op: Any, x: Tensor) -> Any:
    base = 2 if isinstance(op, unary.Log2) else 10
    return at.node("Mul", at.node("Log", x), at.number(1 / math.log(base), x.dtype))


@writes(unary.Expm1)
def expm1(at: Place, op: Any, x: Tensor) -> Any:
    """tanh(x / 2) * (exp(x) + 1), which is accurate near 0."""
    half = at.node("Tanh", at.node("Mul", x, at.number(0.5, x.dtype)))
    return at.node("Mul", half, at.node("Add", at.node("Exp", x), at.number(1, x.dtype)))


@writes(unary.Log1p)
def log1p(at: Place, op: Any, x: Tensor) -> Any:
    """2 * atanh(x / (2 + x)) near 0."""
    near = at.node("Less", at.node("Abs", x), at.number(0.5, x.dtype))
    part = at.node("Div", x, at.node("Add", x, at.number(2, x.dtype)))
    small = at.node("Mul", at.node("Atanh", part), at.number(2, x.dtype))
    return at.node("Where", near, small, at.node("Log", at.node("Add", x, at.number(1, x.dtype))))


@writes(unary.IsNan, unary.IsInf, unary.IsFinite)
def is_special(at: Place, op: Any, x: Tensor) -> Any:
    if not x.dtype.is_float:
        equal = at.node("Equal", x, x)
        return equal if isinstance(op, unary.IsFinite) else at.node("Not", equal)
    wide: Any = at.cast(x, "float32") if x.dtype.is_narrow else x
    if isinstance(op, unary.IsNan):
        return at.node("IsNaN", wide)
    if isinstance(op, unary.IsInf):
        return at.node("IsInf", wide)
    return at.node("Not", at.node("Or", at.node("IsNaN", wide), at.node("IsInf", wide)))


@writes(unary.BitwiseNot)
def bitwise_not(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Not" if x.dtype.is_bool else "BitwiseNot", x)


@writes(unary.Clip)
def clip(at: Place, op: unary.Clip, x: Tensor) -> Any:
    low, high = op.bounds(x.dtype)
    above = at.node("Max", x, at.number(low, x.dtype))
    return at.node("Min", above, at.number(high, x.dtype)) if low > high else at.node(
        "Clip", x, at.number(low, x.dtype), at.number(high, x.dtype)
    )  # fmt: skip


# Activations


@writes(activation.Relu6)
def relu6(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Clip", x, at.number(0, x.dtype), at.number(6, x.dtype))


@writes(activation.Silu)
def silu(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Mul", x, at.node("Sigmoid", x))


@writes(activation.Gelu, activation.GeluTanh)
def gelu(at: Place, op: Any, x: Tensor) -> Any:
    is_tanh = isinstance(op, activation.GeluTanh)
    if at.opset >= 20:
        return at.node("Gelu", x, approximate="tanh" if is_tanh else None)
    half = at.node("Mul", x, at.number(0.5, x.dtype))
    if is_tanh:
        cube = at.node("Mul", x, at.node("Mul", x, x))
        inner = at.node("Add", x, at.node("Mul", cube, at.number(0.044715, x.dtype)))
        bent = at.node("Tanh", at.node("Mul", inner, at.number(math.sqrt(2 / math.pi), x.dtype)))
    else:
        bent = at.node("Erf", at.node("Mul", x, at.number(math.sqrt(0.5), x.dtype)))
    return at.node("Mul", half, at.node("Add", bent, at.number(1, x.dtype)))


@writes(activation.LeakyRelu)
def leaky_relu(at: Place, op: activation.LeakyRelu, x: Tensor) -> Any:
    return at.node("LeakyRelu", x, alpha=float(op.alpha))


@writes(activation.Selu)
def selu(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("Selu", x)


@writes(activation.Prelu)
def prelu(at: Place, op: activation.Prelu, x: Tensor, slope: Tensor) -> Any:
    after = x.ndim - 1 - op.axis % x.ndim
    return at.node("PRelu", x, at.unsqueeze(slope, range(1, 1 + after)))


@writes(activation.Softplus)
def softplus(at: Place, op: activation.Softplus, x: Tensor) -> Any:
    scaled: Any = x
    if op.beta != 1:
        scaled = at.node("Mul", x, at.number(op.beta, x.dtype))
    found = at.node("Softplus", scaled)
    if op.beta != 1:
        found = at.node("Div", found, at.number(op.beta, x.dtype))
    above = at.node("Greater", scaled, at.number(op.threshold, x.dtype))
    return at.node("Where", above, x, found)


# Two arguments


def divided(at: Place, a: Any, b: Any, dtype: DType, down: bool) -> str:
    """A quotient of integers, rounded toward 0 or down; 0 where the divisor is 0."""
    zero = at.number(0, dtype)
    nothing = at.node("Equal", b, zero)
    divisor = at.node("Where", nothing, at.number(1, dtype), b)
    if dtype.is_signed:
        # The smallest number divided by -1 is itself: what the processor does with it is an exception.
        minus = at.node("Equal", divisor, at.number(-1, dtype))
        safe = at.node("Where", minus, at.number(1, dtype), divisor)
        found = at.node("Div", a, safe)
        if down:
            rest = at.node("Sub", a, at.node("Mul", found, safe))
            found = at.node(
                "Where", _apart(at, rest, safe, dtype), _before(at, found, dtype), found
            )
        found = at.node("Where", minus, at.node("Sub", zero, a), found)
    else:
        found = at.node("Div", a, divisor)
    return at.node("Where", nothing, zero, found)


def _apart(at: Place, rest: Any, divisor: Any, dtype: DType) -> str:
    """Is there a remainder, of another sign than the divisor?"""
    zero = at.number(0, dtype)
    signs = at.node("Xor", at.node("Less", rest, zero), at.node("Less", divisor, zero))
    return at.node("And", signs, at.node("Not", at.node("Equal", rest, zero)))


def _before(at: Place, x: Any, dtype: DType) -> str:
    return at.node("Sub", x, at.number(1, dtype))


@writes(binary.Divide)
def divide(at: Place, op: Any, a: Tensor, b: Tensor) -> Any:
    return at.node("Div", a, b) if a.dtype.is_float else divided(at, a, b, a.dtype, down=False)


def remainder(at: Place, a: Any, b: Any, dtype: DType, like_divisor: bool) -> str:
    if dtype.is_float:
        if not like_divisor:
            return at.node("Mod", a, b, fmod=1)
        rest = at.node("Mod", a, b, fmod=1)
        return at.node("Where", _apart(at, rest, b, dtype), at.node("Add", rest, b), rest)
    zero, one = at.number(0, dtype), at.number(1, dtype)
    nothing = at.node("Equal", b, zero)
    divisor = at.node("Where", nothing, one, b)
    if dtype.is_signed:
        divisor = at.node("Where", at.node("Equal", divisor, at.number(-1, dtype)), one, divisor)
    found = at.node("Mod", a, divisor, fmod=None if like_divisor else 1)
    return at.node("Where", nothing, zero, found)


@writes(binary.Mod, binary.FloorMod)
def mod(at: Place, op: Any, a: Tensor, b: Tensor) -> Any:
    return remainder(at, a, b, a.dtype, isinstance(op, binary.FloorMod))


@writes(binary.FloorDivide)
def floor_divide(at: Place, op: Any, a: Tensor, b: Tensor) -> Any:
    if not a.dtype.is_float:
        return divided(at, a, b, a.dtype, down=True)
    rest = remainder(at, a, b, a.dtype, like_divisor=False)
    whole = at.node("Round", at.node("Div", at.node("Sub", a, rest), b))
    whole = at.node("Where", _apart(at, rest, b, a.dtype), _before(at, whole, a.dtype), whole)
    by_zero = at.node("Equal", b, at.number(0, a.dtype))
    return at.node("Where", by_zero, at.node("Div", a, b), whole)


@writes(binary.Power)
def power(at: Place, op: Any, a: Tensor, b: Tensor) -> Any:
    if a.dtype.is_int:
        if b.constant is None or int(np.min(b.constant, initial=0)) < 0:
            raise at.fail(
                "of integers with an exponent that may be negative, which ONNX does not define"
            )
        if int(np.max(b.constant, initial=0)) > 62:
            raise at.fail("of integers with an exponent above 62")
        found: Any = at.number(1, a.dtype)
        if b.ndim:
            raise at.fail("of integers with an exponent that is no number")
        for _ in range(int(b.constant)):
            found = at.node("Mul", found, a)
        return found if int(b.constant) else at.node("Expand", found, at.node("Shape", a))
    return at.node("Pow", a, b)


@writes(binary.EwiseFma)
def fma(at: Place, op: Any, a: Tensor, b: Tensor, c: Tensor) -> Any:
    return at.node("Add", at.node("Mul", a, b), c)


@writes(binary.LogAddExp)
def log_add_exp(at: Place, op: Any, a: Tensor, b: Tensor) -> Any:
    """max(a, b) + softplus(-|a - b|); what is infinite is the maximum itself."""
    if not a.dtype.is_float:
        raise at.fail(f"of {a.dtype}: cast to float32")
    most = at.node("Max", a, b)
    apart = at.node("Neg", at.node("Abs", at.node("Sub", a, b)))
    found = at.node(
        "Add", most, at.node("Log", at.node("Add", at.node("Exp", apart), at.number(1, a.dtype)))
    )
    return at.node(
        "Where",
        at.node("Equal", a, b),
        at.node("Add", most, at.number(math.log(2), a.dtype)),
        found,
    )


@writes(binary.Atan2)
def atan2(at: Place, op: Any, y: Tensor, x: Tensor) -> Any:
    """atan(y / x), and half a turn where x is negative, in the direction of y. The signs of zeros count."""
    if not y.dtype.is_float:
        raise at.fail(f"of {y.dtype}: cast to float32")
    wide = DType("float32") if y.dtype.is_narrow else y.dtype
    zero = at.number(0, wide)

    def negative(v: Any) -> str:
        below = at.node("Less", at.node("Div", at.number(1, wide), v), zero)
        return at.node("Or", at.node("Less", v, zero), below)

    given = [at.cast(v, wide) for v in (y, x)]
    far = at.node("And", *(at.node("IsInf", v) for v in given))
    up, right = (at.node("Where", far, at.node("Sign", v), v) for v in given)
    middle = at.node("And", *(at.node("Equal", v, zero) for v in given))
    angle = at.node("Where", middle, up, at.node("Atan", at.node("Div", up, right)))
    half = at.node("Where", negative(up), at.number(-math.pi, wide), at.number(math.pi, wide))
    turned = at.node("Where", negative(right), at.node("Add", angle, half), angle)
    return at.cast(turned, y.dtype, wide)


_BITS: dict[Any, str] = {
    binary.BitwiseAnd: "And", binary.BitwiseOr: "Or", binary.BitwiseXor: "Xor",
}  # fmt: skip


@writes(*_BITS)
def bitwise(at: Place, op: Any, a: Tensor, b: Tensor) -> Any:
    name = _BITS[type(op)]
    return at.node(name if a.dtype.is_bool else f"Bitwise{name}", a, b)


@writes(binary.LeftShift, binary.RightShift)
def shift(at: Place, op: Any, a: Tensor, b: Tensor) -> Any:
    """ONNX shifts unsigned numbers. A negative one is shifted to the right as its complement."""
    left = isinstance(op, binary.LeftShift)
    own, zero = DType(f"uint{a.dtype.bits}"), at.number(0, a.dtype)
    wide = at.node("GreaterOrEqual", b, at.number(a.dtype.bits, a.dtype))
    if a.dtype.is_signed:
        wide = at.node("Or", wide, at.node("Less", b, zero))
    by = at.cast(at.node("Where", wide, zero, b), own, a.dtype)
    negative = at.node("Less", a, zero) if a.dtype.is_signed and not left else None
    value: Any = a
    if negative is not None:
        value = at.node("Where", negative, at.node("BitwiseNot", a), a)
    shifted = at.node(
        "BitShift", at.cast(value, own, a.dtype), by, direction="LEFT" if left else "RIGHT"
    )
    found = at.node("Where", wide, zero, at.cast(shifted, a.dtype, own))
    return (
        found
        if negative is None
        else at.node("Where", negative, at.node("BitwiseNot", found), found)
    )


# Comparisons

_COMPARED: dict[Any, str] = {
    compare.Equal: "Equal", compare.NotEqual: "Equal", compare.Less: "Less", compare.LessEqual: "LessOrEqual",
    compare.Greater: "Greater", compare.GreaterEqual: "GreaterOrEqual",
}  # fmt: skip


@writes(*_COMPARED)
def compared(at: Place, op: Any, a: Tensor, b: Tensor) -> Any:
    given: list[Any] = [a, b]
    if a.dtype != b.dtype:
        if not (a.dtype.is_float and b.dtype.is_float):
            raise at.fail(f"of {a.dtype} and {b.dtype}: ONNX compares values of one dtype")
        wide = max(a.dtype, b.dtype, key=lambda dtype: dtype.bits)
        if a.dtype.bits == b.dtype.bits:
            wide = DType("float32")
        given = [at.cast(x, wide) for x in given]
    elif a.dtype.is_bool and _COMPARED[type(op)] != "Equal":
        given = [at.cast(x, "int32") for x in given]
    found = at.node(_COMPARED[type(op)], *given)
    return at.node("Not", found) if isinstance(op, compare.NotEqual) else found


# Dtypes


@writes(Astype, WrapParam)
def astype(at: Place, op: Any, x: Tensor) -> Any:
    return converted_to(at, x, op.dtype)


def converted_to(at: Place, x: Tensor, dtype: DType) -> str:
    """A tensor in another dtype."""
    if x.dtype.is_float and dtype.is_int and not dtype.is_bool:
        return saturated(at, x, dtype)
    return at.cast(x, dtype) if x.dtype != dtype else at.node("Identity", x)


def saturated(at: Place, x: Tensor, dtype: DType) -> str:
    """Floats as integers: toward 0, the limits of the dtype beyond them, 0 for NaN. ONNX defines none of the latter."""
    wide: Any = at.cast(x, "float32") if x.dtype.is_narrow else x
    own = DType("float32") if x.dtype.is_narrow else x.dtype
    low, high = map(float, dtype.limits)
    top = np.asarray(high, own.numpy)
    if (
        float(top) > dtype.limits[1]
    ):  # the largest float below the limit, and what is above it chosen afterwards
        top = np.nextafter(top, np.asarray(0, own.numpy))
    number = at.node("Where", at.node("IsNaN", wide), at.number(0, own), wide)
    inside = at.node("Clip", number, at.number(low, own), at.array(np.asarray(top, own.numpy)))
    found = at.node("Cast", inside, to=NUMBERS[dtype])
    if float(top) < dtype.limits[1]:
        beyond = at.node("GreaterOrEqual", number, at.number(high, own))
        found = at.node("Where", beyond, at.number(dtype.limits[1], dtype), found)
    return found


_LAST = 2**63 - 1


def position(at: Place, indices: Tensor) -> Any:
    """Indices as int64. What is too large for it is its largest number."""
    if indices.dtype == "uint64":
        most = at.node("Min", indices, at.number(_LAST, "uint64"))
        return at.cast(most, "int64", "uint64")
    return at.cast(indices, "int64")


@writes(Bitcast)
def bitcast(at: Place, op: Bitcast, x: Tensor) -> Any:
    at.need(26)
    if x.dtype.bits != op.dtype.bits or "bool" in (x.dtype, op.dtype):
        raise at.fail(f"of {x.dtype} to {op.dtype}, which are of different widths")
    return at.node("BitCast", x, to=NUMBERS[op.dtype])
