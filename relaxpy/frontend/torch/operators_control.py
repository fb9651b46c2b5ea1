"""Control flow: torch's higher-order operators as branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr, Tuple, TupleGetItem
from relaxpy.op.loop import while_loop


def _fields(at: Site, value: Expr, count: int) -> list[Expr]:
    return [at.emit(TupleGetItem(value, i)) for i in range(count)]


@operator("cond", namespace="higher_order")
def cond(at: Site, predicate: Any, then: Any, otherwise: Any, operands: Sequence[Any] = ()) -> Any:
    builder = at.importer.builder
    if isinstance(predicate, (bool, Dim)):
        predicate = at.number(predicate, "bool")
    branches = []
    count = len(at.val)
    for graph in (then, otherwise):
        with builder.seq() as branch:
            branch.result(Tuple(tuple(at.importer.subgraph(graph, operands))))
        branches.append(branch.seq)
    predicate = at.emit(op.reshape(predicate, ()))
    return _fields(at, builder.emit_if(predicate, *branches, span=at.span), count)


@operator("while_loop", namespace="higher_order")
def while_(at: Site, test: Any, body: Any, carried: Sequence[Any], more: Sequence[Any] = ()) -> Any:
    def holds(*values: Any) -> Any:
        (found,) = at.importer.subgraph(test, [*values, *more])
        return at.emit(op.reshape(found, ()))

    def step(*values: Any) -> Any:
        return at.importer.subgraph(body, [*values, *more])

    return while_loop(at.importer.builder, holds, step, list(carried), span=at.span)


def _steps(
    at: Site, xs: Sequence[Expr], state: Sequence[Any], made: Sequence[Any],
    step: Callable[[list[Expr], list[Expr]], tuple[list[Expr], list[Expr]]],
) -> tuple[list[Expr], list[Expr]]:  # fmt: skip
    """A loop over the first axis: the last state, and what the steps make, stacked."""
    length = at.shape_of(xs[0])[0]
    kept = len(state)
    stacks = [at.emit(op.zeros(at.sizes(each.shape), at.dtype_of_val(each))) for each in made]

    def body(i: Dim, *values: Any) -> Any:
        rows = []
        for x in xs:
            row = op.strided_slice(x, [0], [i], [i + 1], assume_inbound=True)
            rows.append(at.emit(op.reshape(row, at.shape_of(x)[1:])))
        states, results = step(rows, list(values[:kept]))
        filled = []
        for stack, result in zip(values[kept:], results, strict=True):
            row = at.emit(op.expand_dims(result, 0))
            filled.append(at.emit(op.slice_scatter(stack, row, i, i + 1, 1, axis=0)))
        return (i + 1, *states, *filled)

    found = while_loop(
        at.importer.builder,
        lambda i, *_: op.less(i, length),
        body,
        [Dim.of(0), *state, *stacks],
        span=at.span,
    )
    return found[1 : 1 + kept], found[1 + kept :]


@operator("map_impl", namespace="higher_order")
def map_(at: Site, body: Any, xs: Sequence[Expr], more: Sequence[Any]) -> Any:
    def step(rows: list[Expr], state: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        return state, at.importer.subgraph(body, [*rows, *more])

    return _steps(at, xs, [], at.val, step)[1]


@operator("scan", namespace="higher_order")
def scan(
    at: Site, body: Any, first: Sequence[Expr], xs: Sequence[Expr], more: Sequence[Any]
) -> Any:
    count = len(first)

    def step(rows: list[Expr], state: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        found = at.importer.subgraph(body, [*state, *rows, *more])
        return found[:count], found[count:]

    last, stacks = _steps(at, xs, first, at.val[count:], step)
    return [*last, *stacks]


@operator("invoke_subgraph", namespace="higher_order")
def invoke_subgraph(at: Site, graph: Any, name: str, *operands: Any) -> Any:
    return at.importer.subgraph(graph, operands)
