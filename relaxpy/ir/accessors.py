"""What is known after normalisation, by one question each: a pass that relies on an earlier one says here what it
expects, and gets it with its type.

A mistake of the user is refused before (`well_formed`, the deduction of operators). What does not hold here is a defect
of a pass, so the error is none of a user's: the pipeline reports it with the pass and the module (`pass-crash`)."""

from __future__ import annotations

from typing import Any, TypeVar

from relaxpy.errors import Span
from relaxpy.ir.annotation import Annotation, ShapeType, TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Var

T = TypeVar("T")


class UnexpectedNode(AssertionError):
    """A node or an annotation that an earlier pass excludes. `span` is its place in the user's source, if known."""

    def __init__(self, expected: str, got: object, span: Span | None) -> None:
        at = "" if span is None else f", at {span}"
        super().__init__(f"expected {expected}, got {type(got).__name__} {got}{at}")
        self.span = span


def expect(kind: type[T], value: Any) -> T:
    """The value, which is of this class.

    Raises: UnexpectedNode if it is not.
    """
    match value:
        case kind():  # pyright: ignore[reportGeneralTypeIssues] (`isinstance` would be another call)
            return value
        case _:
            raise UnexpectedNode(kind.__name__, value, getattr(value, "span", None))


def tensor_of(var: Var) -> TensorType:
    """The annotation of a variable that holds a tensor.

    Raises: UnexpectedNode if it holds something else.
    """
    match var.annotation:
        case TensorType() as annotation:
            return annotation
        case other:
            raise UnexpectedNode(f"{var.name} to be a tensor", other, var.span)


def known_dims(annotation: object) -> tuple[Dim, ...]:
    """The dimensions in the annotation of a tensor or shape that has them: `known_dims(x.annotation)`.

    Raises: UnexpectedNode if it is none, or if its dimensions are unknown.
    """
    match annotation:
        case TensorType(shape=tuple(dims)) | ShapeType(dims=tuple(dims)):
            return dims
        case _:
            raise UnexpectedNode("a tensor of known dimensions", annotation, None)


def known_dtype(annotation: Annotation) -> DType:
    """The dtype in the annotation of a tensor that has one: `known_dtype(x.annotation)`.

    Raises: UnexpectedNode if it is none, or if its dtype is unknown.
    """
    match annotation:
        case TensorType(dtype=DType() as dtype):
            return dtype
        case _:
            raise UnexpectedNode("a tensor of known dtype", annotation, None)
