"""Knobs: the numbers in a schedule rule that measuring may choose better than we did (paper §4.6, auto-tuning).

A rule asks for each where it needs it, and says what else it could be:

    chunk = knob("chunk", 4096, (1024, 2048, 8192))

It is given its own choice, unless `schedule_kernel(func, target, {"chunk": 1024})` says otherwise: what `relaxpy tune`
measured for this program. Whatever is chosen, the numbers that the kernel computes are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

Choice: TypeAlias = "int | str"
Choices: TypeAlias = Mapping[str, Choice]
"""What some knobs are set to, by name. Names and values that no rule asks for change nothing."""
C = TypeVar("C", int, str)


@dataclass
class Knobs:
    """The knobs of one scheduling."""

    chosen: Choices
    asked: dict[str, tuple[Choice, ...]] = field(default_factory=dict)
    """What rules asked for, in that order, each with what it may be: the rule's own choice first."""


_current: ContextVar[Knobs | None] = ContextVar("relaxpy_knobs", default=None)


def knob(name: str, default: C, others: Sequence[C]) -> C:
    """The setting of a knob: `default`, or what was chosen instead, if that is among `others`."""
    knobs = _current.get()
    if knobs is None:
        return default
    knobs.asked[name] = (default, *(other for other in others if other != default))
    chosen = knobs.chosen.get(name, default)
    # An older record may name what the rule no longer does.
    return next((value for value in others if value == chosen), default)


@contextmanager
def setting(choices: Choices) -> Iterator[Knobs]:
    """Inside, rules get these choices. Gives the knobs, with what they ask for."""
    knobs = Knobs(choices)
    token = _current.set(knobs)
    try:
        yield knobs
    finally:
        _current.reset(token)
