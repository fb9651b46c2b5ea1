"""The user's `dynamic_shapes`: names of sizes, which the exported program has lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaxpy.errors import UsageError, caller_span


@dataclass(frozen=True)
class Leaf:
    """What the user says of one argument: axis → torch's `Dim` of its size."""

    dims: Mapping[int, Any] = field(default_factory=dict[int, Any])


def shapes_with_dims(shapes: Any) -> Any:
    """`dynamic_shapes` with torch's `Dim` for each name that is text; the same name is the same Dim."""
    from torch.export import Dim

    if isinstance(shapes, str):
        return shapes
    made: dict[str, Any] = {}

    def convert(dim: Any) -> Any:
        if not isinstance(dim, str):
            return dim
        if not dim.isidentifier():
            raise UsageError(
                "torch-export",
                f"{dim!r} is no name of a size",
                span=caller_span(),
                help="write a name, such as 'batch'; for a size that others give, torch.export.Dim('n') * 2",
            )
        return made.setdefault(dim, Dim(dim))

    return _each_size(shapes, convert)


def all_sizes(module: Any, args: Any, kwargs: Any) -> Any:
    """`dynamic_shapes` in which every size of every tensor may vary, if the program lets it."""
    import torch
    from torch.export import Dim, ShapesCollection
    from torch.utils import _pytree as pytree

    shapes = ShapesCollection()
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            shapes[leaf] = dict.fromkeys(range(leaf.ndim), Dim.AUTO)
    return shapes.dynamic_shapes(module, args, kwargs)


def unnamed(shapes: Any) -> Any:
    """`dynamic_shapes` with DYNAMIC in place of named sizes: torch then keeps conditions on them as guards, where for a
    named size it refuses every condition."""
    from torch.export import Dim

    def convert(dim: Any) -> Any:
        if not is_named(dim):
            return dim
        low, high = limits(dim)
        return Dim.DYNAMIC(min=low, max=high)

    return _each_size(shapes, convert)


def limits(dim: Any) -> tuple[int | None, int | None]:
    """The range that the user gave a named size."""
    from torch.utils._sympy.numbers import int_oo

    if hasattr(dim, "root"):
        return None, None  # a derived size has the range of its root
    low = None if dim.min in (0, -int_oo) else int(dim.min)
    return low, None if dim.max == int_oo else int(dim.max)


def has_names(shapes: Any) -> bool:
    found: list[Any] = []
    _each_size(shapes, lambda dim: found.append(dim) if is_named(dim) else None)
    return bool(found)


def _each_size(shapes: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(shapes, Mapping):
        return {key: _each_size(each, convert) for key, each in shapes.items()}
    if isinstance(shapes, (tuple, list)):
        return type(shapes)(_each_size(each, convert) for each in shapes)
    return convert(shapes)


def named_sizes(program: Any, module: Any, shapes: Any) -> list[Leaf]:
    """The names of sizes of each leaf of the arguments, in order."""
    if shapes is None or isinstance(shapes, str) or program.example_inputs is None:
        return []
    from torch.export.dynamic_shapes import _combine_args
    from torch.utils import _pytree as pytree

    args, kwargs = program.example_inputs
    combined = _combine_args(module, args, kwargs)
    found: list[tuple[Any, Leaf]] = []
    given = shapes if isinstance(shapes, Mapping) else dict(zip(combined, shapes, strict=False))
    for name, value in combined.items():
        found += _leaves(value, given.get(name))
    order = {id(value): leaf for value, leaf in reversed(found)}
    flat = pytree.tree_leaves((args, kwargs))
    if len(flat) == len(found) and all(a is b for a, (b, _) in zip(flat, found, strict=True)):
        return [leaf for _, leaf in found]
    return [order.get(id(value), Leaf()) for value in flat]


def _leaves(value: Any, shapes: Any) -> Iterator[tuple[Any, Leaf]]:
    """The leaves of an argument with what `dynamic_shapes` says of them."""
    from torch.utils import _pytree as pytree

    kind = pytree._get_node_type(value)
    if kind not in pytree.SUPPORTED_NODES:
        yield value, _leaf(shapes)
        return
    children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
    if isinstance(shapes, Mapping):
        keys: Sequence[Any] = list(value) if isinstance(value, Mapping) else list(shapes)
        parts = [shapes.get(key) for key in keys]
    else:
        parts = list(shapes) if isinstance(shapes, (tuple, list)) else []
    del context
    for i, child in enumerate(children):
        yield from _leaves(child, parts[i] if i < len(parts) else None)


def _leaf(shapes: Any) -> Leaf:
    if shapes is None:
        return Leaf()
    items = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes)
    return Leaf({axis: dim for axis, dim in items if is_named(dim)})


def is_named(dim: Any) -> bool:
    """Is it a size with a name, `Dim("batch")` or one derived of it?"""
    from torch.export import Dim

    return isinstance(dim, Dim)
