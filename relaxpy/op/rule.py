"""What rules of differentiation are written with (`Op.vjp`): operators as methods, and sums over broadcast axes.

def vjp(self, b, args, out, ct):
    (x,) = args
    return [b.multiply(ct, b.cos(x))]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim, DimLike
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr, Tuple, TupleGetItem
from relaxpy.ir.known import KnownTensor, as_known
from relaxpy.op.deduce import deduce
from relaxpy.op.function import member
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal

BOOL = "its result is bool"
INTEGERS = "it is of integers"
SIZES = "its arguments are sizes and constants"
SCALAR = "a scalar has no gradient: pass a 0-d tensor"
LATER = "no rule is written yet"
"""Reasons of operators to have no rule (`Op.no_vjp`)."""


@dataclass(frozen=True)
class NoRule:
    """Stands for the cotangent of an argument with respect to which an operator has no rule: the reason."""

    reason: str


Cotangent: TypeAlias = "Expr | Sequence[Cotangent] | NoRule | None"
"""The cotangent of a value: a tensor of the same shape and dtype; one for each field of a tuple; None: zero, as that of
every value that is no tensor of floats."""


class Rule:
    """Emits calls of operators: `b.multiply(x, 2.0)` and `b.nn.softmax(x)` are new variables. The other methods tell
    what is known of an expression."""

    def __init__(
        self,
        emit: Callable[[Expr], Expr],
        namespace: Any = None,
        through: Any = None,
        scan: Any = None,
    ) -> None:
        self.emit = emit
        """Binds an expression to a variable."""
        self.through: Callable[[Callable[..., Expr], Sequence[Any], Expr], list[Cotangent]] = (
            through
        )
        """`b.through(compute, args, ct)`: the cotangents of arguments, given that of `compute(*args)`, which emits
        calls of operators that have rules: for an operator that is a composition of others."""
        self.scan: Callable[..., Expr] = scan
        """`b.scan(step, first, rows, shared)`: (last states…, outputs) of steps that follow each other, one for each
        index of the first axis of `rows`, as a function that calls itself. `step(b, states, row, shared)` emits a step
        and returns states, and an output of the shape of the first state; `rows` and `shared` are tensors by name."""
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        found = member(name) if self._namespace is None else getattr(self._namespace, name)
        if isinstance(found, ModuleType):
            value: Any = Rule(self.emit, found)
        else:
            value = lambda *args, **kwargs: self.emit(found(*args, **kwargs))  # noqa: E731
        setattr(self, name, value)
        return value

    def astype(self, x: Expr, dtype: DType | str) -> Expr:
        """X cast to a dtype."""
        return x if self.dtype(x) == dtype else self.emit(member("astype")(x, dtype))

    def reshape(self, x: Expr, dims: Sequence[DimLike]) -> Expr:
        """X in another shape."""
        wanted = tuple(map(Dim.of, dims))
        return x if self.dims(x) == wanted else self.emit(member("reshape")(x, wanted))

    def known(self, x: Expr) -> KnownTensor:
        """The annotation of a tensor. Raises DeduceError if its rank or dtype is unknown."""
        annotation = deduce(x)
        try:
            return as_known(annotation)
        except TypeError:
            raise DeduceError(
                "gradient-rule",
                f"the rank and the dtype of what is differentiated must be known, got {annotation}",
                help='declare them: R.match_cast(x, R.Tensor((n, m), dtype="float32"))',
            ) from None

    def dims(self, x: Expr) -> tuple[Dim, ...]:
        """The shape of a tensor."""
        return self.known(x).dims

    def rank(self, x: Expr) -> int:
        """The number of dimensions of a tensor."""
        return len(self.dims(x))

    def dtype(self, x: Expr) -> DType:
        """The element type of a tensor."""
        return self.known(x).dtype

    def sum_to(self, ct: Expr, x: Expr) -> Expr | None:
        """The cotangent of x, where ct is that of x broadcast: the sum over the repeated axes. An axis whose size may
        turn out to be 1 is summed or not at run time. None if x is no tensor."""
        if not isinstance(deduce(x), TensorType):
            return None
        return self.summed(ct, self.dims(x))

    def summed(self, ct: Expr, dims: Sequence[Dim]) -> Expr:
        """`ct` summed to the shape `dims`, from which it was broadcast."""
        return ct if same_dims(self.dims(ct), dims) else self.collapse_sum_to(ct, tuple(dims))

    def where_not(self, condition: Expr, x: Expr) -> Expr:
        """X where the condition is false, else 0."""
        return self.where(condition, 0.0, x)

    def fields(self, x: Expr) -> list[Expr]:
        """The fields of a tuple."""
        if isinstance(x, Tuple):
            return list(x.fields)
        annotation = deduce(x)
        count = len(annotation.fields or ()) if isinstance(annotation, TupleType) else 0
        return [self.emit(TupleGetItem(x, i)) for i in range(count)]


def same_dims(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Are the shapes proved to be equal?"""
    if len(a) != len(b):
        return False
    return all(x == y or equal(x, y) is Verdict.YES for x, y in zip(a, b, strict=True))


def has_gradient(annotation: Annotation) -> bool:
    """Is this a tensor of floats, or a tuple with one? All other values have no cotangent."""
    match annotation:
        case TensorType(dtype=dtype):
            return dtype is None or dtype.is_float
        case TupleType(fields=fields):
            return any(map(has_gradient, fields or ()))
        case _:
            return False
