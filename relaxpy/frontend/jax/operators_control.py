"""Branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from relaxpy import op
from relaxpy.frontend.jax.arrays import dtype_of
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.operators_elementwise import constant
from relaxpy.frontend.jax.table import branch_for_all, primitive
from relaxpy.frontend.loops import choice, steps
from relaxpy.ir import Expr
from relaxpy.op.loop import while_loop


@primitive("cond")
def cond(
    at: Site,
    index: Expr,
    *operands: Any,
    branches: Sequence[Any],
    branches_platforms: Any = None,
    **_: Any,
) -> Any:
    """The branch of this number; one out of range was clamped before."""
    if branches_platforms:
        return at.importer.called(branches[branch_for_all(branches_platforms)], operands)
    runs = [partial(at.importer.called, branch, operands) for branch in branches]

    def chosen(first: int) -> list[Any]:
        if first == len(runs) - 1:
            return runs[first]()
        found = at.emit(op.equal(index, at.full((), first, at.dtype_of(index))))
        return choice(at, found, (runs[first], partial(chosen, first + 1)))

    if at.dtype_of(index).is_bool:
        return choice(at, index, (runs[1], runs[0])) if len(runs) > 1 else runs[0]()
    return chosen(0)


@primitive("platform_index")
def platform_index(at: Site, platforms: Sequence[Any], **_: Any) -> Any:
    return constant(branch_for_all(platforms), at.dtype)


@primitive("while")
def while_(
    at: Site, *operands: Any, cond_nconsts: int, cond_jaxpr: Any, body_nconsts: int, body_jaxpr: Any,
    **_: Any,
) -> Any:  # fmt: skip
    """A predicate with axes, as `vmap` makes it, tells for each row whether it goes on; the others stay."""
    tested, more = operands[:cond_nconsts], operands[cond_nconsts:]
    fixed, carried = more[:body_nconsts], more[body_nconsts:]

    def predicate(values: Sequence[Any]) -> Any:
        return at.importer.called(cond_jaxpr, [*tested, *values])[0]

    def holds(*values: Any) -> Any:
        found = predicate(values)
        return op.any(found) if at.ndim(found) else found

    def step(*values: Any) -> Any:
        found = at.importer.called(body_jaxpr, [*fixed, *values])
        going = predicate(values)
        if not at.ndim(going):
            return found
        rows = at.shape_of(going)
        return [
            at.emit(
                op.where(
                    at.emit(op.reshape(going, [*rows, *[1] * (at.ndim(old) - len(rows))])), new, old
                )
            )
            for new, old in zip(found, values, strict=True)
        ]

    return while_loop(at.builder, holds, step, list(carried), span=at.span)


@primitive("scan")
def scan(
    at: Site, *operands: Any, num_consts: int, num_carry: int, jaxpr: Any, length: Any, reverse: bool,
    **_: Any,
) -> Any:  # fmt: skip
    fixed, more = operands[:num_consts], operands[num_consts:]
    first, xs = more[:num_carry], more[num_carry:]
    made = [
        (at.dims(var.aval.shape), dtype_of(var.aval, at.span)) for var in at.eqn.outvars[num_carry:]
    ]

    def step(rows: list[Expr], state: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        found = at.importer.called(jaxpr, [*fixed, *state, *rows])
        return found[:num_carry], found[num_carry:]

    (count,) = at.dims([length])
    last, stacks = steps(at, count, list(xs), list(first), made, step, reverse)
    return [*last, *stacks]
