"""The table that operators are written to ONNX by: operator → a few nodes.

    @writes(Relu)
    def relu(at: Place, op: Relu, x: Tensor) -> Any:
        return at.node("Relu", x)

A rule gets the `Place` that it writes at, the operator with its attributes, and a value for each argument: a `Tensor`
(None for one that is left out), a tuple of sizes for a shape, a size or a number for a scalar, a list for a tuple. It
returns the name of the result, or a list of names for several. What ONNX cannot say is refused by `at.fail`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from relaxpy.op.base import Op

Rule = Callable[..., Any]

RULES: dict[type[Op], Rule] = {}
"""Operator → its rule."""


def writes(*operators: type[Op]) -> Callable[[Rule], Rule]:
    """Decorator: the rule of these operators."""

    def register(rule: Rule) -> Rule:
        for each in operators:
            assert each not in RULES, each
            RULES[each] = rule
        return rule

    return register


@cache
def load_rules() -> None:
    """Fill the table."""
    import relaxpy.onnx as package

    for file in pkgutil.iter_modules(package.__path__):
        if file.name.startswith("writes_"):
            importlib.import_module(f"relaxpy.onnx.{file.name}")


INSTEAD = {
    "call_tir_inplace": "a file does not change memory of its caller: take the old tensor, and return the new one",
    "call_tir": "tensor programs have no counterpart: export the program before it is legalised",
    "call_dps_library": "a library function has no counterpart",
    "call_pure_packed": "a function of Python has no counterpart",
    "call_packed": "a function of Python has no counterpart",
    "print": "a file prints nothing: remove it",
    "assert_op": "a file checks nothing: remove it",
    "random_uniform": "its numbers follow from seeds, and those of ONNX's random operators do not: make them an input",
    "nn.paged_attention": "export the model with a cache that is a tensor",
    "nn.page_slots": "export the model with a cache that is a tensor",
    "nn.attention_var_len": "pad the sequences, and write nn.attention with a bias",
    "grad.": "a gradient is no operator of ONNX: export the model before `relaxpy.transform.Gradient`",
    "inspect.": "a file knows no addresses: remove it",
    "to_vdevice": "a file knows no devices: remove it",
    "hint_on_device": "a file knows no devices: remove it",
}
"""Beginning of an operator's name → what to do."""
