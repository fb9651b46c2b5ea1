"""Torch's guards, which are Python's text, as conditions on sizes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from relaxpy.errors import RelaxError
from relaxpy.frontend.torch.guards import read_guard
from relaxpy.ir import SymVar

N = SymVar("n")

GUARDS = [
    "math.trunc(1.0 + (((-1) + x.size()[0]) / 1)) == 40",
    "math.trunc(1.25 * x.size()[0]) <= 40",
    "math.floor(torch.sym_float(x.size()[0]) / 3.0) != 7",
    "math.ceil((2 * x.size()[0] - 1) / 8) < 6",
    "round(x.size()[0] / 2) == x.size()[0] // 2",
    "x.size()[0] % 2 == 0 and not x.size()[0] > 30",
]


@pytest.mark.parametrize("text", GUARDS)
def test_a_guard_is_what_python_says(text: str) -> None:
    found = read_guard(text, {"x": [N.dim]})
    assert found is not None
    held = set()
    for n in range(97):
        x = SimpleNamespace(size=lambda n=n: (n,))
        holds = eval(text, {"x": x, "math": math, "torch": torch})
        assert found.evaluate({N: n}) == holds
        held.add(holds)
    assert held == {False, True}


def test_a_guard_that_sizes_cannot_say_is_refused() -> None:
    with pytest.raises(RelaxError, match=r"only if math.floor\(0.7 \* x.size"):
        read_guard("math.floor(0.7 * x.size()[0]) == 7", {"x": [N.dim]})
