"""Tracing: a function of JAX as a jaxpr with symbolic sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaxpy.errors import UsageError, caller_span
from relaxpy.frontend.jax.comparisons import Differing, comparisons
from relaxpy.frontend.jax.sizes import is_symbolic
from relaxpy.frontend.jax.weights import argument_names, holds_sizes, leaf_name
from relaxpy.frontend.spans import raised_in
from relaxpy.ir import IRModule


@dataclass(frozen=True)
class Leaf:
    """A leaf of the arguments."""

    name: str
    value: Any
    """A `ShapeDtypeStruct`, an array, or a value that is part of the program."""

    @property
    def is_argument(self) -> bool:
        """Is it given at every call? Arrays are weights, all else is a constant."""
        import jax

        return isinstance(self.value, jax.ShapeDtypeStruct)

    @property
    def is_weight(self) -> bool:
        return (
            hasattr(self.value, "dtype") and hasattr(self.value, "shape") and not self.is_argument
        )


@dataclass
class Traced:
    """A jaxpr, and how it was traced."""

    jaxpr: Any
    leaves: Sequence[Leaf]
    """The leaves of `(args, kwargs)` in order; those that are arrays are the jaxpr's inputs."""
    arguments: Any
    """The tree of `(args, kwargs)`."""
    results: Any
    """The tree of the results."""
    outputs: Sequence[Any]
    """For each leaf of the results: its constant, or `TRACED`."""
    names: Sequence[str]
    """The names of the positional parameters."""
    scope: Any = None
    """The scope of symbolic sizes, with the user's constraints."""
    shifted: frozenset[str] = field(default_factory=frozenset[str])
    """Variables of sizes that stand for the size plus 1: the trace holds at a size of 0, too."""
    differing: Sequence[Differing] = ()
    """Sizes that the trace took to differ."""


TRACED = object()
"""A leaf of the results that is computed."""


def traced(
    function: Callable[..., Any],
    specs: Sequence[Any],
    kwspecs: Mapping[str, Any],
    from_zero: bool = True,
) -> Traced:
    """The jaxpr of a function. JAX takes every size to be at least 1: where the trace does not depend on that, it is
    made for sizes from 0 on, unless `from_zero` is false or the function holds sizes itself."""
    import jax

    if not callable(function) or isinstance(function, IRModule):
        raise UsageError(
            "jax-trace",
            f"a function is expected, got {type(function).__name__}",
            span=caller_span(),
            help="compile IR with relaxpy.build(module)"
            if isinstance(function, IRModule)
            else "pass a function of arrays, and a jax.ShapeDtypeStruct for each argument",
        )
    names = argument_names(function, len(specs))
    pairs, tree = jax.tree_util.tree_flatten_with_path((tuple(specs), dict(kwspecs)))
    leaves = [Leaf(leaf_name(path, names), value) for path, value in pairs]
    scopes = {id(d.scope): d.scope for each in leaves for d in _sizes(each.value) if is_symbolic(d)}
    if len(scopes) > 1:
        raise UsageError(
            "jax-trace",
            "the sizes of the arguments come from several calls of symbolic_shape",
            span=caller_span(),
            help='make them with one scope: scope = jax.export.SymbolicScope(); symbolic_shape("b, t", scope=scope)',
        )
    scope = next(iter(scopes.values()), None)
    symbols = sorted({v for each in leaves for d in _sizes(each.value) for v in _variables(d)})
    try:
        plain = _trace(function, leaves, tree, names)
    except Exception as error:
        raise _refusal(function, error) from error
    found = None
    if from_zero and symbols and not holds_sizes(function):
        found = _at_zero(function, leaves, tree, names, scope, symbols)
    chosen = found or plain
    chosen.scope = scope
    return chosen


def traces(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    example: Mapping[str, int],
) -> bool:
    """Can JAX trace the function for these, as it does at the example's sizes?"""
    import jax

    leaves, tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    try:
        found = _trace(function, [Leaf("", value) for value in leaves], tree, ())
        return not any(each.are_equal(example) for each in found.differing)
    except Exception:  # whatever the function raises for such sizes
        return False


