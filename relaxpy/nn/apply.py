"""Application of an operator to the tensors of `forward`: the result is bound in the function under construction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir import Constant, TensorType
from relaxpy.ir.accessors import expect
from relaxpy.ir.array import as_array
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.nn.construction import Construction, caller_span
from relaxpy.op import OPS
from relaxpy.op.deduce import deduce
from relaxpy.op.indexing import index_tensor


def apply(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call the operator `name` and bind the result: a `Tensor`, or a tuple of `Tensor`s for several results. numpy
    arrays and numbers become constants."""
    span = caller_span()
    args = tuple(_constant(a) for a in args)
    try:
        return Construction.current().emit(
            OPS[name].make(*args, **kwargs), name.rsplit(".")[-1], span
        )
    except RelaxError as error:
        raise _in_forward(error).located(span) from None


def _in_forward(error: RelaxError) -> RelaxError:
    """The error with the names in its help as they are written in `forward`."""
    if error.help:
        error.help = error.help.replace("R.const(", "numpy.array(")
        error.help = re.sub(r"\bR\.([a-z][\w.]*)", _called_in_forward, error.help)
    return error


def _called_in_forward(found: re.Match[str]) -> str:
    return f"nn.op.{found[1]}" if found[1] in OPS or found[1] == "match_cast" else found[0]


def _constant(value: Any) -> Any:
    """An array of numpy or torch as a constant; anything else as it is."""
    if isinstance(value, (np.generic, np.ndarray)):
        return Constant(value)
    of_torch = type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "__array__")
    return Constant(as_array(value)) if of_torch else value


def index(x: Any, items: Sequence[Any]) -> Any:
    """`x[items]` with numpy's meaning (`relaxpy.op.indexing`): a `Tensor`."""
    span, construction = caller_span(), Construction.current()
    base = x.__relax_expr__
    annotation = deduce(base)
    try:
        annotation = expect(TensorType, annotation)
        exprs = [_index(item) for item in items]
        return construction.emit(
            index_tensor(
                base,
                annotation,
                exprs,
                lambda value: construction.builder.emit(value, "index", span=span),
            ),
            "index",
            span,
        )
    except RelaxError as error:
        raise _in_forward(error).located(span) from None


def _index(item: Any) -> Any:
    """An item of a subscript, in the form that `relaxpy.op.indexing` takes. Raises UsageError (`tensor-index`)."""
    if hasattr(type(item), "__relax_expr__"):
        return item.__relax_expr__
    if isinstance(item, slice):
        return slice(
            *(None if p is None else _index(p) for p in (item.start, item.stop, item.step))
        )
    if item is None or item is ...:
        return item
    if isinstance(item, (Dim, SymVar)):
        return Dim.of(item)
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item)
    if isinstance(item, np.ndarray):
        return Constant(item)
    advice = "use an integer or dimension, a slice, None, ..., or tensors of integers"
    if isinstance(item, list):
        advice = f"write an array: numpy.array({item!r})"
    raise UsageError("tensor-index", f"{item!r} is not an index of a tensor", help=advice)
