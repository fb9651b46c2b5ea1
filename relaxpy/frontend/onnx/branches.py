"""Branches. Their results may differ in rank, and what follows depends on it: then all that follows goes into both of
them, where the rank is known and later conditions on it are decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy import op
from relaxpy.errors import DeduceError, UsageError
from relaxpy.frontend.loops import Body, body_of, chosen
from relaxpy.frontend.onnx.graph import Graph
from relaxpy.frontend.site import check
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import dim_op

if TYPE_CHECKING:
    from relaxpy.frontend.onnx.importer import Site

MOST_SPLITS = 6
"""How many branches inside of one another may have all that follows in them: each doubles the program."""

Rest = Callable[[list[Any]], list[Any]]
"""The rest of a graph after a branch: the branch's results → those of the function."""


class RankError(UsageError):
    """Branches whose results differ in rank or dtype."""


def truth(value: np.ndarray | None) -> bool | None:
    """Whether a condition holds, if its value is known."""
    if value is None or value.size != 1:
        return None
    one = value.reshape(-1)[0]
    one = one.value if isinstance(one, Dim) else one
    return None if one is None else bool(one)


def branch(at: Site, condition: Expr, rest: Rest) -> tuple[bool, list[Any]]:
    """The results of the branch that the condition chooses; or, if all that follows went into the branches, True and
    the results of the function."""
    graphs: Mapping[str, Any] = at.node.attributes
    branches: Sequence[Graph] = graphs["then_branch"], graphs["else_branch"]
    for graph in branches:
        if graph.inputs or len(graph.outputs) != at.count:
            raise at.fail(
                "onnx-file",
                f"If: the graph {graph.name!r} takes {len(graph.inputs)} values and gives {len(graph.outputs)}, "
                f"which does not fit a node with {at.count} results",
            )
    known = truth(at.known(condition))
    if known is not None:
        taken = branches[0 if known else 1]
        if any(node.op == "If" for node in taken.nodes):
            return True, at.graph(taken, [], rest)
        return False, at.graph(taken, [])
    condition = at.emit(op.reshape(condition, ()))
    try:
        bodies = [body_of(at, partial(_tensors, at, graph, None)) for graph in branches]
        _agree(at, [results for _, results in bodies])
        return False, chosen(at, condition, bodies)
    except RankError:
        return True, _with_rest(at, condition, branches, rest)


def _with_rest(at: Site, condition: Any, branches: Sequence[Graph], rest: Rest) -> list[Any]:
    """The results of the function, with all that follows in both branches. One in which that is no program, since the
    rank is wrong for an operator, cannot be taken: that it is not is checked when the program runs."""
    importer = at.importer
    importer.splits += 1
    if importer.splits > MOST_SPLITS:
        raise RankError(
            "onnx-operator",
            f"more than {MOST_SPLITS} branches inside of one another differ in rank",
            span=at.span,
        )
    bodies: dict[int, Body] = {}
    try:
        for place, graph in enumerate(branches):
            try:
                bodies[place] = body_of(at, partial(_tensors, at, graph, rest))
            except DeduceError:
                if place and not bodies:
                    raise
        if len(bodies) == len(branches):
            _agree(at, [results for _, results in bodies.values()])
            return chosen(at, condition, list(bodies.values()))
        (taken,) = bodies
    finally:
        importer.splits -= 1
    _require(at, condition, taken == 0)
    return at.graph(branches[taken], [], rest)


def _require(at: Site, condition: Any, wanted: bool) -> None:
    """Check when the program runs that a condition holds, or that it does not."""
    text = "the branch of which the rest of the model is a program is taken"
    found = at.known(condition)
    size = None if found is None else found.reshape(-1)[0]
    if isinstance(size, Dim):
        size = size if size.is_truth else dim_op("ne", size, 0)
        check(
            at.builder,
            size if wanted else dim_op("not", size),
            text,
            None,
            "onnx-operator",
            at.span,
        )
        return
    holds = condition if wanted else at.emit(op.logical_not(condition))
    at.emit(op.assert_op(holds, format=text))


def _tensors(at: Site, graph: Graph, rest: Rest | None) -> list[Expr]:
    found = at.graph(graph, [], rest)
    for value in found:
        if not isinstance(value, Expr):
            raise RankError(
                "onnx-operator",
                f"a result of a branch is {value}, and which branch is taken is known only when it runs",
                span=at.span,
            )
    return found


def _agree(at: Site, results: Sequence[Sequence[Any]]) -> None:
    """Refuse results that differ in rank or dtype."""
    for a, b in zip(*results, strict=True):
        kinds = [f"{at.dtype_of(x)} of {at.ndim(x)} dimensions" for x in (a, b)]
        if kinds[0] != kinds[1]:
            raise RankError(
                "onnx-operator",
                f"a result of the branches is {kinds[0]} in one and {kinds[1]} in the other",
                span=at.span,
            )
