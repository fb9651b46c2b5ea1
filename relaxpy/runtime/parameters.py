"""The parameters of a function as its bytecode has them: what they accept, and which arguments have to be converted
(`relaxpy.runtime.entry`)."""

from __future__ import annotations

from collections.abc import Callable

from relaxpy.runtime.bytecode import FunctionCode, Match, Move, Pattern, TensorPattern, TuplePattern
from relaxpy.runtime.effects import sets
from relaxpy.runtime.patterns import ANYTHING

ALWAYS = "True"
"""The condition for arguments that are always converted."""
MOST_LEVELS = 3
"""The most levels of nested tuples that a condition looks into. The caches of a language model have two."""


def parameter_patterns(code: FunctionCode) -> tuple[Pattern, ...]:
    """The pattern of each parameter: that of its first `Match`, or any value."""
    found: dict[int, Pattern] = {}
    holds = {i: i for i in range(len(code.params))}
    """Register → the parameter in it."""
    for instr in code.code:
        if isinstance(instr, Match):
            if instr.src in holds and code.checks[instr.check].what == "parameter":
                found.setdefault(holds[instr.src], instr.pattern)
            continue
        dst = sets(instr)
        if isinstance(instr, Move) and instr.src in holds:
            holds[dst] = holds[instr.src]
        else:
            holds.pop(dst, None)
    return tuple(found.get(i, ANYTHING) for i in range(len(code.params)))


def entry_tests(code: FunctionCode, is_tensor: Callable[[int, str], str]) -> tuple[str, ...]:
    """For each parameter a condition that is true if its argument may have to be converted. `is_tensor` gives the
    condition that a value is not a tensor of a slot."""
    patterns = enumerate(parameter_patterns(code))
    return tuple(_test(pattern, f"r{i}", is_tensor, MOST_LEVELS) for i, pattern in patterns)


def _test(pattern: Pattern, value: str, is_tensor: Callable[[int, str], str], levels: int) -> str:
    """A condition that is true if `enter` may return another value. It looks into so many levels of tuples."""
    match pattern:
        case TensorPattern(slot=slot):
            return is_tensor(slot, value)
        case TuplePattern(fields) if levels:
            tests = [
                _test(field, f"{value}[{i}]", is_tensor, levels - 1)
                for i, field in enumerate(fields)
            ]
            own = f"{value}.__class__ is not tuple or len({value}) != {len(fields)}"
            return ALWAYS if ALWAYS in tests else " or ".join([own, *tests])
        case _:
            return ALWAYS
