"""Activations in int8: the tensor programs that quantise the rows of a tensor, with a scale for each group of
neighbours, and that turn them back into floats.

With a quantised weight (`relaxpy.op.weight_scheme`) a product is computed on bytes, if the second program is fused into
it. The first is a program of the module as well: nothing is quantised that the module does not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relaxpy.ir.accessors import known_dims
from relaxpy.ir.annotation import TensorType
from relaxpy.op import te

if TYPE_CHECKING:
    from relaxpy.tir.prim_func import PrimFunc

_LARGEST = 127
"""The largest code. -128 is not used, so that a code and its negative are both there."""


def activation_types(kind: TensorType, group: int) -> tuple[TensorType, TensorType]:
    """The types of the codes and the scales of a tensor of this type, whose rows consist of such groups."""
    *rows, depth = dims = known_dims(kind)
    return TensorType(dims, "int8"), TensorType((*rows, depth // group), "float32")


def quantize_activations(kind: TensorType, group: int) -> PrimFunc:
    """The program from a tensor of this type to its codes and scales: the largest magnitude of a group is 127, ties go
    to even, and a group of zeros has the scale 0. A group with a NaN or an infinity has no meaningful codes; its scale
    is not finite."""
    from relaxpy.tir.prim_func import PrimFunc  # loads TVM

    *rows, depth = dims = known_dims(kind)
    x = te.placeholder(dims, str(kind.dtype), "x")
    k = te.reduce_axis(group)

    def largest(*at: Any) -> Any:
        *row, number = at
        value = x(*row, number * te.dim(group) + k).astype("float32")
        return te.reduce_max(te.select(value < 0, -value, value), k)

    most = te.compute((*rows, depth // group), largest, "largest")
    scale = te.compute(
        (*rows, depth // group), lambda *at: most(*at) * te.const(1 / _LARGEST, "float32"), "scale"
    )

    def code(*at: Any) -> Any:
        *row, place = at
        own = most(*row, place // te.dim(group))
        by = te.select(own > 0, te.const(_LARGEST, "float32") / own, te.const(0, "float32"))
        return te.cast(te.round(x(*at).astype("float32") * by), "int8")

    return PrimFunc.from_te([x], [te.compute(dims, code, "codes"), scale])


def dequantize_activations(kind: TensorType, group: int) -> PrimFunc:
    """The program from codes and scales to a tensor of this type."""
    from relaxpy.tir.prim_func import PrimFunc  # loads TVM

    codes, scale = activation_types(kind, group)
    inputs = [
        te.placeholder(part.dims or (), str(part.dtype), name)
        for name, part in (("codes", codes), ("scale", scale))
    ]

    def element(*at: Any) -> Any:
        *row, place = at
        value = inputs[0](*at).astype("float32") * inputs[1](*row, place // te.dim(group))
        return te.cast(value, str(kind.dtype))

    return PrimFunc.from_te(inputs, [te.compute(kind.dims or (), element, "dequantized")])


def quantize_rows(kind: TensorType, most: int, least: float) -> PrimFunc:
    """The program from a matrix of this type (float32) to the codes and the scales of its rows, in one pass over each:
    what `max`, `abs`, `divide`, `maximum` and `quantize` compute where the largest magnitude of a row is the code
    `most`, and scales are at least `least`."""
    from relaxpy.tir.prim_func import PrimFunc  # loads TVM

    rows, depth = dims = known_dims(kind)
    x, k = te.placeholder(dims, "float32", "x"), te.reduce_axis(depth)

    def largest(row: Any) -> Any:
        value = x(row, k)
        return te.reduce_max(te.select(value < 0, -value, value), k)

    sizes = te.compute((rows,), largest, "largest")

    def step(row: Any) -> Any:
        return te.maximum(sizes(row) / te.const(most, "float32"), te.const(least, "float32"))

    scale = te.compute((rows,), step, "scale")

    def code(row: Any, place: Any) -> Any:
        value = te.cast(te.round(x(row, place) / scale(row)), "int8")
        return te.maximum(value, te.const(-most, "int8"))

    return PrimFunc.from_te([x], [te.compute(dims, code, "codes"), scale])
