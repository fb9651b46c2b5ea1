"""Primitives that JAX itself writes in others: the functions that it lowers them with, traced for an equation."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from relaxpy.errors import UsageError


def _special(name: str) -> Callable[[], Callable[..., Any]]:
    def function() -> Callable[..., Any]:
        from jax._src.lax import special

        return special._up_and_broadcast(getattr(special, name))

    return function


def _mulhi() -> Callable[..., Any]:
    from jax._src.lax import lax

    return lax._mulhi_impl


def _ragged_dot() -> Callable[..., Any]:
    from jax._src.lax import lax

    return lax._ragged_dot_general_impl


def _gamma() -> Callable[..., Any]:
    from jax._src.random import core

    return partial(core._gamma_impl, use_vmap=True)


EXPANSIONS: dict[str, Callable[[], Callable[..., Any]]] = {
    "igamma": _special("igamma_impl"),
    "igamma_grad_a": _special("igamma_grad_a_impl"),
    "igammac": _special("igammac_impl"),
    "mulhi": _mulhi,
    "ragged_dot_general": _ragged_dot,
    "random_gamma": _gamma,
    "regularized_incomplete_beta": _special("regularized_incomplete_beta_impl"),
}
"""Primitive → what gives the function that makes its result of its operands and parameters."""


class ExpansionError(UsageError):
    """A primitive cannot be expanded for its sizes."""


@lru_cache(maxsize=512)
def expansion(eqn: Any) -> Any:
    """The jaxpr that an equation stands for."""
    import jax

    avals = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in eqn.invars]
    function = EXPANSIONS[eqn.primitive.name]()
    try:
        return jax.make_jaxpr(partial(function, **eqn.params))(*avals)
    except jax.errors.InconclusiveDimensionOperation as error:
        raise ExpansionError(
            "jax-trace",
            f"jax writes {eqn.primitive.name} in other primitives, which asks of a size what is not known: "
            + str(error).splitlines()[0],
            help="give the size as a number",
        ) from error
