"""Sizes of 0 and 1, at which a program may take another branch than it took when it was traced.

`if x.shape[0] > 1` is true for all larger sizes, so one trace serves these. Whether it serves a size of 1 as well is
found by tracing again at that size: often the condition decides nothing, as where a mask is given anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from relaxpy.frontend.torch.export import Traced, trace


def same_at(traced: Traced, module: Any, symbols: Collection[str], value: int) -> bool:
    """Is the trace the same with these symbols of sizes at `value`? A size that cannot be traced is not the same, and
    without the module none can."""
    import torch
    from torch.utils import _pytree as pytree

    program = traced.program
    if module is None:
        return False
    users = [s for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    leaves, spec = pytree.tree_flatten(program.example_inputs)
    changed: list[Any] = []
    for leaf, user in zip(leaves, users, strict=True):
        if isinstance(leaf, torch.Tensor) and user.arg.name in nodes:
            for axis, size in enumerate(nodes[user.arg.name].meta["val"].shape):
                wanted = _size(size, symbols, value)
                if wanted is not None and wanted <= leaf.shape[axis]:
                    leaf = leaf.narrow(axis, 0, wanted).clone()
        changed.append(leaf)
    args, kwargs = pytree.tree_unflatten(changed, spec)
    try:
        again = trace(module, args, kwargs, traced.shapes).program
    except Exception:  # whatever the user's module raises at that size: the condition stays a check
        return False
    return again.graph_module.code == program.graph_module.code


def _size(size: Any, symbols: Collection[str], value: int) -> int | None:
    """The size of a dimension with the symbols at a value; None if it depends on none of them."""
    if isinstance(size, int):
        return None
    expr = size.node.expr
    at = {symbol: value for symbol in expr.free_symbols if symbol.name in symbols}
    found = expr.subs(at)
    return int(found) if at and found.is_Integer and found >= 0 else None
