"""Loops in random programs: variables that change, grow, change places or stay, several ends, one loop in another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from relaxpy import op
from relaxpy.ir.accessors import expect, tensor_of
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.expr import Expr, Var
from relaxpy.op.base import as_expr
from relaxpy.op.block_builder import SeqBuilder
from relaxpy.op.loop import Loop, as_dim, build_loop
from relaxpy.testing.random_body import Body, Rule
from relaxpy.testing.random_control import calm, leave_dataflow


def loop(g: Body) -> bool:
    """A loop that counts, and has one to three tensors as variables."""
    leave_dataflow(g)
    rng = g.rng
    first = [g.tensor() for _ in range(rng.choice((1, 1, 2, 3)))]
    times = Dim.of(rng.choice((0, 1, 2, 3, rng.choice(g.symbols))))
    grows = times.value is not None and rng.random() < 0.3
    breaks = rng.random() < 0.3
    seed = rng.getstate()

    def write(written: Loop) -> Expr:
        rng.setstate(seed)  # written again where sizes change
        at, *params = written.params
        counter = as_dim(at)
        with _step(g, params) as (inner, go_on):
            inner.steps(rng.choice((0, 1, 2)))
            values = [_next(inner, param, params, grows) for param in params]
            if breaks:
                ended = inner.condition()
                with inner.builder.seq() as stop:
                    stop.result(written.done([at, *values]))
                with inner.builder.seq() as again:
                    again.result(written.again([counter + 1, *values]))
                go_on.result(inner.builder.emit_if(ended, stop.seq, again.seq))
            else:
                go_on.result(written.again([counter + 1, *values]))
        with g.builder.seq() as otherwise:
            otherwise.result(written.done())
        test = as_expr(dim_op("lt", counter, times))
        return g.builder.emit_if(test, go_on.seq, otherwise.seq)

    names = ["i", *(f"v{i}" for i in range(len(first)))]
    for value in build_loop(
        g.builder, [0, *first], names, write, counters=1, pure=g.pure or g.depth > 0
    ):
        value = expect(Var, value)
        g.add(value)
    return True


def _step(g: Body, params: Sequence[Var]) -> AbstractContextManager[tuple[Body, SeqBuilder]]:
    """The body of a step, in which the variables are available."""
    inner = replace(g, pool=[*g.pool, *params])
    return inner.arm()


def _next(g: Body, param: Var, params: Sequence[Var], grows: bool) -> Var:
    """A variable in the next step."""
    kind = tensor_of(param)
    choice = g.rng.random()
    if choice < 0.2:
        return g.rng.choice([each for each in params if each.annotation == kind])
    if choice < 0.3:
        return param
    if choice < 0.5 and grows and kind.ndim > 0 and kind.dims is not None:
        return g.builder.emit(op.concat([param, calm(g, param)], axis=0))
    if choice < 0.7:
        return g.pick(lambda annotation: annotation == kind)
    return calm(g, param)


RULES: Mapping[Rule, int] = {loop: 2}
