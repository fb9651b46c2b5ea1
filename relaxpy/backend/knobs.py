"""Knobs: the tunable parameters of schedule rules (auto-tuning, paper §4.6).

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
"""Settings of knobs, by name. Names and values that no rule asks for have no effect."""
C = TypeVar("C", int, str)


@dataclass
class Knobs:
    """The knobs of one scheduling."""

    chosen: Choices
    asked: dict[str, tuple[Choice, ...]] = field(default_factory=dict[str, tuple[Choice, ...]])
    """The knobs that rules asked for, in that order, each with its possible values, the default first."""


_current: ContextVar[Knobs | None] = ContextVar("relaxpy_knobs", default=None)


def knob(name: str, default: C, others: Sequence[C]) -> C:
    """The setting of a knob: `default`, or the chosen value if it is among `others`."""
    knobs = _current.get()
    if knobs is None:
        return default
    knobs.asked[name] = (default, *(other for other in others if other != default))
    chosen = knobs.chosen.get(name, default)
    # An older record may contain a value that the rule no longer offers.
    return next((value for value in others if value == chosen), default)


@contextmanager
def setting(choices: Choices) -> Iterator[Knobs]:
    """A context in which rules get these choices. Yields the knobs that they ask for."""
    knobs = Knobs(choices)
    token = _current.set(knobs)
    try:
        yield knobs
    finally:
        _current.reset(token)
