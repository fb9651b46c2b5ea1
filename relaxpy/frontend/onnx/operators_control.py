"""Loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from relaxpy import op
from relaxpy.frontend.loops import steps
from relaxpy.frontend.onnx.branches import truth
from relaxpy.frontend.onnx.graph import Graph
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_shape import turned
from relaxpy.frontend.onnx.table import operator
from relaxpy.frontend.onnx.values import Listed
from relaxpy.ir import Dim, DType, Expr
from relaxpy.ir.dim import dim_op
from relaxpy.op.loop import while_loop

Trial = Callable[[], list[Any]]
"""The results of a step that was written, and thrown away."""

MOST_LOOPS = 4
"""How many loops may be inside of one another: each step is written twice, the first time to know its shapes."""

UNROLLED = 256
"""A loop that changes sequences is written out, up to so many steps."""


@operator("Loop")
def loop(
    at: Site, most: Any = None, condition: Any = None, *state: Any, body: Graph, **_: Any
) -> Any:
    count = len(state)
    _check_body(at, body, 2 + count, 1 + count, len(body.outputs) - 1)
    first = None if condition is None else truth(at.known(condition))
    limit = None if most is None else at.ints(most, "the number of steps")[0]
    if first is False:
        limit = Dim.of(0)
    if any(isinstance(each, Listed) for each in state):
        return _written_out(at, limit, condition, list(state), body)
    given = _types(at, body, state)
    makes = len(body.outputs) - 1 - count
    goes_on = condition is None or first is True
    trial = cache(partial(_once, at, body, state))
    if limit is not None and goes_on and _always(at, body, trial):
        shapes = _stacks(at, state, makes, trial()) if makes else []
        if shapes is not None:
            return _counted(at, limit, given, body, shapes)
    return _while(at, limit, condition, given, body, makes, trial)


def _check_body(at: Site, body: Graph, takes: int, gives: int, results: int) -> None:
    """Refuse a body that does not take so many values, or gives fewer, or a node with more than so many results."""
    if len(body.inputs) != takes or len(body.outputs) < gives or at.count > results:
        raise at.fail(
            "onnx-file",
            f"{at.node.op}: the graph {body.name!r} takes {len(body.inputs)} values and gives {len(body.outputs)}, "
            f"which does not fit a node that passes {takes} and has {at.count} results",
        )


def _types(at: Site, body: Graph, state: Sequence[Any]) -> list[Any]:
    return [at.emit(each) for each in state]


def _once(at: Site, body: Graph, state: Sequence[Any]) -> list[Any]:
    """The results of a step, which is thrown away: what can be known of them."""
    return _tried(at, body, [at.number(Dim.of(0), "int64"), constant(True, "bool"), *state])


def _tried(at: Site, body: Graph, given: Sequence[Any]) -> list[Any]:
    """The results of a body, which is thrown away."""
    at.importer.tries += 1
    if at.importer.tries > MOST_LOOPS:
        raise at.fail("onnx-operator", f"more than {MOST_LOOPS} loops inside of one another")
    names = at.builder.names().copy()
    with at.builder.seq() as trial:
        found = at.graph(body, given)
        trial.result(op.zeros((), "bool"))
    at.builder.set_names(names)
    at.importer.tries -= 1
    return found


def _always(at: Site, body: Graph, trial: Trial) -> bool:
    """Does a step never end the loop?"""
    return body.outputs[0] == body.inputs[1] or truth(at.known(trial()[0])) is True


def _stacks(at: Site, state: Sequence[Any], makes: int, found: Sequence[Any]) -> list[Any] | None:
    """The shapes and dtypes of what a step makes; None: they are not the same in all steps. `found`: what one gave."""
    kept: list[Any] = []
    for before, after in zip(state, found[1:], strict=False):
        if at.shape_of(before) != at.shape_of(after):
            return None
    for each in found[len(found) - makes :]:
        dims = at.shape_of(each)
        if not _is_outer(at, state, dims):
            return None
        kept.append((dims, at.dtype_of(each)))
    return kept


def _is_outer(at: Site, values: Sequence[Any], dims: Sequence[Dim]) -> bool:
    """Are the sizes those of these values, or of the program's parameters?"""
    known = {v for x in [*values, *at.importer.params] for d in at.shape_of(x) for v in d.vars}
    return all(known.issuperset(d.vars) for d in dims)


