"""What random programs are made of."""

from __future__ import annotations

from collections import Counter

from relaxpy.ir import Call, MatchCast, Operator
from relaxpy.testing.random_program import random_module, random_program


def test_variety() -> None:
    """A hundred programs use most operators, unknown shapes, functions, tuples, and sizes 0 and 1."""
    used: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    for seed in range(100):
        program = random_program(seed)
        for binding in program.bindings():
            sizes.update(binding.values())
        for function in program.mod.graph_functions.values():
            for binding in function.body.bindings:
                value = binding.value
                used[type(binding if isinstance(binding, MatchCast) else value).__name__] += 1
                if isinstance(value, Call):
                    used[value.op.name if isinstance(value.op, Operator) else "function"] += 1
    wanted = {
        "MatchCast",
        "function",
        "Tuple",
        "unique",
        "matmul",
        "reshape",
        "take",
        "nn.layer_norm",
        "split",
        "concat",
    }
    assert wanted <= set(used)
    assert sizes[0] > 20
    assert sizes[1] > 20


def test_several_in_one_module() -> None:
    """Programs of one module are those of their seeds."""
    mod, programs = random_module([3, 4])
    assert [p.name for p in programs] == ["p3", "p4"]
    assert {"p3", "p4"} <= set(mod.graph_functions)
    alone = random_program(3)
    assert [str(p.annotation) for p in programs[0].params] == [
        str(p.annotation) for p in alone.params
    ]
