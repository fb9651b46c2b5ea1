"""Weight-only quantisation: the tensor programs between a matrix of floats and the small integers with scales that it
is kept as (`relaxpy.codes`).

`WeightScheme.quantize` makes the arrays from a matrix, `WeightScheme.program` is the tensor program that computes the
matrix from them; both are derived from the same fields. Fusion moves the program into the product that reads the matrix
(figure 9 of the paper), so that the floats are never in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaxpy.codes import Codes
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, DimLike
from relaxpy.ir.dtype import DType
from relaxpy.op import te

if TYPE_CHECKING:
    from relaxpy.tir.prim_func import PrimFunc


@dataclass(frozen=True, slots=True)
class WeightScheme(Codes):
    """How weights are quantised, as tensor programs. Raises UsageError (`weight-scheme`) for bits, groups or kinds that
    do not exist."""

    def types(self, shape: Sequence[DimLike], axis: int) -> dict[str, TensorType]:
        """The parts of a quantised matrix of this shape with its depth, which is known, along `axis`; their types."""
        found: dict[str, TensorType] = {}
        for name, ((own,), dtype) in self.parts((_known(shape[axis]),), 0).items():
            dims = list(shape)
            dims[axis] = own
            found[name] = TensorType(dims, dtype)
        return found

    def program(self, shape: Sequence[DimLike], axis: int, dtype: str = "float32") -> PrimFunc:
        """The tensor program from the parts to a matrix of this shape and dtype, of which the depth is known. It
        computes in float32."""
        from relaxpy.tir.prim_func import PrimFunc  # loads TVM

        size = self.group_size(_known(shape[axis]))
        types = self.types(shape, axis)
        inputs = {
            name: te.placeholder(kind.dims or (), str(kind.dtype), name)
            for name, kind in types.items()
        }

        def element(*at: Any) -> Any:
            k = at[axis]

            def part(name: str, every: int) -> Any:
                index = list(at)
                index[axis] = k // te.dim(every) if every > 1 else k
                return inputs[name](*index)

            code = part("codes", self.per_word)
            if self.per_word > 1:
                shift = (k % te.dim(self.per_word) * te.dim(self.bits)).astype(self.word)
                code = code >> shift & te.const(self.mask, self.word)
            value = code.astype("float32")
            scale = part("scale", size).astype("float32")
            if self.zero == "minimum":
                value = value * scale + part("minimum", size).astype("float32")
            elif self.zero == "zero_point":
                value = (value - part("zero", size).astype("float32")) * scale
            else:
                value = (value - te.const(self.middle, "float32")) * scale
            return te.cast(value, str(DType(dtype)))

        made = te.compute(shape, element, "dequantized")
        return PrimFunc.from_te(list(inputs.values()), [made])

    def quantizer(self, shape: Sequence[int], axis: int, dtype: str = "float32") -> PrimFunc:
        """The tensor program from a matrix of this shape and dtype to its parts, in the order of `types`: the numbers
        of `quantize`, to the bit. It reports nothing: a group with an infinity or a NaN, or whose scale overflows, has
        a scale (or minimum) that is not finite."""
        from relaxpy.op.quantizer import Quantizer

        return Quantizer(self, tuple(shape), axis, dtype).program()


def _known(dim: DimLike) -> int:
    """The size of a dimension that is known."""
    size = Dim.of(dim).value
    assert size is not None, "the depth of a scheme is known"
    return size