def _counted(at: Site, limit: Dim, state: list[Any], body: Graph, shapes: list[Any]) -> list[Any]:
    """A loop of a known number of steps."""
    count = len(state)
    length = limit if limit.value is not None and limit.value >= 0 else dim_op("max", limit, 0)
    numbers = at.emit(op.arange(0, length, 1, dtype="int64"))

    def step(rows: list[Expr], values: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        found = at.graph(body, [rows[0], constant(True, "bool"), *values])
        return found[1 : 1 + count], found[1 + count :]

    made = [([length, *dims], dtype) for dims, dtype in shapes]
    last, stacks = steps(at, length, [numbers], state, made, step)
    return [*last, *stacks]


def _while(
    at: Site,
    limit: Dim | None,
    condition: Any,
    state: list[Any],
    body: Graph,
    makes: int,
    trial: Trial,
) -> list[Any]:
    """A loop that a step may end."""
    count = len(state)
    begin = constant(True, "bool") if condition is None else at.emit(op.reshape(condition, ()))
    first = trial()[1 + count :] if makes else []

    def step(i: Dim, going: Any, values: Sequence[Any]) -> Any:
        found = at.graph(body, [at.number(i, "int64"), going, *values])
        return at.emit(op.reshape(found[0], ())), found[1 : 1 + count], found[1 + count :]

    return _growing(at, limit, begin, state, [(at.ndim(x), at.dtype_of(x)) for x in first], step)


def _growing(
    at: Site,
    limit: Dim | None,
    begin: Any,
    state: Sequence[Any],
    made: Sequence[tuple[int, DType]],
    step: Any,
) -> list[Any]:
    """A loop whose steps make tensors of these ranks and dtypes, of shapes that are known only when it runs: each is
    joined to what there is. `step(i, going, state)` gives whether the loop goes on, the state, and what it makes."""
    count = len(state)
    # An element of each shape: what is joined to it has the shape of the first step's.
    stacks = [at.emit(op.zeros([0] * (1 + rank), dtype)) for rank, dtype in made]

    def unfinished(i: Dim, going: Any, *_: Any) -> Any:
        if limit is None:
            return going
        return at.emit(op.logical_and(at.number(dim_op("lt", i, limit), "bool"), going))

    def again(i: Dim, going: Any, *values: Any) -> Any:
        going, states, new = step(i, going, values[:count])
        rest: list[Any] = []
        for old, each in zip(values[count:], new, strict=True):
            # The rows so far are of this shape, or there are none.
            dims = at.shape_of(each)
            rows = at.emit(op.reshape(old, [i, *dims]))
            rest.append(at.emit(op.concat([rows, at.emit(op.expand_dims(each, 0))], axis=0)))
        return (i + 1, going, *states, *rest)

    found = while_loop(
        at.builder, unfinished, again, [Dim.of(0), begin, *state, *stacks], span=at.span
    )
    return found[2:]


def _written_out(
    at: Site, limit: Dim | None, condition: Any, state: list[Any], body: Graph
) -> list[Any]:
    """The steps of a loop one after the other."""
    count = len(state)
    if limit is None or limit.value is None or limit.value > UNROLLED:
        raise at.fail(
            "onnx-operator",
            f"a loop that changes sequences must have a known number of steps, at most {UNROLLED}",
        )
    made: list[list[Any]] = []
    going = condition
    for i in range(limit.value):
        known = True if going is None else truth(at.known(going))
        if known is None:
            raise at.fail(
                "onnx-operator",
                "a loop that changes sequences ends by a condition that is known only when it runs",
            )
        if not known:
            break
        found = at.graph(body, [constant(i, "int64"), constant(True, "bool"), *state])
        going, state = found[0], found[1 : 1 + count]
        made.append(found[1 + count :])
    stacks = (
        [
            at.emit(op.stack([row[k] for row in made], axis=0))
            for k in range(len(body.outputs) - 1 - count)
        ]
        if made
        else []
    )
    return [*state, *stacks]


@operator("Scan")
def scan_v8(
    at: Site,
    lengths: Any,
    *given: Any,
    body: Graph,
    num_scan_inputs: int,
    directions: Any = None,
    **_: Any,
) -> Any:
    """Each batch apart."""
    if lengths is not None:
        raise at.fail(
            "onnx-operator", "Scan of version 8 with lengths of sequences is not supported"
        )
    batch = at.shape_of(given[0])[0].value
    if batch is None:
        raise at.fail(
            "onnx-operator", "Scan of version 8 with a batch that is known only when it runs"
        )
    rows: list[list[Any]] = []
    for b in range(batch):
        own: list[Any] = []
        for each in given:
            part = at.emit(op.strided_slice(each, [0], [b], [b + 1]))
            own.append(at.emit(op.squeeze(part, [0])))
        rows.append(
            scan(
                at,
                *own,
                body=body,
                num_scan_inputs=num_scan_inputs,
                scan_input_directions=directions,
            )
        )
    return [op.stack([row[k] for row in rows], axis=0) for k in range(len(body.outputs))]


@operator("Scan", since=9)
def scan(
    at: Site, *given: Any, body: Graph, num_scan_inputs: int, scan_input_axes: Any = None,
    scan_input_directions: Any = None, scan_output_axes: Any = None, scan_output_directions: Any = None, **_: Any,
) -> Any:  # fmt: skip
    kept = len(given) - num_scan_inputs
    if not 0 < num_scan_inputs <= len(given):
        raise at.fail("onnx-file", f"Scan has {len(given)} inputs, and scans {num_scan_inputs}")
    _check_body(at, body, len(given), kept, len(body.outputs))
    state = list(given[:kept])
    makes = len(body.outputs) - kept
    xs: list[Any] = []
    for k, x in enumerate(given[kept:]):
        rank = at.ndim(x)
        axis = at.axis(scan_input_axes[k] if scan_input_axes else 0, rank)
        x = at.emit(turned(x, [axis, *(a for a in range(rank) if a != axis)]))
        xs.append(
            at.emit(op.flip(x, axis=0)) if scan_input_directions and scan_input_directions[k] else x
        )
    length = at.shape_of(xs[0])[0]
    rows = [at.emit(op.zeros(at.shape_of(x)[1:], at.dtype_of(x))) for x in xs]
    first = _tried(at, body, [*state, *rows])
    shapes = [(at.shape_of(r), at.dtype_of(r)) for r in first[kept:]]

    def step(rows: list[Expr], values: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        found = at.graph(body, [*values, *rows])
        return found[:kept], found[kept:]

    def grow(i: Dim, going: Any, values: Sequence[Any]) -> Any:
        rows = [at.emit(op.strided_slice(x, [0], [i], [i + 1], assume_inbound=True)) for x in xs]
        rows = [at.emit(op.squeeze(row, [0])) for row in rows]
        return (going, *step(rows, list(values)))

    if _is_outer(at, [*state, *xs], [d for dims, _ in shapes for d in dims]):
        made = [([length, *dims], dtype) for dims, dtype in shapes]
        last, stacks = steps(at, length, xs, state, made, step)
    else:
        ranks = [(len(dims), dtype) for dims, dtype in shapes]
        found = _growing(at, length, constant(True, "bool"), state, ranks, grow)
        last, stacks = found[:kept], found[kept:]
    results: list[Any] = []
    for k in range(makes):
        x = stacks[k]
        x = (
            at.emit(op.flip(x, axis=0))
            if scan_output_directions and scan_output_directions[k]
            else x
        )
        rank = at.ndim(x)
        axis = at.axis(scan_output_axes[k] if scan_output_axes else 0, rank)
        order = list(range(1, rank))
        order.insert(axis, 0)
        results.append(at.emit(turned(x, order)))
    return [*last, *results]
