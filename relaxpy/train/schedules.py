"""Schedules of learning rates: functions from the number of steps done to a factor of an optimiser's rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from relaxpy.errors import UsageError

Schedule = Callable[[int], float]


def constant(warmup: int = 0) -> Schedule:
    """1, after a line from 0 over `warmup` steps."""
    return lambda step: min(1.0, (step + 1) / (warmup + 1))


def linear(steps: int, warmup: int = 0, least: float = 0.0) -> Schedule:
    """A line from 1 to `least` at `steps`, after one from 0 over `warmup` steps. Raises: UsageError."""
    return _falling(steps, warmup, least, lambda done: 1 - done)


def cosine(steps: int, warmup: int = 0, least: float = 0.0) -> Schedule:
    """Half a wave of the cosine from 1 to `least` at `steps` (Loshchilov and Hutter, 2017), after a line from 0 over
    `warmup` steps. Raises: UsageError."""
    return _falling(steps, warmup, least, lambda done: (1 + math.cos(math.pi * done)) / 2)


def _falling(steps: int, warmup: int, least: float, part: Callable[[float], float]) -> Schedule:
    """`part` tells how much is left after a part of the steps."""
    if not 0 <= warmup < steps:
        raise UsageError(
            "arguments", f"warmup is {warmup} steps: it must be at least 0, and less than {steps}"
        )

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = min(1.0, (step - warmup) / (steps - warmup))
        return least + (1 - least) * part(done)

    return factor
