"""Tensors whose elements share bytes (`relaxpy.ir.storage`), in tensor expressions: a reader of their elements, and the
bytes of a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, product
from relaxpy.ir.storage import as_whole_type, byte_dims
from relaxpy.tir import te
from relaxpy.tir.analyzer import int64
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.tir.walk import walk

_MASK, _SIGN = 15, 8


class Nibbles:
    """The elements of a packed tensor, in place of a te tensor of whole bytes: index it to read one."""

    def __init__(self, annotation: TensorType, name: str) -> None:
        self.dims = annotation.dims or ()
        self.bytes = te.placeholder(byte_dims(self.dims), "uint8", name)
        self.shape = [te.dim(size) for size in self.dims]
        self.dtype = str(as_whole_type(annotation).dtype)

    def __call__(self, *index: Any) -> Any:
        if _has_even_rows(self.dims):
            last = index[-1]
            return self._part(self.bytes(*index[:-1], last // 2), last % 2)
        place = int64(0)
        for at, size in zip(index, self.dims, strict=True):
            place = place * te.dim(size) + at
        return self._part(self.bytes(place // 2), place % 2)

    def __getitem__(self, index: Any) -> Any:
        return self(*index) if isinstance(index, tuple) else self(index)

    def _part(self, byte: Any, odd: Any) -> Any:
        """The low or the high half of a byte, as a number."""
        shift = tirx.Cast("uint8", odd * 4)
        code = (byte >> shift) & tirx.const(_MASK, "uint8")
        if self.dtype == "uint8":
            return code
        sign = tirx.const(_SIGN, "uint8")
        return tirx.Cast("int8", code ^ sign) - tirx.const(_SIGN, "int8")


def _has_even_rows(dims: Sequence[Dim]) -> bool:
    return bool(dims) and (dims[-1] % 2).value == 0


def packed(result: te.Tensor, annotation: TensorType) -> te.Tensor:
    """The bytes of a result with elements of whole bytes, of which the low bits are kept. The expression of its
    elements is written twice, so that a buffer of whole bytes is never in memory."""
    dims = annotation.dims or ()
    if any(size == 0 for size in dims):
        return te.compute(byte_dims(dims), lambda *_: tirx.const(0, "uint8"), "bytes")
    count = te.dim(product(dims))

    def half(index: Sequence[Any]) -> Any:
        value = _element(result, index)
        return tirx.Cast("uint8", value) & tirx.const(_MASK, "uint8")

    def joined(low: Any, high: Any) -> Any:
        return low | (high << tirx.const(4, "uint8"))

    def element(*at: Any) -> Any:
        if _has_even_rows(dims):
            first = at[-1] * 2
            return joined(half([*at[:-1], first]), half([*at[:-1], first + 1]))
        first = at[0] * 2
        last = first + 1
        inside = tirx.Min(last, count - 1)  # a read that vectors may do
        high = half(_unravelled(inside, dims))
        high = te.select(last < count, high, tirx.const(0, "uint8"))
        return joined(half(_unravelled(first, dims)), high)

    return te.compute(byte_dims(dims), element, "bytes")


def _unravelled(place: Any, dims: Sequence[Dim]) -> list[Any]:
    found: list[Any] = []
    for number, size in enumerate(reversed(dims)):
        is_first = number == len(dims) - 1
        found.insert(0, place if is_first else place % te.dim(size))
        place = place if is_first else place // te.dim(size)
    return found


def _element(result: te.Tensor, index: Sequence[Any]) -> Any:
    """The expression of an element of a computed tensor, with names of its own for parts."""
    given: dict[Any, Any] = {}
    (body,) = result.op.body

    def rename(let: Any) -> None:
        given[let.var] = tirx.Var(let.var.name, str(let.var.ty.dtype))

    walk(body, (tirx.Let, rename))
    given |= {axis.var: at for axis, at in zip(result.op.axis, index, strict=True)}
    return tvm_ffi.structural_map(body, (tvm.ir.Var, lambda var: given.get(var, var)))
