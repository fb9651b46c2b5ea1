"""Families of elementwise operators. Such an operator declares its name, the dtypes that it takes, and the scalar
function twice: for `te` and for numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import converted, widened
from relaxpy.op.rule import Cotangent, Rule

_TAKES: dict[str, Callable[[DType], bool]] = {
    "numbers": lambda dtype: not dtype.is_bool,
    "floats": lambda dtype: dtype.is_float,
    "integers": lambda dtype: dtype.is_int,
    "integers or bool": lambda dtype: not dtype.is_float,
    "bool": lambda dtype: dtype.is_bool,
    "integers of 64 bits": lambda dtype: dtype.is_int and dtype.bits == 64,
    "anything": lambda _: True,
}
"""The dtypes that an operator accepts, by the words used in its errors."""
_CAST_TO = {
    "integers": "int32",
    "integers or bool": "int32",
    "bool": "bool",
    "integers of 64 bits": "int64",
}


class Elementwise(Op):
    """`scalar` applied to corresponding elements, after numpy's broadcasting. The arguments have one dtype, which is
    that of the result. float16 and bfloat16 are computed in float32 and rounded once."""

    mixed = "follow"

    takes: ClassVar[str] = "numbers"
    """The dtypes of the arguments: a key of `_TAKES`."""
    gives_bool: ClassVar[bool] = False
    """Whether the result is bool, not of the arguments' dtype."""
    in_float: ClassVar[bool] = False
    """Whether integers are computed in float64, with the result rounded toward 0."""
    ufunc: ClassVar[Callable[..., Any]]
    """The function on arrays, unless `numpy` is overridden."""

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        """The cotangent of each argument, broadcast. By default `ct` times the derivative, `slope`, of one argument."""
        return [b.multiply(ct, self.slope(b, args[0], out))]

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        """The derivative of a function of one argument, by the argument or the result, whichever is kept anyhow."""
        raise NotImplementedError

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        found = zip(args, self.pull(b, args, out, ct), strict=False)
        return [None if part is None else b.sum_to(part, x) for x, part in found]

    @classmethod
    def has_vjp(cls) -> bool:
        own = (
            getattr(cls, name) is not getattr(Elementwise, name)
            for name in ("slope", "pull", "vjp")
        )
        return any(own) and not cls.no_vjp

    @classmethod
    def accepts(cls, dtype: DType) -> bool:
        """Whether the arguments may have this dtype."""
        return _TAKES[cls.takes](dtype)

    def scalar(self, *xs: Any) -> Any:
        """The function as an expression: by default the function of `te` with the operator's name."""
        return getattr(te, self.name)(*xs)

    def numpy(self, *xs: Any) -> Any:
        """The function on arrays."""
        return type(self).ufunc(*xs)

    def check(self, d: Deduction, dtype: DType) -> None:
        """Refuse dtypes that the function is not defined on."""
        names = [spec.name for spec in self.args]
        d.require(
            self.accepts(dtype),
            f"{' and '.join(names)} must be {self.takes}, got {dtype}",
            arg=names[0],
            code="op-dtype",
            help=self.cast_help(d),
        )

    def cast_help(self, d: Deduction) -> str:
        """The advice for a refused dtype."""
        target = _CAST_TO.get(self.takes, "float32")
        if len(self.args) == 1:
            return f'cast it: R.astype({d.written(self.args[0].name)}, "{target}")'
        return f'cast them: R.astype(…, "{target}")'

    def dtype(self, d: Deduction, *xs: KnownTensor) -> DType:
        """The common dtype of the arguments."""
        dtype = d.same_dtype(*xs)
        self.check(d, dtype)
        return dtype

    def result(self, d: Deduction, *xs: KnownTensor) -> TensorType:
        """The result type of `deduce`."""
        dtype = self.dtype(d, *xs)
        shape = d.broadcast(*(x.dims for x in xs))
        ndim = max(x.ndim for x in xs)
        vdevice = xs[0].vdevice if len(xs) == 1 else None
        return TensorType(shape, "bool" if self.gives_bool else dtype, ndim, vdevice)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        dtypes = [a.dtype for a in args if isinstance(a, TensorType) and a.dtype is not None]
        dtype = self.dtype(d, *(KnownTensor((), known) for known in dtypes)) if dtypes else None
        return TensorType(None, "bool" if self.gives_bool else dtype)

    def legalize(self, out: KnownTensor, *xs: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Any:
            values = [te.widen(te.broadcast(x, out.dims, i)) for x in xs]
            if self.in_float and out.dtype.is_int:
                values = [te.cast(value, DType("float64")) for value in values]
            return te.cast(self.scalar(*values), out.dtype)

        return te.compute(out.dims, element)

    def reference(self, *xs: np.ndarray) -> np.ndarray:
        if self.in_float and DType(xs[0].dtype).is_int:
            floats = [x.astype(np.float64) for x in xs]
            return converted(np.asarray(self.numpy(*floats)), str(DType(xs[0].dtype)))
        found = np.asarray(self.numpy(*map(widened, xs)))
        return found.astype(bool if self.gives_bool else xs[0].dtype)


class Unary(Elementwise):
    """A function of one tensor; the result has its shape."""

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        return self.result(d, x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        if cls.accepts(DType("float32")):
            yield sample(cls(), rand(3, 5), dims="n 5")
            yield sample(cls(), rand(4, 3, dtype="float16"), dims="n m", rtol=2e-3, atol=1e-3)
            yield sample(cls(), rand(0, 4), dims="n 4")
            yield sample(cls(), rand(1, dtype="float64"), dims="n")
            yield sample(cls(), rand())
            yield sample(cls(), np.array([0, -0.0, np.inf, -np.inf, np.nan], np.float32), dims="n")
        if cls.accepts(DType("int32")):
            edges = np.array([0, 5, -7, -(2**31), 2**31 - 1], np.int32)
            yield sample(cls(), edges, dims="n")
        if cls.accepts(DType("bool")):
            yield sample(cls(), rand(3, 5, dtype="bool"), dims="n 5")
        for dtype in ("float32", "int32", "bool"):
            if not cls.accepts(DType(dtype)):
                yield wrong(cls(), rand(3, dtype=dtype), code="op-dtype", match=cls.takes)


class FloatUnary(Unary):
    """A function that is defined on floats only."""

    takes = "floats"


class IntOrFloatUnary(Unary):
    """A function that is defined on all numbers."""


class Binary(Elementwise):
    """A function of two tensors. A Python number is a constant of the other argument's dtype."""

    scalar_args = True
    scalar_result = True
    size: ClassVar[Callable[[Dim, Dim], Dim | None] | None] = None
    """The function on integer dimensions, if it is defined on them."""

    def scalar_value(self, *args: Dim) -> Dim | None:
        size = type(self).size
        return None if size is None else size(*args)

    def deduce(self, d: Deduction, x1: KnownTensor, x2: KnownTensor) -> TensorType:
        return self.result(d, x1, x2)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind, some in (("float32", _float_pairs), ("int32", _int_pairs), ("bool", _bool_pairs)):
            if cls.accepts(DType(kind)):
                yield from some(cls())
            else:
                x = rand(3, dtype=kind)
                yield wrong(cls(), x, x, code="op-dtype", match=cls.takes)
        dtype = next(k for k in ("float32", "int32", "bool") if cls.accepts(DType(k)))
        a, b = rand(3, 5, dtype=dtype), rand(4, 5, dtype=dtype)
        yield wrong(cls(), a, b, code="shape-mismatch", match="3 and 4")
        yield wrong(cls(), a, a.astype("uint16"), code="op-dtype", match="uint16")


class Comparison(Binary):
    """A comparison of two tensors; the result is bool. The dtypes may differ: values are compared, integers exactly."""

    no_vjp = "its result is bool"
    gives_bool = True

    def dtype(self, d: Deduction, *xs: KnownTensor) -> DType:
        for x in xs:
            self.check(d, x.dtype)
        return xs[0].dtype

    def scalar(self, *xs: Any) -> Any:
        return te.compared(getattr(te, self.name), *xs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from (s for s in super().samples() if s.match != "uint16")
        x1, x2 = np.array([2**53, -1, 3, 2**62], np.int64), np.array([2.0**53 + 2, -1, 2.5, np.nan])
        yield sample(cls(), x1, x2, dims="n, n")
        yield sample(
            cls(), np.array([-1, 7, 2**63 - 1]), np.array([2**64 - 1, 7, 2**63], np.uint64)
        )
        yield sample(
            cls(), np.array([2**63, 3], np.uint64), np.array([-5, 3], np.int8), dims="n, n"
        )
        half = rand(2, 3, dtype="float16")
        yield sample(cls(), half, np.array([1, -1, 0], np.int32), dims="n m, m")
        yield sample(cls(), rand(3, dtype="int16"), rand(2, 1), dims="m, n 1")
        flags = rand(3, dtype="bool")
        if cls.accepts(DType("bool")):
            yield sample(cls(), flags, np.array([0, 1, 2], np.uint8), dims="n, n")
            yield sample(cls(), flags, rand(3), dims="n, n")
        else:
            yield wrong(cls(), rand(3), flags, code="op-dtype", match=cls.takes)


class Ternary(Elementwise):
    """A function of three tensors of one shape; a 0-d tensor is broadcast."""

    scalar_args = True
    scalar_result = True

    def deduce(self, d: Deduction, x1: KnownTensor, x2: KnownTensor, x3: KnownTensor) -> TensorType:
        tensors = {s.name: x for s, x in zip(self.args, (x1, x2, x3), strict=True) if x.ndim > 0}
        dims = next((x.dims for x in tensors.values()), ())
        for name, x in tensors.items():
            d.require(
                x.ndim == len(dims),
                f"{name} must have {len(dims)} dimensions, got {x.ndim}", arg=name, code="op-rank",
            )  # fmt: skip
            dims = tuple(
                d.same_dim(a, b, "shapes differ", arg=name)
                for a, b in zip(dims, x.dims, strict=True)
            )
        return self.result(d, *(KnownTensor(dims if x.ndim else (), x.dtype) for x in (x1, x2, x3)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), rand(3, 5), rand(), dims="n m, n m,")
        yield sample(cls(), rand(), rand(4, 1), rand(4, 1), dims=",n 1, n 1")
        half = [rand(2, 3, dtype="float16")] * 3
        yield sample(cls(), *half, dims="n 3, n 3, n 3", rtol=2e-3, atol=1e-3)
        ints = rand(4, dtype="int32")
        yield sample(cls(), ints, ints, ints, dims="n, n, n")
        yield wrong(cls(), rand(3), rand(3), rand(4), code="shape-mismatch", match="3 and 4")
        yield wrong(cls(), rand(3, 5), rand(5), rand(5), code="op-rank", match="2 dimensions")
        yield wrong(cls(), rand(3), rand(3), ints[:3], code="op-dtype", match="int32")
        flags = rand(3, dtype="bool")
        yield wrong(cls(), flags, flags, flags, code="op-dtype", match="numbers")


def _float_pairs(op: Op) -> Iterator[Sample]:
    yield sample(op, rand(3, 5), rand(3, 5), dims="n m, n m")
    yield sample(op, rand(3, 5), rand(5), dims="n m, m")
    yield sample(op, rand(3, 1), rand(1, 4), dims="n 1, 1 m")
    yield sample(op, rand(2, 1, 4), rand(3, 1), dims="n 1 4, m 1")
    yield sample(op, rand(0, 4), rand(1, 4), dims="n 4, 1 4")
    yield sample(op, rand(2, 3), rand(), dims="n 3,")
    half = rand(2, 3, dtype="float16"), rand(3, dtype="float16")
    yield sample(op, *half, dims="n 3, 3", rtol=2e-3, atol=1e-3)
    x1 = np.array([np.nan, 1, np.nan, -0.0, np.inf, np.inf, -3, 2, 0], np.float32)
    x2 = np.array([1, np.nan, np.nan, 0, -np.inf, 2, np.inf, -np.inf, 0], np.float32)
    yield sample(op, x1, x2, dims="n, n")


def _int_pairs(op: Op) -> Iterator[Sample]:
    least = -(2**31)
    x1 = np.array([7, -7, 7, -7, 5, least, least, -5, 1, least, 3], np.int32)
    x2 = np.array([2, 2, -2, -2, 0, -1, 0, 31, 32, 33, -(2**31)], np.int32)
    yield sample(op, x1, x2, dims="n, n")
    yield sample(op, rand(2, 5, dtype="int64", high=9), rand(5, dtype="int64"), dims="n m, m")


def _bool_pairs(op: Op) -> Iterator[Sample]:
    yield sample(op, rand(3, 5, dtype="bool"), rand(5, dtype="bool"), dims="n 5, 5")
    yield sample(op, rand(3, 1, dtype="bool"), rand(1, 2, dtype="bool"), dims="n 1, 1 m")
