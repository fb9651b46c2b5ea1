"""Shapes as values, and calls with side effects: VM instructions or runtime functions, without a tensor program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter
from typing import Any, ClassVar

import numpy as np

from relaxpy.errors import DeduceError, RuntimeCheckError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import (
    VOID,
    Annotation,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr, Tuple
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op.base import (
    Op,
    Sample,
    as_expr,
    define_op,
    freeze_attr,
    number_array,
    print_attr,
    rand,
    sample,
    wrong,
)
from relaxpy.op.deduction import Deduction
from relaxpy.op.parameters import argument, attributes
from relaxpy.op.rule import INTEGERS, SCALAR


@define_op
class ShapeOf(Op):
    """The shape of a tensor as a shape value."""

    name = "shape_of"
    no_vjp = INTEGERS
    mixed = "follow"
    legalize = None
    packed: ClassVar[str] = "vm.builtin.shape_of"
    """The runtime function."""

    def deduce(self, d: Deduction, x: KnownTensor) -> ShapeType:
        return ShapeType(x.dims, x.ndim)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return ShapeType()

    def reference(self, x: np.ndarray) -> tuple[int, ...]:
        return x.shape

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 0), dims="n m")
        yield sample(cls(), rand())
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")


@define_op
class ShapeToTensor(Op):
    """Convert a shape to an int64 vector of its dimensions."""

    name = "shape_to_tensor"
    no_vjp = INTEGERS
    legalize = None
    packed: ClassVar[str] = "vm.builtin.shape_to_tensor"
    """The runtime function."""

    def deduce(self, d: Deduction, input: KnownShape) -> TensorType:
        return TensorType((input.ndim,), "int64")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, "int64", 1)

    def reference(self, input: tuple[int, ...]) -> np.ndarray:
        return np.asarray(input, np.int64).reshape(len(input))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), (3, 4), dims="n m")
        yield sample(cls(), ())
        yield wrong(cls(), rand(3), code="op-arguments", match="must be a shape")


@define_op
class TensorToShape(Op):
    """Convert an int64 vector to a shape with these dimensions."""

    name = "tensor_to_shape"
    no_vjp = INTEGERS
    legalize = None
    packed: ClassVar[str] = "vm.builtin.tensor_to_shape"
    """The runtime function."""

    def deduce(self, d: Deduction, input: KnownTensor) -> ShapeType:
        d.require(
            input.dtype == "int64",
            f"input must be int64, got {input.dtype}",
            arg="input",
            code="op-dtype",
        )
        d.require(
            input.ndim == 1,
            f"input must have one dimension, got {input.ndim}",
            arg="input",
            code="op-rank",
        )
        count = input.dims[0].value
        return ShapeType(None, -1 if count is None else count)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return ShapeType()

    def reference(self, input: np.ndarray) -> tuple[int, ...]:
        if (input < 0).any():
            raise RuntimeCheckError(
                "shape-value",
                f"a shape must be a 1-d tensor of integers of at least 0, got {input.dtype} {input.tolist()}",
            )
        return tuple(int(size) for size in input)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array([3, 0, 4], np.int64))
        yield sample(cls(), np.array([3, 4], np.int64), dims="n")
        yield wrong(cls(), rand(3), code="op-dtype", match="int64")
        yield wrong(cls(), rand(2, 3, dtype="int64"), code="op-rank", match="one dimension")


@define_op
class ScalarToTensor(Op):
    """Convert a scalar to a 0-d tensor. `dtype` is the scalar's own: at run time scalars carry no dtype."""

    name = "scalar_to_tensor"
    no_vjp = SCALAR
    legalize = None
    packed: ClassVar[str] = "vm.builtin.scalar_to_tensor"
    """The runtime function."""
    dtype: DType

    def deduce(self, d: Deduction, value: PrimType) -> TensorType:
        d.require(
            self.dtype == value.dtype,
            f"value is of dtype {value.dtype}, not {self.dtype}",
            arg="value",
            code="op-dtype",
        )
        return TensorType((), value.dtype)

    def reference(self, value: float) -> np.ndarray:
        return number_array(value, self.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(DType("int64")), 3, dims="n")
        yield wrong(cls(DType("int8")), 3, code="op-dtype", match="int8")
        yield wrong(cls(DType("float32")), rand(3), code="op-arguments", match="must be a scalar")


