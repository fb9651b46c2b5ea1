"""Donated parameters: tensors that the caller gives up, so that a function may write its results over them, as a step
of training does with weights (`jax.jit(donate_argnums=…)`).

A function with the attribute `donated` is pure: what it computes does not depend on it. Only its callers have to know,
so it is called from outside of the module.
"""

from __future__ import annotations

from collections.abc import Iterator

from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.expr import Function

DONATED = "donated"
"""Attribute of a function: the names of the parameters, tensors and tuples of tensors, that it may overwrite."""


def donated(function: Function) -> tuple[int, ...]:
    """The positions of the parameters that are donated."""
    names = function.attrs.get(DONATED, ())
    return tuple(i for i, param in enumerate(function.params) if param.name in names)


def problems(function: Function) -> Iterator[str]:
    """What is wrong with the attribute, if it is a list."""
    types = {param.name: param.annotation for param in function.params}
    for name in function.attrs.get(DONATED, ()):
        if name not in types:
            yield f"names {name!r}, and the parameters are {', '.join(types)}"
        elif not _has_tensors_only(types[name]):
            found = f"names {name}, which is {types[name]}"
            yield f"{found}: a tensor of known shape and dtype, or a tuple of them, is donated"


def _has_tensors_only(annotation: Annotation) -> bool:
    match annotation:
        case TupleType(fields=fields):
            return all(map(_has_tensors_only, fields))
        case TensorType(dims=dims, dtype=dtype):
            return dims is not None and dtype is not None
        case _:
            return False