def _at_zero(
    function: Any, leaves: Sequence[Leaf], tree: Any, names: Any, scope: Any, symbols: Sequence[str]
) -> Traced | None:
    """A trace that holds at sizes of 0 for as many symbols as there is one: in it they are variables less 1."""
    chosen: list[str] = []
    best: Traced | None = None
    for wanted in [list(symbols), *([s] for s in symbols if len(symbols) > 1)]:
        tried = frozenset((*chosen, *wanted))
        if tried <= frozenset(chosen):
            continue
        try:
            moved = _shifted(leaves, scope, symbols, tried)
            best = _trace(function, moved, tree, names)
        except Exception:  # whatever the function raises for such sizes: they stay from 1 on
            continue
        best.shifted = tried
        chosen = sorted(tried)
        if len(chosen) == len(symbols):
            break
    return best


def _shifted(
    leaves: Sequence[Leaf], scope: Any, symbols: Sequence[str], moved: frozenset[str]
) -> list[Leaf]:
    """The leaves with `v - 1` for each variable in `moved`, in a scope whose constraints say the same."""
    import jax
    from jax._src.export.shape_poly import _DimExpr

    texts = [each.debug_str for each in scope._explicit_constraints]
    for name in moved:
        texts = [re.sub(rf"\b{name}\b", f"({name} - 1)", text) for text in texts]
    other = jax.export.SymbolicScope(texts)
    values = {name: _DimExpr._from_var(name, other) - int(name in moved) for name in symbols}

    def convert(leaf: Leaf) -> Leaf:
        if not any(is_symbolic(d) for d in _sizes(leaf.value)):
            return leaf
        shape = tuple(d._evaluate(values) if is_symbolic(d) else d for d in leaf.value.shape)
        return Leaf(leaf.name, jax.ShapeDtypeStruct(shape, leaf.value.dtype))

    return [convert(leaf) for leaf in leaves]


def _trace(function: Any, leaves: Sequence[Leaf], tree: Any, names: Sequence[str]) -> Traced:
    """The jaxpr of the function of the leaves that are arrays. Raises what JAX raises."""
    import jax

    inputs = [leaf for leaf in leaves if leaf.is_argument or leaf.is_weight]
    found: list[Any] = []

    def flat(*values: Any) -> Any:
        given = iter(values)
        filled = [
            next(given) if leaf.is_argument or leaf.is_weight else leaf.value for leaf in leaves
        ]
        args, kwargs = jax.tree_util.tree_unflatten(tree, filled)
        results, structure = jax.tree_util.tree_flatten(function(*args, **kwargs))
        kinds = [TRACED if _is_array(each) else each for each in results]
        found[:] = [structure, kinds]
        return [each for each in results if _is_array(each)]

    avals = [jax.ShapeDtypeStruct(leaf.value.shape, leaf.value.dtype) for leaf in inputs]
    with comparisons() as differing:
        jaxpr = jax.make_jaxpr(flat)(*avals)
    return Traced(jaxpr, leaves, tree, found[0], found[1], names, differing=differing)


def _is_array(value: Any) -> bool:
    import jax

    if isinstance(value, (bool, int, float, str, bytes)) or value is None:
        return False
    return (
        isinstance(value, jax.Array) or hasattr(value, "__jax_array__") or hasattr(value, "dtype")
    )


def _sizes(value: Any) -> Sequence[Any]:
    import jax

    return value.shape if isinstance(value, jax.ShapeDtypeStruct) else ()


def _variables(size: Any) -> Sequence[str]:
    return sorted(size._get_vars()) if is_symbolic(size) else ()


def _refusal(function: Any, error: BaseException) -> UsageError:
    """The error for a function that JAX cannot trace, with its message."""
    name = getattr(function, "__name__", type(function).__name__)
    kind = type(error).__name__
    helps = {
        "InconclusiveDimensionOperation": "say more of the sizes: jax.export.symbolic_shape(…, constraints="
        '["b >= 8", "mod(b, 8) == 0"]), give the same name to sizes that are equal, or a number for one that '
        "does not vary",
        "TracerBoolConversionError": "a condition on values is jax.lax.cond or jax.numpy.where",
        "ConcretizationTypeError": "what depends on values cannot be a size or a number of Python",
    }
    return UsageError(
        "jax-trace",
        f"jax cannot trace {name}: {_first_lines(error)}",
        span=raised_in(error) or caller_span(),
        help=helps.get(kind, "jax.make_jaxpr(function)(*specs) shows where it stops"),
    )


def _first_lines(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return "\n".join(lines[:4]) or type(error).__name__