@define_op
class TensorToScalar(Op):
    """Convert a 0-d tensor to a scalar."""

    name = "tensor_to_scalar"
    no_vjp = SCALAR
    legalize = None
    packed: ClassVar[str] = "vm.builtin.tensor_to_scalar"
    """The runtime function."""

    def deduce(self, d: Deduction, x: KnownTensor) -> PrimType:
        d.require(
            x.ndim == 0,
            f"x must have no dimensions, got {x.ndim}",
            arg="x",
            code="op-rank",
            help="select one element: x[0]",
        )
        return PrimType(x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        x = expect(TensorType, x)
        return ObjectType() if x.dtype is None else PrimType(x.dtype)

    def reference(self, x: np.ndarray) -> Any:
        value = x.item()
        return value if isinstance(value, (bool, int)) else float(value)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(dtype="int64"), dims=",")
        yield wrong(cls(), rand(3), code="op-rank", match="no dimensions")


class Effect(Op):
    """A call with a side effect and any number of values. The call has one argument, the tuple `args`."""

    pure = False
    legalize = None
    fixed: ClassVar[int] = 0
    """Number of arguments before the values."""

    @classmethod
    def parameters(cls) -> list[Parameter]:
        lead = [argument(a.name, a.kind, a.optional, False) for a in cls.args[: cls.fixed]]
        values = Parameter("values", Parameter.VAR_POSITIONAL, annotation="ExprLike")
        return [
            *(each.replace(kind=Parameter.POSITIONAL_ONLY) for each in lead),
            values,
            *attributes(cls, after=[values]),
        ]

    @classmethod
    def make(cls, *args: Any, **attrs: Any) -> Call:
        """The call `R.<name>(…)`: values by position, attributes by keyword."""
        unknown = [key for key in attrs if key not in cls.attr_names()]
        if unknown or len(args) < cls.fixed:
            problem = f"has no argument {unknown[0]!r}" if unknown else "needs a condition"
            raise DeduceError("op-arguments", f"{cls.name} {problem}")
        lead = [as_expr(arg) for arg in args[: cls.fixed]]
        given = args[cls.fixed :]
        if len(given) == 1 and isinstance(given[0], list):  # TVM takes a list of values, too
            given = tuple(given[0])
        values = Tuple(tuple(map(as_expr, given)))
        frozen = {name: freeze_attr(value, name, cls) for name, value in attrs.items()}
        return Call(cls(**frozen), (*lead, values))

    def print_args(self, call: Call, arg: Callable[[Expr], str]) -> list[str]:
        values = expect(Tuple, call.args[-1])
        shown = [arg(value) for value in (*call.args[:-1], *values.fields)]
        for name in self.attr_names():
            if (value := getattr(self, name)) != getattr(type(self)(), name):
                shown.append(f"{name}={print_attr(value)}")
        return shown

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return VOID


@define_op
class Print(Effect):
    """Print values at run time: one per line, or formatted into the `{}` of `format`."""

    name = "print"
    no_vjp = "it is an effect"
    packed: ClassVar[str] = "relaxpy.print"
    """The runtime function."""
    format: str = ""

    def deduce(self, d: Deduction, values: TupleType) -> TupleType:
        return VOID

    def reference(self, values: Sequence[Any]) -> tuple[()]:
        if self.format:
            print(self.format.format(*values))  # noqa: T201  (what the program asks for)
        else:
            for value in values:
                print(value)  # noqa: T201
        return ()

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), (rand(3), (rand(2))), dims="n, 2")
        yield sample(cls(format="x is {}"), (rand(0),), dims="n")


@define_op
class AssertOp(Effect):
    """Raise an error at run time unless the condition, a 0-d bool tensor or a scalar, is true. The values replace the
    `{}` of `format`."""

    name = "assert_op"
    no_vjp = "it is an effect"
    packed: ClassVar[str] = "relaxpy.assert"
    """The runtime function."""
    fixed = 1
    format: str = "the assertion does not hold"

    def deduce(self, d: Deduction, condition: Annotation, values: TupleType) -> TupleType:
        fits = isinstance(condition, ObjectType) or (
            condition.dtype in ("bool", None) and getattr(condition, "ndim", 0) <= 0
            if isinstance(condition, (TensorType, PrimType))
            else False
        )
        d.require(
            fits,
            f"condition must be a scalar bool, got {condition}",
            arg="condition",
            code="op-dtype",
        )
        return VOID

    def reference(self, condition: Any, values: Sequence[Any]) -> tuple[()]:
        if not bool(condition):
            raise RuntimeCheckError("assertion-failed", self.format.format(*values))
        return ()

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.array(True), ())
        yield sample(cls(format="got {}"), np.array(True), (rand(2),), dims=", n")
        yield wrong(cls(), rand(2, dtype="bool"), (), code="op-dtype", match="condition")
