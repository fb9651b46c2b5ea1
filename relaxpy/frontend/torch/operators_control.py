"""Control flow: torch's higher-order operators as branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from relaxpy import op
from relaxpy.frontend.loops import Step, choice, steps
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr
from relaxpy.op.loop import while_loop


@operator("cond", namespace="higher_order")
def cond(at: Site, predicate: Any, then: Any, otherwise: Any, operands: Sequence[Any] = ()) -> Any:
    if isinstance(predicate, (bool, Dim)):
        predicate = at.number(predicate, "bool")
    predicate = at.emit(op.reshape(predicate, ()))
    branches = [partial(at.importer.subgraph, graph, operands) for graph in (then, otherwise)]
    return choice(at, predicate, branches)


@operator("while_loop", namespace="higher_order")
def while_(at: Site, test: Any, body: Any, carried: Sequence[Any], more: Sequence[Any] = ()) -> Any:
    def holds(*values: Any) -> Any:
        (found,) = at.importer.subgraph(test, [*values, *more])
        return at.emit(op.reshape(found, ()))

    def step(*values: Any) -> Any:
        return at.importer.subgraph(body, [*values, *more])

    return while_loop(at.importer.builder, holds, step, list(carried), span=at.span)


def _steps(
    at: Site, xs: Sequence[Expr], state: Sequence[Any], made: Sequence[Any], step: Step
) -> tuple[list[Expr], list[Expr]]:
    """A loop over the first axis; `made` is torch's knowledge of the stacks."""
    stacks = [(at.sizes(each.shape), at.dtype_of_val(each)) for each in made]
    return steps(at, at.shape_of(xs[0])[0], xs, state, stacks, step)


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
