"""Symbolic sizes for an example call: as many as JAX can trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relaxpy.errors import UsageError, caller_span
from relaxpy.frontend.jax.tracing import traces
from relaxpy.frontend.jax.weights import argument_names, leaf_name


def specs_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    sizes: Any,
    constraints: Sequence[str],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with a `ShapeDtypeStruct` for each array. `sizes` are texts as `jax.export.symbolic_args_specs`
    takes them, None (all are those of the example), or "auto": equal sizes above 1 are one symbol, and those vary that
    JAX can trace so. UsageError (`jax-trace`)."""  # fmt: skip
    import jax

    tree = (tuple(args), dict(kwargs))
    if sizes is None:
        return _with_sizes(tree, lambda size: size)
    if sizes != "auto":
        if kwargs:
            raise UsageError(
                "jax-trace",
                "sizes are for arguments by position, and there are some by name",
                span=caller_span(),
                help="pass all arguments by position",
            )
        given = (sizes,) if isinstance(sizes, str) and len(args) == 1 else sizes
        made = jax.export.symbolic_args_specs(tuple(args), given, constraints=constraints)
        return tuple(made), {}
    names: dict[int, str] = {}
    parameters = argument_names(function, len(args))
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        for axis, size in enumerate(_shape(leaf)):
            if size > 1:
                names.setdefault(size, f"{leaf_name(path, parameters)}_{axis}")
    kept = dict(names)
    if names and not traces(function, *_symbolic(tree, kept, constraints)):
        kept = {}
        for size, name in names.items():
            if traces(function, *_symbolic(tree, {**kept, size: name}, constraints)):
                kept[size] = name
    return _symbolic(tree, kept, constraints)


def _shape(leaf: Any) -> Sequence[int]:
    """The sizes of an array of an example; a spec has its own."""
    import jax

    return () if isinstance(leaf, jax.ShapeDtypeStruct) else getattr(leaf, "shape", ())


def _symbolic(tree: Any, names: Mapping[int, str], constraints: Sequence[str]) -> Any:
    """The arguments with a symbol for each of these sizes."""
    import jax

    if not names:
        return _with_sizes(tree, lambda size: size)
    symbols = jax.export.symbolic_shape(", ".join(names.values()), constraints=constraints)
    known = dict(zip(names, symbols, strict=True))
    return _with_sizes(tree, lambda size: known.get(size, size))


def _with_sizes(tree: Any, convert: Callable[[int], Any]) -> Any:
    import jax

    def spec(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct) or not hasattr(leaf, "dtype"):
            return leaf
        shape = tuple(convert(size) for size in leaf.shape)
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    return jax.tree_util.tree_map(spec, tree)
