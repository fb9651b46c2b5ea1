"""The functions of `relaxpy.nn.op`, generated from the operators' classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from relaxpy.nn.apply import apply
from relaxpy.nn.tensor import Tensor
from relaxpy.op import Op
from relaxpy.op.function import describe_as


@cache
def function_on_tensors(cls: type[Op]) -> Callable[..., Any]:
    """The function that applies an operator to tensors of `forward`."""

    def operator(*args: Any, **kwargs: Any) -> Any:
        return apply(cls.name, *args, **kwargs)

    result = result_of(cls)
    describe_as(operator, cls, "relaxpy.nn.op", result, _TYPES[result])
    return operator


def result_of(cls: type[Op]) -> str:
    """The result type of an operator on tensors of `forward`, from the declaration of its `deduce`."""
    declared = cls.deduce.__annotations__.get("return", "Annotation")
    return _RESULTS.get(getattr(declared, "__name__", declared), "Any")


_RESULTS = {
    "TensorType": "Tensor",
    "ShapeType": "Tensor",
    "PrimType": "Tensor",
    "TupleType": "tuple[Tensor, ...]",
}
"""Annotation of a result → its type in `forward`."""
_TYPES: dict[str, Any] = {"Tensor": Tensor, "tuple[Tensor, ...]": tuple[Tensor, ...], "Any": Any}
"""The Python types by these names."""
