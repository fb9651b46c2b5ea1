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
    takes them, None (all are those of the example), or "auto": equal sizes above 1 are one symbol, or one for each
    place of an axis, and those vary that JAX can trace so. UsageError (`jax-trace`)."""  # fmt: skip
    import jax

    tree = (tuple(args), dict(kwargs))
    if sizes is None:
        return _with_sizes(tree, lambda size, _: size)
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
    names: dict[tuple[int, int], str] = {}
    parameters = argument_names(function, len(args))
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        for axis, size in enumerate(_shape(leaf)):
            if size > 1:
                names.setdefault((size, axis), f"{leaf_name(path, parameters)}_{axis}")

    def works(tried: Mapping[tuple[int, int], str]) -> bool:
        example = {name: size for (size, _), name in tried.items()}
        specs, named = _symbolic(tree, tried, constraints)
        return traces(function, specs, named, example)

    whole = {place: _first(names, place[0]) for place in names}
    if not names or works(whole):
        return _symbolic(tree, whole, constraints)
    kept: dict[tuple[int, int], str] = {}
    for size in dict.fromkeys(size for size, _ in names):
        group = {place: name for place, name in whole.items() if place[0] == size}
        apart = ({place: names[place]} for place in group) if len(group) > 1 else ()
        for part in (group, *apart):
            if not part.keys() & kept.keys() and works({**kept, **part}):
                kept |= part
    return _symbolic(tree, kept, constraints)


def _first(names: Mapping[tuple[int, int], str], size: int) -> str:
    """The first name for a size, at whatever axis."""
    return next(name for (other, _), name in names.items() if other == size)


def _shape(leaf: Any) -> Sequence[int]:
    """The sizes of an array of an example; a spec has its own."""
    import jax

    return () if isinstance(leaf, jax.ShapeDtypeStruct) else getattr(leaf, "shape", ())


def _symbolic(tree: Any, names: Mapping[tuple[int, int], str], constraints: Sequence[str]) -> Any:
    """The arguments with symbols for these sizes at these axes."""
    import jax

    if not names:
        return _with_sizes(tree, lambda size, _: size)
    distinct = list(dict.fromkeys(names.values()))
    made = jax.export.symbolic_shape(", ".join(distinct), constraints=constraints)
    symbols = dict(zip(distinct, made, strict=True))
    known = {place: symbols[name] for place, name in names.items()}
    return _with_sizes(tree, lambda size, axis: known.get((size, axis), size))


def _with_sizes(tree: Any, convert: Callable[[int, int], Any]) -> Any:
    import jax

    def spec(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct) or not hasattr(leaf, "dtype"):
            return leaf
        shape = tuple(convert(size, axis) for axis, size in enumerate(leaf.shape))
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    return jax.tree_util.tree_map(spec, tree)
