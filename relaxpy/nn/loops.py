"""Loops in `forward` whose number of steps is not known when the model is exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy.errors import RelaxError
from relaxpy.ir import Dim, Expr, TensorType, Var
from relaxpy.nn.calls import as_arguments
from relaxpy.nn.construction import Construction, caller_span
from relaxpy.nn.tensor import Tensor
from relaxpy.op import loop


def while_loop(
    cond: Callable[..., Any], body: Callable[..., Any], init: Sequence[Any]
) -> tuple[Any, ...]:
    """Repeat `variables = body(*variables)` while `cond(*variables)`, a boolean of the program, is true. Returns the
    last values. `init` are the first: tensors, and integers or dimensions, which are dimensions in `cond` and `body`.
    Both may use all other tensors and the module's parameters. Variables keep dtypes and numbers of dimensions."""
    construction, span = Construction.current(), caller_span()

    def given(values: Any) -> list[Any]:
        items = values if isinstance(values, (tuple, list)) else (values,)
        return [v if isinstance(v, (bool, int, float, Dim)) else as_arguments(v)[0] for v in items]

    try:
        found = loop.while_loop(
            construction.builder,
            lambda *values: given(cond(*map(_shown, values)))[0],
            lambda *values: given(body(*map(_shown, values))),
            given(init),
            span=span,
        )
    except RelaxError as error:
        raise error.located(span) from None
    return tuple(map(_shown, found))


def _shown(value: Dim | Expr) -> Any:
    """A value of the program in `forward`."""
    if isinstance(value, Var) and isinstance(value.annotation, TensorType):
        return Tensor(value, value.annotation)
    return value
