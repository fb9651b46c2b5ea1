"""Operators that the table does not have: all of a program at once, with counts and the user's lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from relaxpy.errors import Span, UsageError
from relaxpy.frontend.torch.refused import REFUSED
from relaxpy.frontend.torch.spans import span_of
from relaxpy.frontend.torch.table import OPERATORS, RANDOM


def name_of(node: Any) -> str:
    """The name of a node's operator in the table: `aten.add.Tensor`, `operator.mul`, `higher_order.cond`."""
    import torch

    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    module = getattr(target, "__module__", "").replace("_operator", "operator")
    return f"{module}.{getattr(target, '__name__', target)}"


def refuse_missing(program: Any) -> None:
    """Raise UsageError (`torch-operator`) if there are operators that the table does not have."""
    import torch

    counts: Counter[str] = Counter()
    places: dict[str, Span | None] = {}
    for node in _calls(program.graph_module):
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool)) and not isinstance(
            node.target, torch._ops.OpOverload
        ):
            continue  # an expression of sizes
        name = name_of(node)
        if name not in OPERATORS:
            counts[name] += 1
            places.setdefault(name, span_of(node))
    if not counts:
        return
    first = next(iter(counts))
    shown = [
        f"{name} ({_times(count)}{_at(places[name])}){_instead(name)}"
        for name, count in counts.most_common()
    ]
    plural = "s" if len(shown) > 1 else ""
    raise UsageError(
        "torch-operator",
        f"{len(shown)} operator{plural} of this program {'are' if plural else 'is'} not supported: "
        + "; ".join(shown),
        span=places[first],
        help="write it with other operators (docs/from_torch.md lists what is not taken, and what to write)",
    )


def draws_numbers(program: Any) -> bool:
    """Does the program draw random numbers?"""
    return any(name_of(node) in RANDOM for node in _calls(program.graph_module))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _at(span: Span | None) -> str:
    return "" if span is None else f", first at {span.file}:{span.line}"


def _instead(name: str) -> str:
    found = next((text for key, text in REFUSED.items() if name.startswith(key)), None)
    return "" if found is None else f": {found}"


def _calls(module: Any) -> Iterator[Any]:
    """All calls of operators, those of nested graphs too."""
    import torch

    for each in module.modules():
        if isinstance(each, torch.fx.GraphModule):
            yield from (node for node in each.graph.nodes if node.op == "call_function")
