"""Loops over the first axis, and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.site import Site
from relaxpy.ir import Dim, DType, Expr, SeqExpr, Tuple, TupleGetItem
from relaxpy.op.loop import while_loop

Step = Callable[[list[Expr], list[Expr]], tuple[list[Expr], list[Expr]]]
"""Rows and the state → the next state, and what is stacked."""


def steps(
    at: Site,
    length: Dim,
    xs: Sequence[Expr],
    state: Sequence[Any],
    made: Sequence[tuple[Sequence[Dim], DType]],
    step: Step,
    reverse: bool = False,
) -> tuple[list[Expr], list[Expr]]:
    """A loop over the first axis of `xs`, of this length: the last state, and what the steps make, stacked. `made` has
    the shapes and dtypes of the stacks. `reverse`: from the last row to the first."""
    kept = len(state)
    stacks = [at.emit(op.zeros(shape, dtype)) for shape, dtype in made]

    def body(i: Dim, *values: Any) -> Any:
        row = length - 1 - i if reverse else i
        rows: list[Expr] = []
        for x in xs:
            part = op.strided_slice(x, [0], [row], [row + 1], assume_inbound=True)
            rows.append(at.emit(op.reshape(at.emit(part), at.shape_of(x)[1:])))
        states, results = step(rows, list(values[:kept]))
        filled: list[Expr] = []
        for stack, result in zip(values[kept:], results, strict=True):
            new = at.emit(op.expand_dims(result, 0))
            filled.append(at.emit(op.slice_scatter(stack, new, row, row + 1, 1, axis=0)))
        return (i + 1, *states, *filled)

    def unfinished(i: Any, *_: Any) -> Any:
        return op.less(i, length)

    found = while_loop(
        at.builder,
        unfinished,
        body,
        [Dim.of(0), *state, *stacks],
        span=at.span,
    )
    return found[1 : 1 + kept], found[1 + kept :]


Body = tuple[SeqExpr, list[Any]]
"""A branch that was written, and its results."""


def body_of(at: Site, branch: Callable[[], Sequence[Any]]) -> Body:
    """Write a branch."""
    with at.builder.seq() as body:
        results = list(branch())
        body.result(Tuple(tuple(results)))
    return body.seq, results


def choice(at: Site, predicate: Expr, branches: Sequence[Callable[[], Sequence[Any]]]) -> list[Any]:
    """The results of the first branch if `predicate`, a 0-d bool tensor, is true, else of the second."""
    return chosen(at, predicate, [body_of(at, branch) for branch in branches])


def chosen(at: Site, predicate: Expr, bodies: Sequence[Body]) -> list[Any]:
    """The results of the first of two branches that were written if `predicate` is true, else of the second."""
    (first, results), (second, _) = bodies
    value = at.builder.emit_if(predicate, first, second, span=at.span)
    return [at.emit(TupleGetItem(value, i)) for i in range(len(results))]
