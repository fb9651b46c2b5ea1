"""Values that modules compute with: expressions of the function under construction, with Python's operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.ir import Annotation, Dim, DType, Expr, TensorType


class Value:
    """Anything that stands for a tensor in `forward`: a `Tensor`, or a `Parameter` of the module."""

    __slots__ = ()

    @property
    def __relax_expr__(self) -> Expr:
        """The expression that operators take it for."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Tensor:
        return _op("add")(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _op("add")(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _op("subtract")(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _op("subtract")(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _op("multiply")(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _op("multiply")(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _op("divide")(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _op("divide")(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return _op("matmul")(self, other)

    def __neg__(self) -> Tensor:
        return _op("negative")(self)


@dataclass(frozen=True, slots=True, eq=False)
class Tensor(Value):
    """A value bound in the function under construction; `annotation` is what the operator deduced for it."""

    expr: Expr
    annotation: Annotation

    @property
    def __relax_expr__(self) -> Expr:
        return self.expr

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Its dimensions. UsageError if they are not all known."""
        dims = self.annotation.dims if isinstance(self.annotation, TensorType) else None
        if dims is None:
            raise UsageError(
                "unknown-shape",
                f"the shape of a {self.annotation} is not known here",
                help="give it one with nn.op.match_cast",
            )
        return dims

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        """Its element type. UsageError if it is not known."""
        dtype = self.annotation.dtype if isinstance(self.annotation, TensorType) else None
        if dtype is None:
            raise UsageError("unknown-dtype", f"the dtype of a {self.annotation} is not known here")
        return dtype


def _op(name: str) -> Callable[..., Tensor]:
    from relaxpy.nn import op  # op needs Tensor, and Tensor's operators need op

    return getattr(op, name)
