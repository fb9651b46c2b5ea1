"""Derivatives of operators beside jax's, in float64: of what jax computes as an operator does (`tests/op/jax_oracle`), jax's
own reverse mode, forward mode, and reverse mode of reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RelaxError
from relaxpy.op.base import OPS, Sample
from relaxpy.testing.grad_check import LARGEST, deduced_shapes, floats_of, like, moved
from relaxpy.testing.interpret import interpret
from relaxpy.testing.op_check import module_of
from relaxpy.testing.op_samples import arrays_of, map_arrays, samples, with_dtype
from relaxpy.transform import Gradient
from tests.e2e.test_operators_beside_jax import oracle
from tests.sweeps import part, sweep

LOOKED_AT = ("activation", "arg_reduce", "binary", "collapse")
"""The files of `tests/op/jax_oracle` of which every sample has been compared; others are to follow."""


@sweep
@pytest.mark.slow
@pytest.mark.parametrize("file", LOOKED_AT)
def test_derivatives_are_those_of_jax(file: str) -> None:
    """For samples of every operator that has a rule and that jax has."""
    jax = pytest.importorskip("jax")
    problems: list[str] = []
    compared = 0
    with jax.enable_x64(True):
        table = {k: v for k, v in oracle(file).items() if OPS[k].has_vjp()}  # type: ignore[attr-defined]
        for name, function in part([*table.items()], 4):
            for s in part([s for s in samples(name) if not s.code], 41):
                try:
                    compared += beside(function, moved(with_dtype(s, "float", "float64")))
                except Exception as e:
                    problems.append(
                        f"{s.op} {[a.shape for a in arrays_of(s)]}: {type(e).__name__}: {e}"[:800]
                    )
    assert not problems, f"{len(problems)} beside {compared}\n" + "\n\n".join(problems[:8])


def beside(function: Callable[..., Any], s: Sample) -> int:
    """The number of results compared: 0 where one of us has no derivative, or numbers are too large to tell."""
    import jax

    arrays = arrays_of(s)
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    if not floats or any((np.abs(arrays[i]) >= LARGEST).any() for i in floats):
        return 0
    mod = module_of(s, symbolic=False)
    given = deduced_shapes(mod, s)
    if given is None or len(given) != len(arrays):
        return 0
    value = interpret(mod, "main", *given)
    if any(leaf.dtype != np.float64 for leaf in floats_of(value)) or not floats_of(value):
        return 0

    def theirs(*moving: Any) -> list[Any]:
        rest = dict(zip(floats, moving, strict=True))
        order = iter(range(len(arrays)))
        inputs = [map_arrays(x, lambda _: _given(rest, arrays, next(order))) for x in s.inputs]
        found = function(s.op, *inputs)
        if found is NotImplemented:
            raise NotImplementedError
        leaves = jax.tree.leaves(found)
        return [leaf for leaf in leaves if leaf.dtype.kind == "f"]

    rng = np.random.default_rng(0)
    ct, at = like(value, rng), [arrays[i] for i in floats]
    tangents = [like(a, rng) for a in at]
    try:
        theirs(*map(jax.numpy.asarray, at))
    except Exception:
        return 0  # test_operators_beside_jax tells
    try:
        both, pushed = jax.jvp(theirs, at, tangents)

        def pull(*moving: Any) -> Any:
            return jax.vjp(theirs, *moving)[1](floats_of(ct))

        pulled = pull(*at)
        twice = jax.vjp(pull, *at)[1](tuple(tangents))
    except TypeError:
        return 0  # it has a value in jax, but no derivative
    assert len(both) == len(floats_of(value))
    try:
        ways = {k: Gradient("main", k)(mod) for k in ("vjp", "jvp")}  # type: ignore[arg-type]
    except RelaxError as error:
        if error.code != "gradient-rule":  # tests/op/test_rule.py knows which
            raise
        return 0
    of, ct_of = (
        interpret(ways["vjp"], "main_vjp", *given, ct),
        interpret(ways["jvp"], "main_jvp", *given, *tangents),
    )  # type: ignore[misc]
    equal(floats_of(of[1]), pulled, "reverse mode")  # type: ignore[index]
    equal(floats_of(ct_of[1]), pushed, "forward mode")  # type: ignore[index]
    again = Gradient(
        "main_vjp", "vjp", tuple(range(len(given))) if len(floats) == len(given) else tuple(floats)
    )(ways["vjp"])
    cts: Any = (
        like_zero(value),
        tuple(_cotangent(i, floats, tangents) for i in range(len(given)) if i in floats),
    )
    second: Any = interpret(again, "main_vjp_vjp", *given, ct, cts)
    equal(floats_of(second[1]), twice, "second order")
    return 1


def _cotangent(i: int, floats: Sequence[int], tangents: Sequence[Any]) -> Any:
    return tangents[floats.index(i)]


def like_zero(value: Any) -> Any:
    """A cotangent of zeros."""
    return map_arrays(like(value, np.random.default_rng(0)), np.zeros_like)


def _given(rest: dict[int, Any], arrays: Sequence[np.ndarray], i: int) -> Any:
    import jax

    return rest.get(i, jax.numpy.asarray(arrays[i]))


def equal(mine: Sequence[Any], theirs: Sequence[Any], what: str) -> None:
    assert len(mine) == len(theirs), what
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-7, atol=1e-8, err_msg=what)
