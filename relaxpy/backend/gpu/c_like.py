"""Device functions in constructs that languages like C represent correctly.

TVM writes the text of OpenCL C, CUDA C++ and Metal's language. It writes some constructs wrongly, so they are replaced
before: numbers with 7 digits, bits of a value through the address of an rvalue, choices that evaluate both sides,
extremes of NaN, the smallest integer, arithmetic of 8 and 16 bits that C does in 32, names of functions that exist in C
and not in the language. A language is a `CLike`, which says what they are called there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from relaxpy.backend.gpu.half import with_bits_in_memory
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.types import Expr
from relaxpy.tir.walk import rewritten

_BITS = {
    "float64": ("uint64", "<d", "<Q"),
    "float32": ("uint32", "<f", "<I"),
    "float16": ("uint16", "<e", "<H"),
}
"""For each float type, the integer type of its size, and the `struct` formats of both."""
_NARROW = ("int8", "uint8", "int16", "uint16")
_LEAVING = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.FloorDiv, tirx.LShift,
    tirx.BitwiseNot,  # pyright: ignore[reportAttributeAccessIssue]
)  # fmt: skip
"""Operations whose results of 32 bits may be outside of a narrower type."""
CPLUSPLUS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const const_cast "
    "constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false float "
    "for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private "
    "protected public register reinterpret_cast return short signed sizeof static static_assert static_cast struct "
    "switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq".split()
)
"""The words of C++."""

C_FUNCTIONS: Mapping[str, str] = {
    name: name
    for name in (
        "exp exp2 exp10 log log2 log10 log1p pow erf sqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh "
        "atanh fmod hypot copysign"
    ).split()
}
"""The functions of languages that have C's under the same names for all floats."""


