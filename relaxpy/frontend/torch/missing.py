"""The operators of a program of torch, and those that the table does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relaxpy.errors import Span
from relaxpy.frontend.missing import refuse
from relaxpy.frontend.torch.refused import REFUSED
from relaxpy.frontend.torch.spans import span_of
from relaxpy.frontend.torch.table import OPERATORS, RANDOM


def name_of(node: Any) -> str:
    """The name of a node's operator in the table: `aten.add.Tensor`, `operator.mul`, `higher_order.cond`. Of one that
    torch keeps in order by a token (it prints, or raises), the name of the operator inside."""
    import torch

    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        if target.name() != "with_effects":
            return f"higher_order.{target.name()}"
        target = node.args[1]
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", "").replace("_operator", "operator")
    return f"{module}.{getattr(target, '__name__', target)}"


def refuse_missing(program: Any) -> None:
    """Raise UsageError (`torch-operator`) if there are operators that the table does not have."""
    refuse(_missing(program), REFUSED, "torch-operator", "docs/from_torch.md")


def _missing(program: Any) -> Iterator[tuple[str, Span | None]]:
    import torch

    for node in _calls(program.graph_module):
        is_size = isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool))
        if is_size and not isinstance(node.target, torch._ops.OpOverload):
            continue  # an expression of sizes
        if is_part_of_sizes(node):
            continue
        if (name := name_of(node)) not in OPERATORS:
            yield name, span_of(node)


def is_part_of_sizes(node: Any) -> bool:
    """Is it a float of which only sizes are made, as of `round(n / 2)`?"""
    import torch

    sizes = (torch.SymInt, torch.SymBool)
    return isinstance(node.meta.get("val"), torch.SymFloat) and all(
        isinstance(user.meta.get("val"), sizes) or is_part_of_sizes(user) for user in node.users
    )


def draws_numbers(program: Any) -> bool:
    """Does the program draw random numbers?"""
    nodes = _calls(program.graph_module)
    return any(RANDOM[name](node) for node in nodes if (name := name_of(node)) in RANDOM)


def _calls(module: Any) -> Iterator[Any]:
    """All calls of operators, those of nested graphs too."""
    import torch

    for each in module.modules():
        if isinstance(each, torch.fx.GraphModule):
            yield from (node for node in each.graph.nodes if node.op == "call_function")
