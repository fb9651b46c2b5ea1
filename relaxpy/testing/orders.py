"""Random orders of passes: a program goes through all passes in several orders that their prerequisites allow, and the
interpreter compares its results after each order with those of the source. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir.module import IRModule
from relaxpy.testing.differential import Call, Failure, reported
from relaxpy.testing.random_pipeline import random_order
from relaxpy.transform.base import Pass, PassContext


def check_orders(calls: Sequence[Call], seeds: Sequence[int]) -> list[Failure]:
    """The failures of calls, of one module, after all passes in the orders of these seeds; each module on the way is
    well formed."""
    found: list[Failure] = []
    for seed in seeds:
        order = random_order(seed)
        trail = _Trail()
        with reported("pass", found):
            after = order(calls[0].mod, PassContext(instruments=(trail,)))
            for call in calls:
                problem = call.disagreement(call.run(after), after)
                if problem:
                    text = f"order {seed}: {problem}\npasses: {', '.join(trail.names)}"
                    found.append(Failure("pass", "value", text, call))
    return found


class _Trail:
    """The passes so far, whose results are well formed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, number: int, step: Pass, before: IRModule, after: IRModule) -> None:
        self.names.append(step.name)
        if after is not before:
            check_well_formed(after)
