"""The table of ONNX's operators: name and version → a few lines over `relaxpy.op`.

    @operator("Relu")
    def relu(at: Site, x: Expr, **_: Any) -> Any:
        return op.nn.relu(x)

A function gets the `Site` of the node, its inputs as expressions (None for one that is left out), and its attributes by
name, with the defaults of the version that the model asks for. It returns an expression, or a list of them for several
results. `since` is the first version that a rule is for: that of the newest one that is not newer than the node's own
is taken. Integers that must be known when the model is read are asked for with `at.ints` and `at.value`. A rule for a
domain without schemas names all attributes that it takes: others are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

Rule = Callable[..., Any]

OPERATORS: dict[tuple[str, str], dict[int, Rule]] = {}
"""Domain and name → first version → rule."""


def operator(*names: str, since: int = 1, domain: str = "") -> Callable[[Rule], Rule]:
    """Decorator: the rule of these operators, from a version on."""

    def register(rule: Rule) -> Rule:
        for name in names:
            versions = OPERATORS.setdefault((domain, name), {})
            assert since not in versions, name
            versions[since] = rule
        return rule

    return register


def rule_of(domain: str, name: str, version: int) -> Rule | None:
    """The rule for an operator of this version; None: there is none."""
    versions = OPERATORS.get((domain, name), {})
    known = [since for since in versions if since <= version]
    return versions[max(known)] if known else None


@cache
def attributes_of(rule: Rule) -> frozenset[str] | None:
    """The attributes that a rule names; None: it takes any."""
    params = inspect.signature(rule).parameters
    if any(each.kind is each.VAR_KEYWORD for each in params.values()):
        return None
    return frozenset(name for name, each in params.items() if each.kind is each.KEYWORD_ONLY)


CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

DRAWING = frozenset(
    (
        "RandomUniform",
        "RandomUniformLike",
        "RandomNormal",
        "RandomNormalLike",
        "Bernoulli",
        "Multinomial",
    )
)
"""Operators that draw random numbers: a program with one that has no seed of its own takes a seed."""

MOVES = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
"""Operators whose results are elements of their first input."""

READS_PACKED = ("Cast", "DequantizeLinear", "QuantizeLinear", "GatherBlockQuantized")
"""Operators that are right for integers of fewer than 8 bits that are in 8."""

STORED_IS_READ = ("Cast", "DequantizeLinear")
"""Operators that also read integers of 4 bits that share bytes."""
