"""Types of expressions, names of operators and items of arrays, read from TVM's nodes at little cost; functions with
other bodies.

A field of a node takes 0.2 µs, but `str(value.ty.dtype)` 1 µs, `call.op.name` 0.7 µs, and each item of an array 1 µs,
by way of other Python objects. Passes and rules ask at thousands of nodes of each kernel. TVM shares one node for each
type and operator, so their texts are kept by address.
"""

from __future__ import annotations

from typing import Any

from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

FLOOR_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)
DIVISIONS = (*FLOOR_DIVISIONS, tirx.Div, tirx.Mod)

address_of = tvm_ffi.core.Object.__hash__
"""A key of a node, as long as it lives. `hash` is none: that of a literal is its number, and -1 has that of -2."""
_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")
_length = tvm_ffi.get_global_func("ffi.ArraySize")

_types: dict[int, tuple[str, Any]] = {}
"""Address of a type → its text, and the type, so that no other one gets the address."""
_MOST_TYPES = 4096
"""A bound for types that TVM does not share after all."""
_operators: dict[int, str] = {}
"""Address of an operator, which lives as long as the process → its name."""


def dtype_of(value: Any) -> str:
    """The dtype of an expression, with lanes if it is a vector; "" if it is no number."""
    kind = value.ty
    found = _types.get(address_of(kind))
    if found is None:
        if len(_types) >= _MOST_TYPES:
            _types.clear()
        found = str(kind.dtype) if isinstance(kind, tvm.ir.PrimType) else "", kind
        _types[address_of(kind)] = found
    return found[0]


def operator_of(call: Any) -> str:
    """The name of the operator that is called; "" if a function is called."""
    op = call.op
    if not isinstance(op, tvm.ir.Op):
        return ""
    address = address_of(op)
    found = _operators.get(address)
    if found is None:
        found = _operators[address] = str(op.name)
    return found


def items(array: Any) -> list[Any]:
    """The items of TVM's array."""
    return [_item(array, number) for number in range(_length(array))]


def size_vars(func: tirx.PrimFunc) -> set[tvm.ir.Var]:
    """The variables that are dimensions of a function's arguments. They are not negative."""
    shapes = [param.shape for param in func.params if isinstance(param.ty, tirx.BufferType)]
    return {size for shape in shapes for size in shape if isinstance(size, tvm.ir.Var)}


def with_body(func: tirx.PrimFunc, body: tirx.Stmt) -> tirx.PrimFunc:
    """The function with a body; the same one if that is its own.

    TVM's constructor walks a body to see whether it has effects, which takes longer than most rewriting: 1.5 ms for
    attention. Passes do not change that, and nothing asks for it on the way to machine code. So this is a copy of the
    function, in which the body is set before anyone else sees it.
    """
    if body.same_as(func.body):
        return func
    made = func.with_attr(_COPIED, True).without_attr(_COPIED)
    _set_body(made, body)
    return made


_COPIED = "relaxpy.copied"
"""An attribute for a moment: TVM copies a function where an attribute is set."""
_set_body = next(
    field.setter for field in tirx.PrimFunc.__tvm_ffi_type_info__.fields if field.name == "body"
)


def with_zero(kind: type, a: Any, b: Any) -> Any:
    """A sum, product or quotient of two floats of which one is a literal 0, as a node: TVM's operators fold `x * 0`,
    `0 / x` and `x + 0` as if there were no NaN, infinities and signs of zeros. None of other operands, and of `x / 0`,
    which TVM can neither make nor print."""
    is_zero = [isinstance(each, tirx.FloatImm) and each.value == 0 for each in (a, b)]
    if not any(is_zero) or dtype_of(a) != dtype_of(b) or (kind is tirx.Div and is_zero[1]):
        return None
    return kind(a, b)
