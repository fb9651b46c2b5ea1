"""The programs of the compile-time benchmark are programs, of about as many operators as they are asked for."""

from __future__ import annotations

import pytest

import relaxpy
from benchmarks.compile import ratio
from benchmarks.program_shapes import functions_of_floats, shapes
from relaxpy.ir import Call, IRModule
from relaxpy.ir.visitor import Visitor


class _Calls(Visitor):
    """Counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def visit_Call(self, node: Call) -> None:
        self.count += 1
        super().visit_Call(node)


def calls_of(mod: IRModule) -> int:
    visitor = _Calls()
    for function in mod.graph_functions.values():
        visitor.visit(function)
    return visitor.count


@pytest.mark.parametrize("name", [name for name in shapes() if not name.startswith("chain: ")])
def test_programs(name: str) -> None:
    small, large = (relaxpy.parse(shapes()[name](count)) for count in (50, 100))
    assert 20 <= calls_of(small) <= 150
    assert 1.6 < calls_of(large) / calls_of(small) < 2.4


@pytest.mark.parametrize("name", [name for name in shapes() if name.startswith("chain: ")])
def test_chains(name: str) -> None:
    assert relaxpy.parse(shapes()[name](3)).graph_functions


def test_every_elementary_function_has_a_chain() -> None:
    assert {"exp", "nn.silu", "negative", "erf", "nn.gelu"} <= set(functions_of_floats())


def test_growth_is_the_worst_doubling() -> None:
    assert ratio({"1": {"seconds": 1.0}, "2": {"seconds": 2.0}, "4": {"seconds": 6.0}}) == 3
    assert ratio({"1": {"seconds": 1.0}, "2": {"failed": "more than 300 s"}}) == float("inf")