class CLike:
    """A language like C, as TVM writes it."""

    types: ClassVar[Mapping[str, str]]
    """The names of types."""
    bits: ClassVar[str]
    """The name of the function that gives the bits of a value as another type of the same size, with `{}` for that
    type."""
    functions: ClassVar[Mapping[str, str]]
    """The functions of all floats, by TVM's names of them: `{"exp": "precise::exp"}`. TVM replaces others by formulas
    of its own."""
    reserved: ClassVar[frozenset[str]] = frozenset()
    """Names that variables must not have: they are the language's, and a program's variable may have any."""

    def text(self, func: tirx.PrimFunc, target: Any) -> str:
        """TVM's text of one kernel, for a TVM target of the language, under the name of the function."""
        name = str(func.attrs["global_symbol"])
        func = with_bits_in_memory(func.without_attr("tirx.noalias"))
        body = self._exact_arithmetic(self.spelled(func.body))
        mod = tvm.IRModule({name: self._renamed(func.with_body(body))})
        mod = tirx.transform.LowerIntrin()(mod)
        mod = tvm.IRModule(
            {var: f.with_body(self.spelled(f.body)) for var, f in mod.functions.items()}
        )
        module = tvm.get_global_func(f"target.build.{target.kind.name}")(mod, target)
        return str(module.inspect_source())

    def _renamed(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Return the function with other names for variables whose name is reserved."""
        new: dict[Any, Any] = {}

        def variable(var: Any) -> Any:
            if str(var.name) not in self.reserved:
                return var
            if var not in new:
                new[var] = tvm.ir.Var(f"{var.name}_", var.ty)
            return new[var]

        body = rewritten(func.body, (tvm.ir.Var, variable))
        if not new:
            return func
        return tirx.PrimFunc(
            list(map(variable, func.params)), body, func.ret_type, attrs=func.attrs
        )

    def spelled(self, body: Any) -> Any:
        """Rewrite the body of a device function into constructs that TVM writes correctly."""
        return rewritten(
            body,
            (tvm.ir.Call, self._call),
            (tirx.Select, _choice),
            ((tirx.Max, tirx.Min), self._extreme),
            (tirx.IntImm, self._integer),
            (tirx.FloatImm, self._number),
        )

    def function(self, name: str, dtype: str, *args: Expr) -> Expr:
        """A call of one of `functions`, by TVM's name of it."""
        return tirx.call_pure_extern(dtype, self.functions[name], *args)

    def cast_bits(self, value: Expr, dtype: str) -> Expr:
        """The bits of a value as another type; the value itself for types that are no types of the language."""
        own = str(value.ty.dtype)
        if own == dtype or dtype not in self.types or own not in self.types:
            return value
        return self._as(dtype, self._exact(value, own))

    def _exact(self, value: Expr, dtype: str) -> Expr:
        """The value in its type: that of a C expression may be wider."""
        return tirx.call_pure_extern(dtype, f"({self.types[dtype]})", value)

    def _exact_arithmetic(self, body: Any) -> Any:
        """Rewrite arithmetic of 8 and 16 bits, which C does in 32, so that its results have their type. So are unsigned
        numbers that become signed ones, which TVM takes for what they were before."""

        def exact(node: Any) -> Expr:
            dtype = str(node.ty.dtype)
            return self._exact(node, dtype) if dtype in _NARROW else node

        def cast(node: Any) -> Expr:
            dtype, own = str(node.ty.dtype), str(node.value.ty.dtype)
            return self._exact(node, dtype) if own == f"u{dtype}" else exact(node)

        return rewritten(body, (_LEAVING, exact), (tirx.Cast, cast))

    def _as(self, dtype: str, value: Expr) -> Expr:
        return tirx.call_pure_extern(dtype, self.bits.format(self.types[dtype]), value)

    def _call(self, call: Any) -> Expr:
        library, _, name = str(getattr(call.op, "name", "")).rpartition(".")
        if library != "tirx":
            return call
        if name == "reinterpret" and not isinstance(call.ty, tvm.ir.PointerType):
            return self.cast_bits(call.args[0], str(call.ty.dtype))
        if name in self.functions:
            return self.function(name, str(call.ty.dtype), *call.args)
        if name == "sigmoid":
            (x,), one = call.args, tirx.const(1.0, call.ty.dtype)
            return one / (one + self.function("exp", str(call.ty.dtype), -x))
        return call

    def _extreme(self, node: Any) -> Expr:
        """The larger or smaller of two values. Of floats as on other targets: the second if one is a NaN; the
        languages' own functions are undefined there, or take the number. Those need narrow integers of one type, and
        C's expressions of them are wider."""
        dtype = str(node.ty.dtype)
        if dtype in _NARROW:
            return type(node)(self._exact(node.a, dtype), self._exact(node.b, dtype))
        if "float" not in dtype:
            return node
        is_larger = isinstance(node, tirx.Max)
        return named(
            lambda a, b: tirx.if_then_else(a > b if is_larger else a < b, a, b), node.a, node.b
        )

    def _integer(self, literal: Any) -> Expr:
        """The smallest integer of a type. C has no literal for it, except the negated literal of the next larger
        type."""
        dtype, value = str(literal.ty.dtype), int(literal.value)
        if dtype in ("int32", "int64") and value == -(1 << (int(dtype[3:]) - 1)):
            return self._as(dtype, tirx.const(-value, f"u{dtype}"))
        return literal

    def _number(self, literal: Any) -> Expr:
        """A float by its bits, unless a few digits represent it exactly."""
        dtype, value = str(literal.ty.dtype), float(literal.value)
        if dtype not in _BITS:
            return literal
        unsigned, packed, raw = _BITS[dtype]
        if (
            math.isfinite(value)
            and float(f"{value:e}") == value
            and (value or math.copysign(1, value) > 0)
        ):
            return literal
        (bits,) = struct.unpack(raw, struct.pack(packed, value))
        return self._as(dtype, tirx.const(bits, unsigned))


def _choice(select: Any) -> Expr:
    return tirx.if_then_else(select.condition, select.true_value, select.false_value)


def named(formula: Callable[..., Expr], *values: Expr) -> Expr:
    """A formula of values that it uses more than once: they get names. Copies would bind the names inside of a value
    several times, each to values of its own after TVM's lowering of what they are made of."""
    names: list[Any] = []
    found = formula(*(_named(x, name, names) for x, name in zip(values, "ab", strict=False)))
    for var, value in reversed(names):
        found = tirx.Let(var, value, found)
    return found


def _named(value: Expr, name: str, names: list[Any]) -> Expr:
    """A value that is used twice: bound to a name, unless it is short."""
    if isinstance(value, tvm.ir.Var | tirx.FloatImm):
        return value
    var = tirx.Var(name, value.ty)
    names.append((var, value))
    return var
