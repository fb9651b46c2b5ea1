"""Identifiers in WGSL."""

from __future__ import annotations

import re

from relaxpy.backend.webgpu.functions import FUNCTIONS
from relaxpy.backend.webgpu.names import Names


def test_names_differ() -> None:
    """Variables of one name, and names that differ only in what WGSL does not allow."""
    names = Names()
    found = [names[_Var(name)] for name in ("x", "x", "x'", "größe", "_", "", "3d", "for", "日本")]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[A-Za-z]\w*_\d+", name, re.ASCII) for name in found)


class _Var:
    def __init__(self, name: str) -> None:
        self.name = name


def test_a_variable_keeps_its_name() -> None:
    names, var = Names(), _Var("x")
    assert names[var] == names[var] == "x_0"
    assert names.fresh("x") == "x_1"


def test_no_function_is_called_so() -> None:
    """Functions in a kernel end otherwise."""
    assert not [name for name in FUNCTIONS if re.search(r"_\d+$", name)]
