"""Inference of places: what is joined, and at which cost."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import FrameType
from typing import Any

from relaxpy.backend.places import Place


def steps_to_the_roots(count: int) -> int:
    """Lines that `Place.root` runs for a chain of so many values, each joined with the one before it."""
    lines = 0

    def line(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return line

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return line if frame.f_code is Place.root.__code__ else None

    places = [Place() for _ in range(count)]
    for one, other in pairwise(places):
        one.root().joined = other
    before = sys.gettrace()
    sys.settrace(call)
    try:
        roots = {id(place.root()) for place in places}
    finally:
        sys.settrace(before)
    assert roots == {id(places[-1])}
    return lines


def test_a_chain_of_joined_values_costs_a_step_each() -> None:
    """Every annotation asks for its root: walking the chain each time would be quadratic."""
    assert steps_to_the_roots(400) < 2.3 * steps_to_the_roots(200)
