"""Element-wise functions of two tensors, with numpy's broadcasting. A Python number stands for a
constant of the other's dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dtype import DType
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.precision import widened


class Binary(Op):
    """`scalar` of each pair of elements; the dtypes must be the same."""

    scalar_args = True
    takes: ClassVar[str] = "numbers"
    """What the arguments must be: numbers, floats, bool or anything."""
    gives_bool: ClassVar[bool] = False
    """The result is bool, not of the arguments' dtype."""

    def scalar(self, x1: Any, x2: Any) -> Any:
        """The function as an expression."""
        raise NotImplementedError

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        """The function on arrays."""
        raise NotImplementedError

    def deduce(self, d: Deduction, x1: TensorType, x2: TensorType) -> TensorType:
        dtype = d.same_dtype(x1, x2)
        self.check(d, dtype)
        assert x1.dims is not None
        assert x2.dims is not None
        shape = d.broadcast(x1.dims, x2.dims)
        return TensorType(shape, "bool" if self.gives_bool else dtype, max(x1.ndim, x2.ndim))

    def check(self, d: Deduction, dtype: DType) -> None:
        """Refuse dtypes that the function is not defined on."""
        fits = {
            "numbers": not dtype.is_bool, "floats": dtype.is_float, "bool": dtype.is_bool, "anything": True,
        }[self.takes]  # fmt: skip
        cast_to = "bool" if self.takes == "bool" else "float32"
        d.require(
            fits, f"x1 and x2 must be {self.takes}, got {dtype}", arg="x1", code="op-dtype",
            help=self.instead(dtype) or f'cast them: R.astype(…, "{cast_to}")',
        )  # fmt: skip

    def instead(self, dtype: DType) -> str | None:
        """What to call on a dtype that is refused."""
        return None

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = [a.dtype for a in args if isinstance(a, TensorType) and a.dtype is not None]
        if len(known) == len(args) and len(set(known)) > 1:
            d.fail(f"dtypes differ: {known[0]} and {known[1]}", code="op-dtype")
        if known:
            self.check(d, known[0])
        return TensorType(None, "bool" if self.gives_bool else known[0] if known else None)

    def legalize(self, out: TensorType, x1: te.Tensor, x2: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Any:
            a, b = te.broadcast(x1, out.dims, i), te.broadcast(x2, out.dims, i)
            return te.cast(self.scalar(te.widen(a), te.widen(b)), out.dtype)

        return te.compute(out.dims, element)

    def reference(self, x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
        found = np.asarray(self.numpy(widened(x1), widened(x2)))
        return found.astype(bool if self.gives_bool else x1.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        if cls.takes == "bool":
            a, b = rand(3, 5, dtype="bool"), rand(5, dtype="bool")
            yield sample(cls(), a, b, dims="n 5, 5")
            yield wrong(cls(), rand(3), rand(3), code="op-dtype", match="bool")
            return
        yield sample(cls(), rand(3, 5), rand(3, 5), dims="n m, n m")
        yield sample(cls(), rand(3, 5), rand(5), dims="n m, m")
        yield sample(cls(), rand(3, 1), rand(1, 4), dims="n 1, 1 m")
        yield sample(cls(), rand(2, 1, 4), rand(3, 1), dims="n 1 4, m 1")
        yield sample(cls(), rand(0, 4), rand(1, 4), dims="n 4, 1 4")
        yield sample(cls(), rand(2, 3), rand(), dims="n 3,")
        yield sample(
            cls(),
            rand(2, 3, dtype="float16"),
            rand(3, dtype="float16"),
            dims="n 3, 3",
            rtol=2e-3,
            atol=1e-3,
        )
        yield sample(cls(), np.array([np.nan, 1, np.nan, -0.0, np.inf], np.float32), np.array([1, np.nan, np.nan, 0, -np.inf], np.float32), dims="n, n")  # fmt: skip  # noqa: E501
        if cls.takes != "floats":
            numbers = np.array([7, -7, 7, -7, 5, -(2**31), -(2**31)], np.int32)
            others = np.array([2, 2, -2, -2, 0, -1, 0], np.int32)
            yield sample(cls(), numbers, others, dims="n, n")
            yield sample(cls(), rand(5, dtype="int64", high=9), rand(5, dtype="int64"), dims="n, n")
        else:
            ints = rand(3, dtype="int32")
            yield wrong(cls(), ints, ints, code="op-dtype", match="floats")
        yield wrong(cls(), rand(3, 5), rand(4, 5), code="shape-mismatch", match="3 and 4")
        yield wrong(cls(), rand(3), rand(3, dtype="float64"), code="op-dtype", match="float64")
        if cls.takes == "numbers":
            flags = rand(3, dtype="bool")
            yield wrong(cls(), flags, flags, code="op-dtype", match="bool")


@define_op
class Add(Binary):
    """x1 + x2; integers modulo 2**bits."""

    name = "add"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return x1 + x2

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.add(x1, x2)


@define_op
class Subtract(Binary):
    """x1 - x2; integers modulo 2**bits."""

    name = "subtract"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return x1 - x2

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.subtract(x1, x2)


@define_op
class Multiply(Binary):
    """x1 * x2; integers modulo 2**bits."""

    name = "multiply"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return x1 * x2

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.multiply(x1, x2)


@define_op
class Divide(Binary):
    """x1 / x2 of floats."""

    name = "divide"
    takes = "floats"

    def instead(self, dtype: DType) -> str | None:
        return (
            "for integers there is R.floor_divide; or cast them to a float dtype"
            if dtype.is_int
            else None
        )

    def scalar(self, x1: Any, x2: Any) -> Any:
        return x1 / x2

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.divide(x1, x2)


@define_op
class FloorDivide(Binary):
    """The quotient rounded down. Integers: 0 where x2 is 0, and the smallest integer over -1 is
    itself. Floats: floor(x1 / x2)."""

    name = "floor_divide"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.floor_divide(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        if DType(x1.dtype).is_float:
            return np.floor(x1 / x2)
        return np.where(x2 == 0, 0, np.floor_divide(x1, np.where(x2 == 0, 1, x2)))


@define_op
class FloorMod(Binary):
    """What `floor_divide` leaves, of the sign of x2. Integers: 0 where x2 is 0. Floats: x1 -
    floor(x1 / x2) * x2."""

    name = "floor_mod"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.floor_mod(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        if DType(x1.dtype).is_float:
            return x1 - np.floor(x1 / x2) * x2
        return np.where(x2 == 0, 0, np.mod(x1, np.where(x2 == 0, 1, x2)))


@define_op
class Power(Binary):
    """x1 to the power x2, of floats."""

    name = "power"
    takes = "floats"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.power(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.power(x1, x2)


@define_op
class Maximum(Binary):
    """The greater one; NaN if either is NaN."""

    name = "maximum"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.maximum(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.maximum(x1, x2)


@define_op
class Minimum(Binary):
    """The smaller one; NaN if either is NaN."""

    name = "minimum"

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.minimum(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.minimum(x1, x2)


@define_op
class LogicalAnd(Binary):
    """Both are true."""

    name = "logical_and"
    takes = "bool"
    gives_bool = True

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.logical_and(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.logical_and(x1, x2)


@define_op
class LogicalOr(Binary):
    """One of them is true."""

    name = "logical_or"
    takes = "bool"
    gives_bool = True

    def scalar(self, x1: Any, x2: Any) -> Any:
        return te.logical_or(x1, x2)

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        return np.logical_or(x1, x2)
